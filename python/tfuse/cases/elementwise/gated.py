import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import SHAPES, Case, bars
from tfuse.cases.elementwise.scale_bias_act import slope, value
from tfuse.elementwise.scale_bias_act import PLAIN

_ALL = [{"activation": name} for name in PLAIN]
_SIZE = (16384, 16384)
# Of a few elements, which of two products is rounded worse is luck; tests/elementwise/test_gates.py holds small tensors
# against large.
_SHAPES = [shape for shape in SHAPES if np.prod(shape) == 0 or np.prod(shape) >= 32]


def _halves(a):
    return a[..., :a.shape[-1] // 2], a[..., a.shape[-1] // 2:]


def _even(shape):
    return (*shape[:-1], shape[-1] + shape[-1] % 2)


def _reference(a, b, activation):
    return value(a, activation) * b


def _gradient(dy, a, b, activation):
    return [dy * b * slope(a, activation), dy * value(a, activation)]


def _plain(a, b=None, activation="silu"):
    a, b = tf.split(a, 2, -1) if b is None else (a, b)
    return PLAIN[activation](a) * b


def _in_halves(name, options, **others):
    return Case(name=name, run=tfuse.gated, plain=_plain, fit=_even, shapes=_SHAPES,
                reference=lambda a, **o: _reference(*_halves(a), **o),
                gradient=lambda dy, a, **o: [np.concatenate(_gradient(dy, *_halves(a), **o), -1)],
                inputs={"a": lambda shape: shape}, outputs={"value": lambda shape: (*shape[:-1], shape[-1] // 2)},
                options=options, passes=(1.5, 2.5), **others)


CASES = [
    _in_halves("gated", _ALL, sizes=[_SIZE], timed=[{"activation": a} for a in ("silu", "gelu")],
               bars=bars(_SIZE, forward=90, backward=90), rejects=[
        ("the last axis of a must be two halves of one size, got shape .2, 3.", lambda: tfuse.gated(tf.ones([2, 3]))),
        ("a must have at least one", lambda: tfuse.swiglu(tf.constant(1.0))),
        ("b must have the shape of a, .2, 3., got .2, 4.", lambda: tfuse.gated(tf.ones([2, 3]), tf.ones([2, 4]))),
        ("gated: b must be float32 like a, got float16",
         lambda: tfuse.gated(tf.ones([2, 3]), tf.ones([2, 3], tf.float16))),
        ("activation must be one of linear, relu, .*got 'swoosh'", lambda: tfuse.gated(tf.ones([2]), activation="swoosh")),
    ]),
    Case(name="gated, two tensors", run=tfuse.gated, plain=_plain, reference=_reference, gradient=_gradient,
         inputs={"a": lambda shape: shape, "b": lambda shape: shape}, options=_ALL, passes=(3, 5), sizes=[],
         shapes=_SHAPES),
]
