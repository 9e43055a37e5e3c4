import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, fitting, longest_axis, ones, product_flops, refusing, sums, twice, volume
from tfuse.products.batched_matmul import fused

# A case's shape is (…, m, k, n), the batch first. None has a batch of [several, 1]: with oneDNN, TensorFlow's own product of
# such a batch with one matrix reads beyond its input and ends the process (tensorflow/tensorflow issue 117700).
_SHAPES = [(2, 3, 4, 8, 5), (1, 1, 1, 1, 1), (0, 3, 4, 8, 5), (2, 0, 4, 8, 5), (2, 3, 0, 8, 5), (2, 3, 4, 0, 5),
           (2, 3, 4, 8, 0), (2, 2, 129, 130, 67), (1, 3, 43, 257, 16), (3, 2, 7, 3, 129), (2, 2, 1, 1000, 3)]
_fit = fitting(5, lambda rows, columns: (min(rows, 2), min(rows, 3), min(rows, 33), min(columns, 150), 40))


def _transposed(x, transpose):
    return np.swapaxes(x, -1, -2) if transpose else x


def _summed(x, shape):
    """Over what was stretched."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(i for i, size in enumerate(shape) if size == 1), keepdims=True) if 1 in shape else x


def _reference(a, b, transpose_a=False, transpose_b=False, scale=1.0):
    return sums(lambda a, b, scale: scale * (a @ b), _transposed(a, transpose_a), _transposed(b, transpose_b), scale)


def _gradient(dy, a, b, transpose_a=False, transpose_b=False, scale=1.0):
    def product(x, y, like, transpose):
        shape = _transposed(like, transpose).shape
        return sums(lambda x, y, scale: _transposed(_summed(scale * (x @ y), shape), transpose), x, y, scale)

    left, right = _transposed(a, transpose_a), _transposed(b, transpose_b)
    return [product(dy, _transposed(right, True), a, transpose_a), product(_transposed(left, True), dy, b, transpose_b)]


def _naive(a, b, transpose_a=False, transpose_b=False, scale=1.0):
    y = tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    return y if scale == 1 else y * tf.cast(scale, y.dtype)


def elements(shape):
    """What is read and written at least: a, b and the result, or those and their gradients."""
    *batch, m, k, n = shape
    return twice(volume(batch) * (m * k + k * n + m * n))


def _case(name, a, b, options, run=fused, **more):
    """a and b: which axes of the batch they have, or "-" for an axis of size 1."""
    transpose_a, transpose_b = (options[0].get(transpose, False) for transpose in ("transpose_a", "transpose_b"))
    matrix = lambda batch, rows, cols, transposed: lambda shape: (
        *(1 if i == "-" else shape[int(i)] for i in batch),
        *((shape[cols], shape[rows]) if transposed else (shape[rows], shape[cols])))
    weights = lambda rng, own, shape: rng.normal(size=own) / np.sqrt(max(shape[-2], 1))
    return Case(name=name, run=run, plain=_naive, reference=_reference, gradient=_gradient, fit=_fit, special=False,
                inputs={"a": matrix(a, -3, -2, transpose_a), "b": Input(matrix(b, -2, -1, transpose_b), weights)},
                outputs={"value": lambda shape: (*shape[:-3], shape[-3], shape[-1])}, options=options, summed=longest_axis,
                shapes=_SHAPES, **more)


_TIMED = (64, 1024, 128, 1024)
_refused = refusing(tfuse.batched_matmul, a=ones(2, 3), b=ones(3, 5))
CASES = [
    _case("batched_matmul", "01", "01", [{}, {"scale": 0.25}], rejects=[
        _refused("the last axis of a and the last but one of b must be of one size, got shapes .5, 2, 3. and .5, 4, 6.",
                 a=ones(5, 2, 3), b=ones(5, 4, 6)),
        _refused("got shapes .2, 3. transposed and .4, 6. transposed", b=ones(4, 6), transpose_a=True, transpose_b=True),
        _refused("a must be ...., rows, columns. with two dimensions or more, got shape .3.", a=ones(3)),
        _refused("b must be ...., rows, columns. with two dimensions or more, got shape .3.", b=ones(3)),
        _refused("the axes of a and b before the last two must broadcast, got shapes .2, 2, 3. and .3, 3, 5.",
                 a=ones(2, 2, 3), b=ones(3, 3, 5)),
        _refused("batched_matmul: b must be float32 like a, got float16", b=ones(3, 5, dtype=tf.float16)),
        _refused("batched_matmul: a must be float32, float16, bfloat16 or float64, got int32",
                 a=ones(2, 3, dtype=tf.int32), b=ones(3, 5, dtype=tf.int32)),
    ]),
    _case("batched_matmul, b transposed", "01", "01", [{"transpose_b": True}]),
    _case("batched_matmul, a transposed", "01", "01", [{"transpose_a": True, "scale": -2.0}]),
    _case("batched_matmul, both transposed", "01", "01", [{"transpose_a": True, "transpose_b": True}]),
    _case("batched_matmul, one b", "01", "", [{}]),
    _case("batched_matmul, one b, transposed", "01", "", [{"transpose_b": True}]),
    _case("batched_matmul, one a", "", "01", [{}]),
    _case("batched_matmul, one b for the inner axis", "01", "0-", [{}]),
    _case("batched_matmul, every a with every b", "1", "0-", [{}]),
    _case("batched_matmul, every a with every b, transposed", "1", "0-", [{"transpose_a": True, "transpose_b": True}]),
]
TIMES = [Timed(_case("batched_matmul, speed", "0", "0", [{}], tfuse.batched_matmul), [_TIMED], cpu_sizes=[(16, 256, 128, 256)],
               elements=elements, flops=product_flops, bars={("bfloat16", _TIMED): {"torch": 1.0}})]
