import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, each, longest_axis, of_terms, ones, refusing, squares, twice, volume
from tfuse.cases.elementwise.scale_bias_act import curve, slope, value
from tfuse.cases.products.linear import elements, fit, gradients, naive_product, out, product, weights
from tfuse.elementwise.scale_bias_act import PLAIN

# A case's shape is (…, inputs, outputs): x is all of it but the last. Of a few results, which of two products is rounded
# worse is luck.
_SHAPES = [(2, 3, 8, 7), (1, 1, 1, 1), (0, 4, 8, 5), (2, 3, 0, 5), (1, 7, 3, 129), (1, 129, 130, 67),
           (3, 43, 257, 16), (2, 260, 40, 200)]
_SIZE = (8192, 4096, 11008)
_ALL = each("activation", ["silu", "gelu", "gelu_tanh", "relu", "sigmoid"])


def _sides(x, kernel, bias):
    """Both products side by side, and how large the terms are that they are sums of."""
    both = product(x, kernel, bias)
    return [*np.split(np.asarray(both), 2, -1), *np.split(both.terms, 2, -1)]


def _reference(x, kernel, bias=None, activation="silu"):
    a, b, a_terms, b_terms = _sides(x, kernel, bias)
    y, bend = value(a, activation), slope(a, activation)
    return of_terms(y * b, (y * b_terms)**2 + (bend * a_terms * b)**2)


def _gradient(dy, x, kernel, bias=None, activation="silu"):
    """A slope is that at a sum, which is rounded: what that does to it is a term, too."""
    a, b, a_terms, b_terms = _sides(x, kernel, bias)
    y, bend = value(a, activation), slope(a, activation)
    both = lambda left, right: np.concatenate([dy * left, dy * right], -1)
    d, rounded = both(b * bend, y), both(bend * b_terms + b * curve(a, activation) * a_terms, bend * a_terms)
    return gradients(of_terms(d, d * d + rounded**2), x, kernel, bias)


def _of_pair(f):
    """The same of two kernels."""
    def with_pair(*inputs, activation):
        *dy, x, gate, up = inputs
        got = f(*dy, x, np.concatenate([gate, up], -1), activation=activation)
        if not dy:
            return got
        dx, dkernel = got
        return [dx, *(of_terms(*part) for part in zip(*(np.split(t, 2, -1) for t in (np.asarray(dkernel), squares(dkernel)))))]

    return with_pair


def _naive(x, kernel, bias=None, activation="silu"):
    y = naive_product(x, kernel)
    a, b = tf.split(y if bias is None else y + bias, 2, -1)
    return PLAIN[activation](a) * b


def _naive_pair(x, gate, up, activation):
    return PLAIN[activation](tf.tensordot(x, gate, 1)) * tf.tensordot(x, up, 1)


_KERNEL, _HALF = Input(lambda shape: (shape[-2], 2 * shape[-1]), weights), Input(lambda shape: shape[-2:], weights)


def _case(name, inputs, run=tfuse.gated_linear, plain=_naive, reference=_reference, gradient=_gradient, **more):
    return Case(name=name, run=run, plain=plain, reference=reference, gradient=gradient, fit=fit, special=False,
                inputs={"x": lambda shape: shape[:-1], **inputs}, outputs={"value": out}, summed=longest_axis,
                **{"shapes": _SHAPES, "options": _ALL[:2], **more})


_refused = refusing(tfuse.gated_linear, x=ones(2, 3))
CASES = [
    _case("gated_linear", {"kernel": _KERNEL, "bias": lambda shape: (2 * shape[-1],)}, options=_ALL, rejects=[
        _refused("the last axis of x and the first of kernel must be of one size, got shapes .2, 3. and .4, 6.",
                 kernel=ones(4, 6)),
        _refused("the last axis of a must be two halves of one size, got shape .2, 5.", kernel=ones(3, 5)),
        _refused("gated_linear: bias must be a pair where kernel is one, got one vector",
                 kernel=(ones(3, 5), ones(3, 5)), bias=ones(10)),
        _refused("gated_linear: bias must be one vector where kernel is one matrix, got a pair",
                 kernel=ones(3, 10), bias=(ones(5), ones(5))),
        _refused("b must have the shape of a, .2, 5., got .2, 6.", kernel=(ones(3, 5), ones(3, 6))),
        _refused("activation must be one of linear, relu, .*got 'swoosh'", kernel=ones(3, 4), activation="swoosh"),
    ]),
    _case("gated_linear, two kernels", {"gate": _HALF, "up": _HALF}, plain=_naive_pair, reference=_of_pair(_reference),
          gradient=_of_pair(_gradient), shapes=[*_SHAPES, (2, 3, 8, 0)],
          run=lambda x, gate, up, activation: tfuse.gated_linear(x, (gate, up), None, activation)),
]
TIMES = [Timed(_case("gated_linear, speed", {"kernel": _KERNEL}), [_SIZE], cpu_sizes=[(512, 768, 1024)], pace=tf.matmul,
               elements=lambda shape: elements(shape, kernels=2), flops=lambda shape, options: twice(4 * volume(shape)),
               bars={("bfloat16", _SIZE): {"of_matmul": 90}})]
