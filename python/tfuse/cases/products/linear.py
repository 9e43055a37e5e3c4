import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import (
    AHEAD, Case, Input, Timed, each, fitting, longest_axis, ones, plus, product_flops, refusing, sums, twice, volume)
from tfuse.cases.elementwise.scale_bias_act import activated, plain_epilogue, slopes
from tfuse.elementwise.scale_bias_act import PLAIN
from tfuse.products.linear import fused

# A case's shape is (…, inputs, outputs): x is all of it but the last.
_SHAPES = [(2, 3, 8, 5), (1, 1, 1, 1), (0, 4, 8, 5), (2, 3, 0, 5), (2, 3, 8, 0), (1, 7, 3, 129), (1, 129, 130, 67),
           (3, 43, 257, 16), (1, 5, 1000, 3), (2, 260, 40, 200)]
fit = fitting(4, lambda rows, columns: (min(rows, 2), min(rows, 33), min(columns, 150), 70))


def rows(t):
    return t.reshape(volume(t.shape[:-1]), t.shape[-1])


def out(shape):
    return (*shape[:-2], shape[-1])


def product(x, kernel, bias=None):
    return plus(sums(np.matmul, x, kernel), bias)


def gradients(g, x, kernel, bias=None):
    """Of x, kernel and, where there is one, bias."""
    columns = [] if bias is None else [sums(lambda g: rows(g).sum(0), g)]
    return [sums(np.matmul, g, kernel.T), sums(lambda x, g: rows(x).T @ rows(g), x, g), *columns]


def _reference(x, kernel, bias=None, residual=None, activation="linear"):
    return plus(activated(product(x, kernel, bias), activation), residual)


def _gradient(dy, x, kernel, bias=None, residual=None, activation="linear"):
    g = slopes(dy, product(x, kernel, bias), activation)
    return gradients(g, x, kernel, bias) + [dy] * (residual is not None)


def naive_product(x, kernel):
    """As Keras's Dense computes it."""
    return tf.matmul(x, kernel) if len(x.shape) == 2 else tf.tensordot(x, kernel, 1)


def _naive(x, kernel, bias=None, residual=None, activation="linear"):
    y = plain_epilogue(naive_product(x, kernel), bias, activation)
    return y if residual is None else y + residual


def _by(f):
    return lambda x, kernel, bias=None, residual=None, activation=None: f(x, kernel, bias, activation, residual)


def weights(rng, own, shape):
    """So that results are as large as what they are made of."""
    return rng.normal(size=own) / np.sqrt(max(own[-2], 1))


_INPUTS = {"x": lambda shape: shape[:-1], "kernel": Input(lambda shape: shape[-2:], weights),
           "bias": lambda shape: shape[-1:], "residual": out}


def _case(name, inputs, activations, run=_by(fused), **more):
    """By `fused`, which is not what tfuse.linear does where there is no GPU."""
    return Case(name=name, run=run, plain=_naive, reference=_reference, gradient=_gradient, fit=fit, special=False,
                inputs={i: _INPUTS[i] for i in ("x", "kernel", *inputs)}, outputs={"value": out}, shapes=_SHAPES,
                summed=longest_axis, options=each("activation", activations), **more)


def elements(shape, kernels=1):
    """What is read and written at least: x, kernel and the result, or those and their gradients."""
    *rows, inputs, outputs = shape
    return twice(volume(rows) * (inputs + outputs) + kernels * inputs * outputs)


def _timed(name, activations, sizes, bars=()):
    return Timed(_case(name, ["bias"], activations, _by(tfuse.linear)), sizes, elements=elements, flops=product_flops,
                 cpu_sizes=[(512, 768, 768)], pace=lambda x, kernel, bias: tf.matmul(x, kernel),
                 bars={("bfloat16", shape, (("activation", a),)): limits for a, shape, limits in bars})


_LARGE, _GPT2_INSIDE = (8192, 4096, 16384), (16384, 768, 3072)
_GPT2 = [(16384, 768, 2304), (16384, 768, 768), (16384, 3072, 768)]
_refused = refusing(tfuse.linear, x=ones(2, 3), kernel=ones(3, 5))

CASES = [
    _case("linear", ["bias"], PLAIN, rejects=[
        _refused("the last axis of x and the first of kernel must be of one size, got shapes .2, 3. and .4, 5.",
                 kernel=ones(4, 5)),
        _refused("x must be ...., inputs. with two dimensions or more, got shape .3.", x=ones(3)),
        _refused("kernel must be .inputs, outputs., got shape .3.", kernel=ones(3)),
        _refused("bias must be a vector with one value per output, the last axis of kernel .3, 5., got shape .4.",
                 bias=ones(4)),
        _refused("residual must have the shape of x . kernel, .2, 5., got .2, 4.", residual=ones(2, 4)),
        _refused("linear: kernel must be float32 like x, got float16", kernel=ones(3, 5, dtype=tf.float16)),
        _refused("activation must be one of linear, relu, .*got 'swoosh'", activation="swoosh"),
    ]),
    _case("linear, product only", [], ["linear", "gelu_tanh", "relu"]),
    _case("linear, residual", ["bias", "residual"], ["linear", "relu", "gelu_tanh", "silu"]),
]
TIMES = [
    _timed("linear, speed", ["linear", "gelu_tanh", "gelu", "silu"], [_LARGE], [
        ("gelu_tanh", _LARGE, {"of_matmul": 92, "both_of_matmul": 90}),
        ("gelu", _LARGE, {"of_matmul": 88, "both_of_matmul": 88}),
        ("silu", _LARGE, {"of_matmul": 88, "both_of_matmul": 88})]),
    _timed("linear, GPT-2", ["linear"], _GPT2, [("linear", shape, AHEAD) for shape in _GPT2]),
    _timed("linear, GPT-2 inside", ["gelu_tanh"], [_GPT2_INSIDE], [("gelu_tanh", _GPT2_INSIDE, AHEAD)]),
]
