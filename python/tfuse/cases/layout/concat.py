import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import SHAPES, Case, Timed, bars, ones, refusing

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
                options=[{"axis": axis}], xla_own=True, **options)


_refused = refusing(tfuse.concat, values=[ones(2, 3), ones(2, 3)], axis=0)
CASES = [
    _case("concat, last axis", -1, (0, 0), shapes=[*SHAPES, (5, 0)], rejects=[
        _refused(r"(?i)concat: values\[1\] must have as many axes as values\[0\] \[2, 3\], got shape \[2\]",
                 values=[ones(2, 3), ones(2)], axis=1),
        _refused(r"(?i)concat: values\[1\] must have the sizes of values\[0\] \[2, 3\] but along axis 1, got shape \[4, 3\]",
                 values=[ones(2, 3), ones(4, 3)], axis=-1),
        _refused(r"(?i)concat: axis must be from -2 to 1 for values\[0\] \[2, 3\], got 2", axis=2),
        _refused(r"(?i)concat: axis must be from -1 to 0 for values\[0\] \[2\], got -2", values=[ones(2), ones(3)], axis=-2),
        _refused(r"(?i)concat: values\[0\] must have an axis, got a single number", values=[ones(), ones()]),
        _refused("concat: values must have at least one tensor, got an empty list", values=[]),
        _refused("concat: axis must be an integer, got 0.5", values=[ones(2), ones(3)], axis=0.5),
        _refused(r"concat: values\[1\] must be float32 like values\[0\], got float64; cast one of them",
                 values=[ones(2), ones(2, dtype=tf.float64)]),
        _refused(r"concat: values\[1\] must be a dense tensor, got a RaggedTensor",
                 values=[ones(2, 1), functools.partial(tf.ragged.constant, [[1.0], []])]),
    ]),
    _case("concat, middle axis", 1, (0, 0), shapes=[(3, 5, 129), (7, 3), (2, 9, 8)]),
    _case("concat, first axis", 0, (0, 0), shapes=[(4, 8), (3, 5, 129), (1, 100003)]),
    _case("concat, three", -1, (1, 0, 6), shapes=[(4, 8), (3, 5, 129), (5, 0), (4099, 2)]),
]
TIMES = [
    Timed(CASES[0], [U_NET], cpu_sizes=[(4, 128, 128, 32)], passes=(4, 4), bars=bars(U_NET, forward=85, backward=85)),
    Timed(CASES[1], [SEQUENCE], passes=(4, 4), bars=bars(SEQUENCE, forward=85, backward=85)),
    Timed(CASES[2], [(16384, 8192)], passes=(4, 4), bars=bars((16384, 8192), forward=85)),
]
