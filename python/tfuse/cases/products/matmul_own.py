import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, longest_axis, of_terms, product_flops
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
    return of_terms(a @ b, (a * a) @ (b * b))


def _gradient(dy, a, b, kind="tensor"):
    turn = lambda t: np.swapaxes(t, -1, -2)
    return [of_terms(dy @ turn(b), (dy * dy) @ turn(b * b)), of_terms(turn(a) @ dy, turn(a * a) @ (dy * dy))]


def _elements(direction, shape, options):
    """What is read and written at least: a, b and the result, or those and their gradients."""
    *batch, rows, inner, columns = shape
    once = int(np.prod(batch)) * (rows * inner + inner * columns + rows * columns)
    return once if direction == "forward" else 2 * once - int(np.prod(batch)) * rows * columns


def _inner(shape):
    return (*shape[:-3], *shape[-2:])


def _weights(rng, own, shape):
    """So that results are as large as what they are made of."""
    return rng.normal(size=own) / np.sqrt(max(own[-2], 1))


def _out(shape):
    return (*shape[:-2], shape[-1])


def _naive(a, b, kind="tensor"):
    return tf.matmul(a, b)


def case(name, b, **more):
    return Case(name=name, run=tfuse.matmul_own, plain=_naive, reference=_reference, gradient=_gradient, fit=_fit,
                special=False, inputs={"a": lambda shape: shape[:-1], "b": b}, outputs={"value": _out}, elements=_elements,
                summed=longest_axis, options=[{"kind": kind} for kind in KINDS], **more)


CASES = [
    case("matmul_own", Input(_inner, _weights), shapes=_SHAPES, sizes=[], rejects=[
        ("the last axis of a and the one before the last of b must be of one size, and the axes before those the same, got "
         "shapes .2, 3. and .4, 5.", lambda: tfuse.matmul_own(tf.ones([2, 3]), tf.ones([4, 5]))),
        ("got shapes .2, 3, 4. and .3, 4, 5.", lambda: tfuse.matmul_own(tf.ones([2, 3, 4]), tf.ones([3, 4, 5]))),
        ("a must be ...., rows, inner. with two dimensions or more, got shape .3.",
         lambda: tfuse.matmul_own(tf.ones([3]), tf.ones([3, 5]))),
        ("b must be ...., inner, columns. with two dimensions or more, got shape .3.",
         lambda: tfuse.matmul_own(tf.ones([2, 3]), tf.ones([3]))),
        ("matmul_own: b must be float32 like a, got float16",
         lambda: tfuse.matmul_own(tf.ones([2, 3]), tf.ones([3, 5], tf.float16))),
        ("kind must be one of tensor, tiled, naive, got 'fast'",
         lambda: tfuse.matmul_own(tf.ones([2, 3]), tf.ones([3, 5]), kind="fast")),
    ]),
    case("own matmul 8192³", _inner, shapes=[], sizes=[_LARGE], cpu_sizes=[(512, 768, 768)], pace=tf.matmul,
         flops=product_flops,
         bars={("bfloat16", _LARGE, (("kind", "tensor"),)): {"of_matmul": 50},
               ("bfloat16", _LARGE, (("kind", "tiled"),)): {"times_naive": 5}}),
]
