import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, each, longest_axis, ones, product_flops, refusing, sums, volume
from tfuse.cases.products.batched_matmul import elements
from tfuse.cases.products.linear import out, weights
from tfuse.products.matmul_own import KINDS

# A case's shape is (…, rows, inner, columns).
_SHAPES = [(8, 4, 16), (1, 1, 1), (7, 7, 7), (129, 129, 129), (0, 4, 5), (4, 0, 5), (4, 5, 0), (3, 5, 64, 24), (2, 0, 3, 4, 5),
           (129, 1, 7), (264, 136, 520), (2, 65, 1000, 72), (3, 4099, 2)]
_LARGE = (8192, 8192, 8192)


def _fit(shape):
    if len(shape) > 2:
        return shape
    return (min(shape[0], 33), min(shape[-1], 150), 72)


def _reference(a, b, kind="tensor"):
    return sums(np.matmul, a, b)


def _gradient(dy, a, b, kind="tensor"):
    transpose = lambda t: np.swapaxes(t, -1, -2)
    return [sums(np.matmul, dy, transpose(b)), sums(np.matmul, transpose(a), dy)]


def _elements(shape):
    """The result is not read again."""
    forward, backward = elements(shape)
    return forward, backward - volume(shape[:-2]) * shape[-1]


def _inner(shape):
    return (*shape[:-3], *shape[-2:])


def _case(name, b, **more):
    return Case(name=name, run=tfuse.matmul_own, plain=lambda a, b, kind: tf.matmul(a, b), reference=_reference,
                gradient=_gradient, fit=_fit, special=False, inputs={"a": lambda shape: shape[:-1], "b": b},
                outputs={"value": out}, summed=longest_axis, shapes=_SHAPES, options=each("kind", KINDS), **more)


_refused = refusing(tfuse.matmul_own, a=ones(2, 3), b=ones(3, 5))
CASES = [
    _case("matmul_own", Input(_inner, weights), rejects=[
        _refused("the last axis of a and the one before the last of b must be of one size, and the axes before those the same, "
                 "got shapes .2, 3. and .4, 5.", b=ones(4, 5)),
        _refused("got shapes .2, 3, 4. and .3, 4, 5.", a=ones(2, 3, 4), b=ones(3, 4, 5)),
        _refused("a must be ...., rows, inner. with two dimensions or more, got shape .3.", a=ones(3)),
        _refused("b must be ...., inner, columns. with two dimensions or more, got shape .3.", b=ones(3)),
        _refused("matmul_own: b must be float32 like a, got float16", b=ones(3, 5, dtype=tf.float16)),
        _refused("kind must be one of tensor, tiled, naive, got 'fast'", kind="fast"),
    ]),
]
TIMES = [Timed(_case("own matmul 8192³", _inner), [_LARGE], cpu_sizes=[(512, 768, 768)], pace=tf.matmul, elements=_elements,
               flops=product_flops, bars={("bfloat16", _LARGE, (("kind", "tensor"),)): {"of_matmul": 50},
                                          ("bfloat16", _LARGE, (("kind", "tiled"),)): {"times_naive": 5}})]
