"""Projections: products of one x, normed or not, with several kernels."""

import numpy as np
import pytest
import tensorflow as tf
from projecting import composed

from tfuse._core import _library
from tfuse._tools import _tune

op = _library.raw("projections")
RNG = np.random.default_rng(3)


@pytest.fixture(params=["", "few_rows_most", "wgmma_rows_most"])
def few_rows(request):
    """On a GPU one of the kernels for few rows is used for all that it can serve, or none."""
    both = [t for t in _tune.tunables() if t.stem == "projections"]
    for most in both:
        most.put(most.most if most.name == request.param else 0)
    yield request.param
    for most in both:
        most.put(most.value)


def given(shape, dtype):
    return tf.cast(tf.constant(RNG.normal(size=shape) / (shape[0]**0.5 if len(shape) > 1 else 1)), dtype)


def run(x, gamma, kernels, biases, residual=None, **attributes):
    empty = tf.zeros([0], x.dtype)
    more = [empty] * (3 - len(kernels))
    filled = lambda tensors: [empty if t is None else t for t in tensors]
    none = tf.zeros([0], tf.float64 if x.dtype == tf.float64 else tf.float32)
    found = op(x, none if gamma is None else gamma, *kernels, *more, *filled(biases), *more, *filled([residual]), epsilon=1e-5,
               **attributes)
    return [y for y in found if y.shape.rank > 1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 9, 33, 150])
@pytest.mark.parametrize("kind", ["three", "gated", "residual", "plain, gated"])
def test_values(few_rows, device, kind, rows, dtype):
    inputs, sizes = 352, {"three": (136, 64, 40), "residual": (72,)}.get(kind, (104, 104))
    real = "float64" if dtype == "float64" else "float32"
    x = 3 * given([rows, inputs], dtype) * inputs**0.5
    gamma = None if "plain" in kind else 1 + given([inputs], real) / 4
    kernels = [given([inputs, size], dtype) for size in sizes]
    biases = [given([size], dtype) if i % 2 == 0 else None for i, size in enumerate(sizes)]
    options = {"gated": {"activation": "silu", "gated": True}, "plain, gated": {"activation": "silu", "gated": True}}.get(kind, {})
    residual = given([rows, sizes[0]], dtype) if kind == "residual" else None
    arguments = x, gamma, kernels, biases, residual
    wanted, naive = (composed(t, *arguments, **options) for t in ("float64", dtype))
    found = run(*arguments, **options)
    assert len(found) == len(wanted)
    for y, want, other in zip(found, wanted, naive):
        error = lambda got: np.sqrt(np.mean(np.square(tf.cast(got, "float64") - want)))
        assert error(y) <= max(2 * error(other), 1e-13 * np.abs(want).max())


@pytest.mark.parametrize("gated", [False, True])
def test_a_row_by_itself(few_rows, device, gated):
    """Has the same bits as among others, where the kernel for few rows serves both, on GPUs that have clusters."""
    x, kernels = given([12, 256], "bfloat16"), [given([256, 128], "bfloat16") for _ in range(2)]
    gamma, biases = tf.ones([256]), [None, None]
    for alone, among in zip(run(x[5:6], gamma, kernels, biases, gated=gated), run(x, gamma, kernels, biases, gated=gated)):
        alone, among = (tf.cast(y, "float32") for y in (alone[0], among[5]))
        if few_rows and "GPU" in device:
            np.testing.assert_array_equal(alone, among)
        np.testing.assert_allclose(alone, among, rtol=0.02, atol=0.02)


def test_refusals():
    x, kernel = tf.ones([2, 8]), tf.ones([8, 4])
    refused = lambda text: pytest.raises(tf.errors.InvalidArgumentError, match=text)
    with refused("x must be .*two dimensions or more, got shape .8."):
        run(x[0], None, [kernel], [None])
    with refused("the last axis of x and the first of kernel_b must be of one size, got shapes .2, 8. and .7, 4."):
        run(x, None, [kernel, kernel[1:]], [None, None])
    with refused("kernel_a must be .inputs, outputs., got shape .8, 4, 1."):
        run(x, None, [kernel[..., None]], [None])
    with refused("bias_a must be a vector with one value per output of kernel_a, got shapes .3. and .8, 4."):
        run(x, None, [kernel], [tf.ones([3])])
    with refused("gamma must have 8 values"):
        run(x, tf.ones([7]), [kernel], [None])
    with refused("a gated unit has kernel_a and kernel_b alone"):
        run(x, None, [kernel, kernel], [None, None], tf.ones([2, 4]), gated=True)
