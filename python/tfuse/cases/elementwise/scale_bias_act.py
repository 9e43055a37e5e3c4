import math

import keras
import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, bars, each, of_terms, ones, refusing, squares, total
from tfuse.elementwise.scale_bias_act import PLAIN


def _erf(z):
    """Also for z with a small imaginary part."""
    real = np.fromiter(map(math.erf, z.real.ravel()), float, z.size).reshape(z.shape)
    return real + 1j * z.imag * 2 / math.sqrt(math.pi) * np.exp(-z.real * z.real)


def _softplus(x):
    return np.where(x.real > 0, x + np.log1p(np.exp(np.where(x.real > 0, -x, 0))),
                    np.log1p(np.exp(np.where(x.real > 0, 0, x))))


# Complex functions, so that a step of 1e-30 along the imaginary axis gives the derivative to the last digit.
ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": lambda x: np.where(x.real > 0, x, 0),
    "leaky_relu": lambda x: np.where(x.real > 0, x, 0.2 * x),
    "elu": lambda x: np.where(x.real > 0, x, np.expm1(np.where(x.real > 0, 0, x))),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "softplus": _softplus,
    "hard_swish": lambda x: x * np.where(x.real > 3, 6, np.where(x.real < -3, 0, x + 3)) / 6,
    "relu6": lambda x: np.where(x.real > 6, 6, np.where(x.real > 0, x, 0)),
}


def value(v, activation):
    return ACTIVATIONS[activation](v.astype(complex)).real


def slope(v, activation):
    return ACTIVATIONS[activation](v + 1e-30j).imag * 1e30


def activated(pre, activation):
    """Of a sum, with the size of its terms."""
    return of_terms(value(pre, activation), squares(pre))


def curve(v, activation, step=1e-4):
    """The slope's own."""
    return (slope(v + step, activation) - slope(v - step, activation)) / (2 * step)


def slopes(dy, pre, activation):
    """dy times the slope at pre: a sum, which is rounded; what that does to the slope is a term."""
    g = dy * slope(pre, activation)
    return of_terms(g, g * g + dy**2 * curve(pre, activation)**2 * squares(pre))


def plain_epilogue(y, bias=None, activation="linear", residual=None):
    """What follows sums, in stock TensorFlow."""
    y = y if bias is None else y + bias
    return PLAIN[activation](y if residual is None else y + residual)


def _reference(x, scale=1.0, bias=0.0, activation="linear"):
    return value(x * scale + bias, activation)


def _gradient(dy, x, scale=None, bias=None, activation="linear"):
    s, b = 1.0 if scale is None else scale, 0.0 if bias is None else bias
    g = dy * slope(x * s + b, activation)
    rows = tuple(range(x.ndim - 1))
    gradients = [g * s]
    if scale is not None:
        gradients.append(total(g * x) if scale.ndim == 0 else total(g * x, rows))
    if bias is not None:
        gradients.append(total(g, rows))
    return gradients


def _plain(x, scale=None, bias=None, activation="linear"):
    return plain_epilogue(x if scale is None else x * scale, bias, activation)


def _case(name, inputs, **options):
    return Case(name=name, run=tfuse.scale_bias_act, plain=_plain, reference=_reference, gradient=_gradient,
                inputs={"x": lambda shape: shape, **inputs}, **options)


def _channels(shape):
    return shape[-1:]


_refused = refusing(tfuse.scale_bias_act, x=ones(2, 3))
CASES = [
    _case("scale_bias_act", {"scale": _channels, "bias": _channels}, options=each("activation", PLAIN), rejects=[
        _refused("scale must have 3 values, one per channel .last axis. of x .2, 3., got 4", scale=ones(4)),
        _refused("bias must have 3 values, .*got 4", bias=ones(4)),
        _refused("scale must be a vector with one value per channel of x, got shape .2, 3.", scale=ones(2, 3)),
        _refused("bias must be a vector with one value per channel of x, got shape ..", bias=1.0),
        _refused("x must have at least one dimension to have a value of bias for each channel", x=ones(), bias=ones(1)),
        _refused("scale_bias_act: scale must be float32 like x, got float64", scale=ones(3, dtype=tf.float64)),
        _refused("scale_bias_act: x must be float32, float16, bfloat16 or float64, got int32", x=ones(1, 1, dtype=tf.int32)),
        _refused("scale_bias_act: scale must fit float16.*got 1e.06", x=ones(2, 3, dtype=tf.float16), scale=1e6),
        _refused("activation must be one of linear, relu, .* or None, got 'swoosh'", activation="swoosh"),
        refusing(tfuse.ScaleBiasAct)("activation must be one of .*got <function softmax", activation=keras.activations.softmax),
    ]),
    _case("scale_bias_act, one scale", {"scale": lambda shape: (), "bias": _channels},
          options=each("activation", ["linear", "gelu"])),
    _case("scale_bias_act, scale only", {"scale": _channels}, options=each("activation", ["relu"])),
    _case("activation", {}, options=each("activation", PLAIN)),
]
TIMES = [
    Timed(CASES[0], bars={**bars((16384, 8192), forward=95, backward=90), **bars((16383, 8191), forward=80, backward=80)}),
    Timed(CASES[1], [(16384, 8192)]),
    Timed(CASES[3], [(16384, 8192)], each("activation", ["relu", "gelu", "tanh"])),
]
