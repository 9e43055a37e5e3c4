import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, longest_axis, of_terms
from tfuse.cases.elementwise.scale_bias_act import slope, value
from tfuse.cases.products.linear import fit, rows, weights
from tfuse.elementwise.scale_bias_act import PLAIN

# A case's shape is (…, inputs, outputs): x is all of it but the last. Of a few results, which of two products is rounded
# worse is luck.
_SHAPES = [(2, 3, 8, 7), (1, 1, 1, 1), (0, 4, 8, 5), (2, 3, 0, 5), (1, 7, 3, 129), (1, 129, 130, 67),
           (3, 43, 257, 16), (2, 260, 40, 200)]
_SIZE = (8192, 4096, 11008)
_ALL = [{"activation": name} for name in ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")]


def _sides(x, kernel, bias):
    """Both products side by side, and how large the terms are that they are sums of."""
    bias = 0 if bias is None else bias
    both, terms = x @ kernel + bias, np.sqrt((x * x) @ (kernel * kernel) + bias * bias)
    half = kernel.shape[-1] // 2
    return both[..., :half], both[..., half:], terms[..., :half], terms[..., half:]


def _reference(x, kernel, bias=None, activation="silu"):
    a, b, a_terms, b_terms = _sides(x, kernel, bias)
    y, bend = value(a, activation), slope(a, activation)
    return of_terms(y * b, (y * b_terms)**2 + (bend * a_terms * b)**2)


def _gradient(dy, x, kernel, bias=None, activation="silu"):
    """A slope is that at a sum, which is rounded: what that does to it is a term, too."""
    a, b, a_terms, b_terms = _sides(x, kernel, bias)
    y, bend, step = value(a, activation), slope(a, activation), 1e-4
    curve = (slope(a + step, activation) - slope(a - step, activation)) / (2 * step)
    d = dy[..., None] * np.stack([b * bend, y], -1)
    d2 = (d * d + (dy[..., None] * np.stack([bend * b_terms + b * curve * a_terms, bend * a_terms], -1))**2)
    d, d2 = (np.concatenate([t[..., 0], t[..., 1]], -1) for t in (d, d2))
    gradients = [of_terms(d @ kernel.T, d2 @ (kernel * kernel).T), of_terms(rows(x).T @ rows(d), rows(x * x).T @ rows(d2))]
    return gradients if bias is None else [*gradients, of_terms(rows(d).sum(0), rows(d2).sum(0))]


def _of_pair(f):
    """The same of two kernels."""
    def with_pair(*inputs, activation):
        *dy, x, gate, up = inputs
        got = f(*dy, x, np.concatenate([gate, up], -1), activation=activation)
        if not dy:
            return got
        dx, dkernel = got
        half = gate.shape[-1]
        return [dx, *(of_terms(np.asarray(dkernel)[:, part], dkernel.terms[:, part]**2) for part in (
            slice(half), slice(half, None)))]

    return with_pair


def _naive(x, kernel, bias=None, activation="silu"):
    y = tf.matmul(x, kernel) if len(x.shape) == 2 else tf.tensordot(x, kernel, 1)
    a, b = tf.split(y if bias is None else y + bias, 2, -1)
    return PLAIN[activation](a) * b


def _naive_pair(x, gate, up, activation):
    return PLAIN[activation](tf.tensordot(x, gate, 1)) * tf.tensordot(x, up, 1)


def _elements(direction, shape, options):
    """What is read and written at least: x, kernel and the result, or those and their gradients."""
    *rows, inputs, outputs = shape
    once = int(np.prod(rows)) * (inputs + outputs) + 2 * inputs * outputs
    return once if direction == "forward" else 2 * once


_X, _OUT = (lambda shape: shape[:-1]), {"value": lambda shape: (*shape[:-2], shape[-1])}
_KERNEL = Input(lambda shape: (shape[-2], 2 * shape[-1]), weights)
_HALF = Input(lambda shape: shape[-2:], weights)
_COMMON = {"outputs": _OUT, "fit": fit, "special": False, "elements": _elements, "summed": longest_axis}

CASES = [
    Case(name="gated_linear", run=tfuse.gated_linear, plain=_naive, reference=_reference, gradient=_gradient,
         inputs={"x": _X, "kernel": _KERNEL, "bias": lambda shape: (2 * shape[-1],)}, options=_ALL, shapes=_SHAPES, sizes=[],
         rejects=[
             ("the last axis of x and the first of kernel must be of one size, got shapes .2, 3. and .4, 6.",
              lambda: tfuse.gated_linear(tf.ones([2, 3]), tf.ones([4, 6]))),
             ("the last axis of a must be two halves of one size, got shape .2, 5.",
              lambda: tfuse.gated_linear(tf.ones([2, 3]), tf.ones([3, 5]))),
             ("gated_linear: bias must be a pair where kernel is one, got one vector",
              lambda: tfuse.gated_linear(tf.ones([2, 3]), (tf.ones([3, 5]), tf.ones([3, 5])), tf.ones([10]))),
             ("gated_linear: bias must be one vector where kernel is one matrix, got a pair",
              lambda: tfuse.gated_linear(tf.ones([2, 3]), tf.ones([3, 10]), (tf.ones([5]), tf.ones([5])))),
             ("b must have the shape of a, .2, 5., got .2, 6.",
              lambda: tfuse.gated_linear(tf.ones([2, 3]), (tf.ones([3, 5]), tf.ones([3, 6])))),
             ("activation must be one of linear, relu, .*got 'swoosh'",
              lambda: tfuse.gated_linear(tf.ones([2, 3]), tf.ones([3, 4]), activation="swoosh")),
         ], **_COMMON),
    Case(name="gated_linear, two kernels", run=lambda x, gate, up, activation: tfuse.gated_linear(x, (gate, up), None, activation),
         plain=_naive_pair, reference=_of_pair(_reference), gradient=_of_pair(_gradient),
         inputs={"x": _X, "gate": _HALF, "up": _HALF}, options=_ALL[:2],
         shapes=[*_SHAPES, (2, 3, 8, 0)], sizes=[], **_COMMON),
    Case(name="gated_linear, speed", run=tfuse.gated_linear, plain=_naive, reference=_reference, gradient=_gradient,
         inputs={"x": _X, "kernel": _KERNEL}, options=_ALL[:2], shapes=[], sizes=[_SIZE], cpu_sizes=[(512, 768, 1024)],
         flops=lambda direction, shape, options: (4 if direction == "forward" else 8) * int(np.prod(shape)),
         pace=tf.matmul, bars={("bfloat16", _SIZE): {"of_matmul": 90}}, **_COMMON),
]
