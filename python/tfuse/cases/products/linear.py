import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, longest_axis, of_terms, product_flops
from tfuse.cases.elementwise.scale_bias_act import slopes, value
from tfuse.elementwise.scale_bias_act import PLAIN
from tfuse.products.linear import fused

# A case's shape is (…, inputs, outputs): x is all of it but the last.
_SHAPES = [(2, 3, 8, 5), (1, 1, 1, 1), (0, 4, 8, 5), (2, 3, 0, 5), (2, 3, 8, 0), (1, 7, 3, 129), (1, 129, 130, 67),
           (3, 43, 257, 16), (1, 5, 1000, 3), (2, 260, 40, 200)]


def fit(shape):
    if len(shape) == 4:
        return shape
    rows = int(np.prod(shape[:-1]))
    return (min(rows, 2), min(rows, 33), min(shape[-1], 150), 70)


def rows(t):
    return t.reshape(int(np.prod(t.shape[:-1])), t.shape[-1])


def _out(shape):
    return (*shape[:-2], shape[-1])


def _reference(x, kernel, bias=None, residual=None, activation="linear"):
    pre = x @ kernel + (0 if bias is None else bias)
    squares = (x * x) @ (kernel * kernel) + (0 if bias is None else bias * bias)
    y = value(pre, activation)
    return of_terms(y if residual is None else y + residual, squares + (0 if residual is None else residual**2))


def _gradient(dy, x, kernel, bias=None, residual=None, activation="linear"):
    add = 0 if bias is None else bias
    g, g2 = slopes(dy, x @ kernel + add, (x * x) @ (kernel * kernel) + add * add, activation)
    gradients = [of_terms(g @ kernel.T, g2 @ (kernel * kernel).T),
                 of_terms(rows(x).T @ rows(g), rows(x * x).T @ rows(g2))]
    if bias is not None:
        gradients.append(of_terms(rows(g).sum(0), rows(g2).sum(0)))
    return gradients if residual is None else [*gradients, dy]


def _naive(x, kernel, bias=None, residual=None, activation="linear"):
    """As Keras's Dense computes it."""
    y = tf.matmul(x, kernel) if len(x.shape) == 2 else tf.tensordot(x, kernel, 1)
    y = PLAIN[activation](y if bias is None else y + bias)
    return y if residual is None else y + residual


def _run(x, kernel, bias=None, residual=None, activation=None):
    return tfuse.linear(x, kernel, bias, activation, residual)


def _fused(x, kernel, bias=None, residual=None, activation=None):
    """Not what tfuse.linear does where there is no GPU."""
    return fused(x, kernel, bias, activation, residual)


def _elements(direction, shape, options):
    """What is read and written at least: x, kernel and the result, or those and their gradients."""
    *rows, inputs, outputs = shape
    once = int(np.prod(rows)) * (inputs + outputs) + inputs * outputs
    return once if direction == "forward" else 2 * once


def weights(rng, own, shape):
    """So that results are as large as what they are made of."""
    return rng.normal(size=own) / np.sqrt(max(own[0], 1))


_INPUTS = {"x": lambda shape: shape[:-1], "kernel": Input(lambda shape: shape[-2:], weights),
           "bias": lambda shape: shape[-1:], "residual": _out}


def case(name, inputs, options, **more):
    return Case(name=name, plain=_naive, reference=_reference, gradient=_gradient, fit=fit, special=False,
                inputs={i: _INPUTS[i] for i in ("x", "kernel", *inputs)}, outputs={"value": _out}, elements=_elements,
                summed=longest_axis, options=[{"activation": a} for a in options],
                **{"run": _fused, "shapes": _SHAPES, "sizes": [], **more})


def timed(name, options, sizes, bars=(), **more):
    """A case that only the benchmark has."""
    return case(name, ["bias"], options, run=_run, shapes=[], sizes=sizes, flops=product_flops, cpu_sizes=[(512, 768, 768)],
                pace=lambda x, kernel, bias: tf.matmul(x, kernel),
                bars={("bfloat16", shape, (("activation", a),)): limits for a, shape, limits in bars}, **more)


_LARGE, _GPT2, _GPT2_INSIDE = (8192, 4096, 16384), [(16384, 768, 2304), (16384, 768, 768), (16384, 3072, 768)], (16384, 768, 3072)
_AHEAD = {"of_XLA": 1.0, "of_torch": 1.0}

CASES = [
    case("linear", ["bias"], PLAIN, rejects=[
        ("the last axis of x and the first of kernel must be of one size, got shapes .2, 3. and .4, 5.",
         lambda: tfuse.linear(tf.ones([2, 3]), tf.ones([4, 5]))),
        ("x must be ...., inputs. with two dimensions or more, got shape .3.",
         lambda: tfuse.linear(tf.ones([3]), tf.ones([3, 5]))),
        ("kernel must be .inputs, outputs., got shape .3.", lambda: tfuse.linear(tf.ones([2, 3]), tf.ones([3]))),
        ("bias must be a vector with one value per output, the last axis of kernel .3, 5., got shape .4.",
         lambda: tfuse.linear(tf.ones([2, 3]), tf.ones([3, 5]), tf.ones([4]))),
        ("residual must have the shape of x . kernel, .2, 5., got .2, 4.",
         lambda: tfuse.linear(tf.ones([2, 3]), tf.ones([3, 5]), residual=tf.ones([2, 4]))),
        ("linear: kernel must be float32 like x, got float16",
         lambda: tfuse.linear(tf.ones([2, 3]), tf.ones([3, 5], tf.float16))),
        ("activation must be one of linear, relu, .*got 'swoosh'",
         lambda: tfuse.linear(tf.ones([2, 3]), tf.ones([3, 5]), activation="swoosh")),
    ]),
    case("linear, product only", [], ["linear", "gelu_tanh", "relu"]),
    case("linear, residual", ["bias", "residual"], ["linear", "relu", "gelu_tanh", "silu"]),
    timed("linear, speed", ["linear", "gelu_tanh", "gelu", "silu"], [_LARGE], [
        ("gelu_tanh", _LARGE, {"of_matmul": 92, "both_of_matmul": 90}),
        ("gelu", _LARGE, {"of_matmul": 88, "both_of_matmul": 88}),
        ("silu", _LARGE, {"of_matmul": 88, "both_of_matmul": 88})]),
    timed("linear, GPT-2", ["linear"], _GPT2, [("linear", shape, _AHEAD) for shape in _GPT2]),
    timed("linear, GPT-2 inside", ["gelu_tanh"], [_GPT2_INSIDE], [("gelu_tanh", _GPT2_INSIDE, _AHEAD)]),
]
