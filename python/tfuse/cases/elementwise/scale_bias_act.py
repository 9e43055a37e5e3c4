import math

import keras
import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, bars, total
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


def slopes(dy, pre, pre2, activation):
    """dy times the slope at pre, and its square: pre is a sum, of terms whose squares add up to pre2, and is rounded; what that
    does to the slope is a term."""
    step, g = 1e-4, dy * slope(pre, activation)
    bend = (slope(pre + step, activation) - slope(pre - step, activation)) / (2 * step)
    return g, g * g + dy**2 * bend**2 * pre2


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
    if scale is not None:
        x = x * scale
    if bias is not None:
        x = x + bias
    return PLAIN[activation](x)


def _case(name, inputs, **options):
    return Case(name=name, run=tfuse.scale_bias_act, plain=_plain, reference=_reference, gradient=_gradient,
                inputs={"x": lambda shape: shape, **inputs}, **options)


def _channels(shape):
    return shape[-1:]


CASES = [
    _case("scale_bias_act", {"scale": _channels, "bias": _channels}, options=[{"activation": a} for a in PLAIN], bars={
        **bars((16384, 8192), forward=95, backward=90), **bars((16383, 8191), forward=80, backward=80)}, rejects=[
        ("scale must have 3 values, one per channel .last axis. of x .2, 3., got 4",
         lambda: tfuse.scale_bias_act(tf.ones([2, 3]), tf.ones([4]))),
        ("bias must have 3 values, .*got 4", lambda: tfuse.scale_bias_act(tf.ones([2, 3]), bias=tf.ones([4]))),
        ("scale must be a vector with one value per channel of x, got shape .2, 3.",
         lambda: tfuse.scale_bias_act(tf.ones([2, 3]), tf.ones([2, 3]))),
        ("bias must be a vector with one value per channel of x, got shape ..",
         lambda: tfuse.scale_bias_act(tf.ones([2, 3]), bias=1.0)),
        ("x must have at least one dimension to have a value of bias for each channel",
         lambda: tfuse.scale_bias_act(tf.constant(1.0), bias=tf.ones([1]))),
        ("scale_bias_act: scale must be float32 like x, got float64",
         lambda: tfuse.scale_bias_act(tf.ones([2, 3]), tf.ones([3], tf.float64))),
        ("scale_bias_act: x must be float32, float16, bfloat16 or float64, got int32",
         lambda: tfuse.scale_bias_act(tf.constant([[1]]))),
        ("scale_bias_act: scale must fit float16.*got 1e.06",
         lambda: tfuse.scale_bias_act(tf.ones([2, 3], tf.float16), 1e6)),
        ("activation must be one of linear, relu, .* or None, got 'swoosh'",
         lambda: tfuse.scale_bias_act(tf.ones([2, 3]), activation="swoosh")),
        ("activation must be one of .*got <function softmax", lambda: tfuse.ScaleBiasAct(keras.activations.softmax)),
    ]),
    _case("scale_bias_act, one scale", {"scale": lambda shape: (), "bias": _channels},
          options=[{"activation": a} for a in ("linear", "gelu")], sizes=[(16384, 8192)]),
    _case("scale_bias_act, scale only", {"scale": _channels}, options=[{"activation": "relu"}], sizes=[]),
    _case("activation", {}, options=[{"activation": a} for a in PLAIN], sizes=[(16384, 8192)],
          timed=[{"activation": a} for a in ("relu", "gelu", "tanh")]),
]
