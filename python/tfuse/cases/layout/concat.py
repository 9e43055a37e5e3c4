import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import SHAPES, Case, bars

U_NET, SEQUENCE = (32, 256, 256, 32), (64, 1024, 1024)


def _gradient(dy, *values, axis):
    return np.split(dy, np.cumsum([v.shape[axis] for v in values])[:-1], axis)


def _longer(shape, axis, more):
    """The shape with more along an axis."""
    return tuple(size + more * (a == axis % len(shape)) for a, size in enumerate(shape))


def _case(name, axis, more, **options):
    """As many inputs as `more` has numbers: that much longer along the axis than the case's shape."""
    along = lambda n: lambda shape: _longer(shape, axis, n)
    total = lambda shape: sum(shape[axis] + n for n in more)
    return Case(name=name, run=lambda *values, axis: tfuse.concat(values, axis),
                plain=lambda *values, axis: tf.concat(values, axis),
                reference=lambda *values, axis: np.concatenate(values, axis), gradient=_gradient,
                inputs={"values[%d]" % i: along(n) for i, n in enumerate(more)},
                outputs={"value": lambda shape: _longer(shape, axis, total(shape) - shape[axis])},
                options=[{"axis": axis}], passes=(2 * len(more), 2 * len(more)), xla_own=True, **options)


def _of(*shapes):
    return [tf.ones(shape) for shape in shapes]


CASES = [
    _case("concat, last axis", -1, (0, 0), shapes=[*SHAPES, (5, 0)], sizes=[U_NET], cpu_sizes=[(4, 128, 128, 32)],
          bars=bars(U_NET, forward=85, backward=85), rejects=[
              (r"(?i)concat: values\[1\] must have as many axes as values\[0\] \[2, 3\], got shape \[2\]",
               lambda: tfuse.concat(_of([2, 3], [2]), 1)),
              (r"(?i)concat: values\[1\] must have the sizes of values\[0\] \[2, 3\] but along axis 1, got shape \[4, 3\]",
               lambda: tfuse.concat(_of([2, 3], [4, 3]), -1)),
              (r"(?i)concat: axis must be from -2 to 1 for values\[0\] \[2, 3\], got 2",
               lambda: tfuse.concat(_of([2, 3], [2, 3]), 2)),
              (r"(?i)concat: axis must be from -1 to 0 for values\[0\] \[2\], got -2",
               lambda: tfuse.concat(_of([2], [3]), -2)),
              (r"(?i)concat: values\[0\] must have an axis, got a single number", lambda: tfuse.concat(_of([], []), 0)),
              ("concat: values must have at least one tensor, got an empty list", lambda: tfuse.concat([], 0)),
              ("concat: axis must be an integer, got 0.5", lambda: tfuse.concat(_of([2], [3]), 0.5)),
              (r"concat: values\[1\] must be float32 like values\[0\], got float64; cast one of them",
               lambda: tfuse.concat([tf.ones([2]), tf.ones([2], tf.float64)], 0)),
              (r"concat: values\[1\] must be a dense tensor, got a RaggedTensor",
               lambda: tfuse.concat([tf.ones([2, 1]), tf.ragged.constant([[1.0], []])], 0)),
          ]),
    _case("concat, middle axis", 1, (0, 0), shapes=[(3, 5, 129), (7, 3), (2, 9, 8)], sizes=[SEQUENCE],
          bars=bars(SEQUENCE, forward=85, backward=85)),
    _case("concat, first axis", 0, (0, 0), shapes=[(4, 8), (3, 5, 129), (1, 100003)], sizes=[(16384, 8192)],
          bars=bars((16384, 8192), forward=85)),
    _case("concat, three", -1, (1, 0, 6), shapes=[(4, 8), (3, 5, 129), (5, 0), (4099, 2)], sizes=[]),
]
