"""Kernels from formulas, beside the ops that compute the same: `activation silu` and `softmax`."""

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, bars
from tfuse.cases.rows import softmax

SIZES = [(16384, 8192), (16383, 8191)]

_silu = tfuse.jit.elementwise("T x", "T y", "y = x / (1 + exp(-x))", grad=True, name="jit_silu")
_softmax = tfuse.jit.rows("T x", "T y", map=["top = x", "total = exp(x - stop(top))"], reduce=["max(a, b)", "a + b"],
                          post="y = exp(x - stop(top)) / total", grad=True, name="jit_softmax")


def _slope(dy, x):
    s = 1 / (1 + np.exp(-x))
    return [dy * s * (1 + x * (1 - s))]


CASES = [
    Case(name="jit.elementwise, silu", run=_silu, plain=tf.nn.silu, reference=lambda x: x / (1 + np.exp(-x)), gradient=_slope,
         special=False, rejects=[("jit_silu: output y is T, which is int32 in this call; outputs must be of a float dtype",
                                  lambda: _silu(tf.constant([1, 2])))]),
    Case(name="jit.rows, softmax", run=_softmax, plain=tf.nn.softmax, reference=lambda x: np.exp(softmax.exact(x)),
         gradient=softmax.gradient, special=False, summed=lambda shape: shape[-1], rejects=[
             ("jit_softmax: x must have at least one axis, whose elements are reduced, got a scalar", lambda: _softmax(1.0))]),
]
TIMES = [Timed(CASES[0], SIZES, bars=bars(SIZES[0], forward=95)), Timed(CASES[1], SIZES[:1], bars=bars(SIZES[0], forward=85))]
