import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, bars, each, ones, refusing
from tfuse.cases.elementwise.scale_bias_act import slope, value
from tfuse.elementwise.scale_bias_act import PLAIN

_ALL = each("activation", PLAIN)
_SIZE = (16384, 16384)
# Of a few elements, which of two products is rounded worse is luck; tests/elementwise/test_gates.py holds small tensors
# against large.
_SHAPES = [(4, 8), (0, 8), (3, 5, 129), (513, 1030), (4099, 2), (1, 100003)]


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


_refused = refusing(tfuse.gated, a=ones(2, 3))
CASES = [
    Case(name="gated", run=tfuse.gated, plain=_plain, fit=_even, shapes=_SHAPES, options=_ALL,
         reference=lambda a, **o: _reference(*_halves(a), **o),
         gradient=lambda dy, a, **o: [np.concatenate(_gradient(dy, *_halves(a), **o), -1)],
         inputs={"a": lambda shape: shape}, outputs={"value": lambda shape: (*shape[:-1], shape[-1] // 2)}, rejects=[
             _refused("the last axis of a must be two halves of one size, got shape .2, 3."),
             refusing(tfuse.swiglu)("a must have at least one", a=1.0),
             _refused("b must have the shape of a, .2, 3., got .2, 4.", b=ones(2, 4)),
             _refused("gated: b must be float32 like a, got float16", b=ones(2, 3, dtype=tf.float16)),
             _refused("activation must be one of linear, relu, .*got 'swoosh'", a=ones(2), activation="swoosh"),
         ]),
    Case(name="gated, two tensors", run=tfuse.gated, plain=_plain, reference=_reference, gradient=_gradient,
         inputs={"a": lambda shape: shape, "b": lambda shape: shape}, options=_ALL, shapes=_SHAPES),
]
TIMES = [Timed(CASES[0], [_SIZE], each("activation", ["silu", "gelu"]), passes=(1.5, 2.5),
               bars=bars(_SIZE, forward=90, backward=90))]
