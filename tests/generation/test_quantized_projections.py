"""QuantizedProjections: Projections with kernels in tiles of 8 and 4 bits, whatever kernel of the GPU serves them."""

import numpy as np
import pytest
import tensorflow as tf
from projecting import composed

import tfuse
from tfuse._core import _library
from tfuse._tools import _tune

op = _library.raw("quantized_projections")
RNG = np.random.default_rng(3)


@pytest.fixture(params=[False, True], ids=["", "few rows"])
def few_rows(request):
    """On a GPU the kernel for few rows is used for nothing, or for all that it can serve."""
    all_ = [t for t in _tune.tunables() if t.name == "tiled_rows_most"]
    assert {t.stem for t in all_} == {"quantized_linear", "quantized_projections"}
    for most in all_:
        most.put(most.most if request.param else 0)
    yield request.param
    for most in all_:
        most.put(most.value)


def given(shape, dtype, size=1):
    return tf.cast(tf.constant(RNG.normal(size=shape) * size), dtype)


def quantized(inputs, outputs, bits, group, table):
    """Tiles, scales of the dtype `table`, and the kernel in float64 that these stand for."""
    groups, most = -(-inputs // (group or inputs)), 2**bits
    codes = RNG.integers(0, most, [inputs, outputs])
    scale = tf.cast(RNG.uniform(0.5, 1.5, [groups, outputs]) * (1 / 5 if bits == 4 else 1 / 73) / inputs**0.5, table)
    zero = RNG.integers(most // 4, most // 2, [groups, outputs])
    of = np.arange(inputs) // (group or inputs)
    w = (codes - zero[of]) * tf.cast(scale, "float64").numpy()[of]
    rows = codes[:, ::2] + 16 * np.pad(codes[:, 1::2], [[0, 0], [0, outputs % 2]]) if bits == 4 else codes
    wide = tf.cast(scale, "float64" if table == "float64" else "float32")
    tiles, scales = tfuse.pack_kernel(tf.constant(rows, tf.uint8), wide, tf.constant(zero, tf.uint8), bits=bits, group=group)
    return tiles, tf.cast(scales, table), w


def run(x, gamma, kernels, biases, residual=None, **attributes):
    real = tf.float64 if x.dtype == tf.float64 else tf.float32
    more = 3 - len(kernels)
    empty = lambda t, dtype: tf.zeros([0], dtype) if t is None else t
    found = op(x, empty(gamma, real), *(k[0] for k in kernels), *[tf.zeros([0], tf.uint8)] * more,
               *(empty(b, x.dtype) for b in [*biases, *[None] * more, residual]), *(k[1] for k in kernels),
               *[tf.zeros([0], kernels[0][1].dtype)] * more, epsilon=1e-5, **attributes)
    return [y for y in found if y.shape.rank > 1]


def rounded(x):
    wide = tf.cast(x, tf.float32) if x.dtype != tf.float64 else x
    by = 127 / (tf.reduce_max(tf.abs(wide), -1, keepdims=True) + 1e-7)
    return tf.cast(tf.round(wide * by) / by, x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 9, 33])
@pytest.mark.parametrize("bits, group", [(8, 0), (4, 0), (4, 64), (4, 128), (4, 48), (8, 128)])
@pytest.mark.parametrize("kind", ["three", "gated", "residual", "plain, gated"])
def test_values(few_rows, device, kind, bits, group, rows, dtype):
    inputs, sizes = 384, {"three": (136, 64, 40), "residual": (72,)}.get(kind, (104, 104))
    real = "float64" if dtype == "float64" else "float32"
    x = 3 * given([rows, inputs], dtype)
    gamma = None if "plain" in kind else 1 + given([inputs], real, 0.25)
    kernels = [quantized(inputs, size, bits, group, dtype if rows == 9 else real) for size in sizes]
    biases = [given([size], dtype) if i % 2 == 0 else None for i, size in enumerate(sizes)]
    options = {"activation": "silu", "gated": True} if "gated" in kind else {}
    residual = given([rows, sizes[0]], dtype) if kind == "residual" else None
    arguments = x, gamma, kernels, biases, residual
    wanted, naive = (composed(t, x, gamma, [k[2] for k in kernels], biases, residual, **options) for t in ("float64", dtype))
    found = run(*arguments, bits=bits, group=group, **options)
    assert len(found) == len(wanted)
    for y, want, other in zip(found, wanted, naive):
        error = lambda got: np.sqrt(np.mean(np.square(tf.cast(got, "float64") - want)))
        assert error(y) <= max(2 * error(other), 1e-12 * np.abs(want).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounded_rows(few_rows, device, dtype):
    """Of what is not normed, which the norm's own rounding would change."""
    x, kernels = given([5, 128], dtype), [quantized(128, 24, 8, 0, "float32")]
    (found,) = run(x, None, kernels, [None], quantize_rows=True)
    (want,) = composed("float64", rounded(tf.cast(x, "float32")), None, [kernels[0][2]], [None])
    np.testing.assert_allclose(tf.cast(found, "float64"), want, rtol=0.01, atol=0.01 if dtype == "bfloat16" else 1e-5)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("gated", [False, True])
def test_rows_that_are_rounded_for_several_products(few_rows, device, gated, rows, bits):
    """Normed first: as when a call norms, and others round what it gives, each for a product of its own."""
    x, gamma = given([rows, 256], "bfloat16"), 1 + given([256], "float32", 0.25)
    kernels = [quantized(256, size, bits, 0, "float32") for size in ((64, 64) if gated else (72, 64, 8))]
    biases, how = [given([k[2].shape[1]], "bfloat16") for k in kernels], {"bits": bits, "quantize_rows": True}
    normed = tfuse.rms_norm(x, gamma, epsilon=1e-5)
    apart = [run(normed, None, [kernel], [bias], **how)[0] for kernel, bias in zip(kernels, biases)]
    if gated:
        apart = [tfuse.gated(*apart, activation="silu")]
        how.update(gated=True, activation="silu")
    found = run(x, gamma, kernels, biases, **how)
    assert len(found) == len(apart)
    for y, want in zip(found, apart):
        np.testing.assert_allclose(tf.cast(y, "float32"), tf.cast(want, "float32"), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_by_itself(few_rows, device, bits, gated):
    """Has the same bits as among others, where the kernel for few rows serves both, on GPUs that have clusters."""
    x, kernels = given([36, 512], "bfloat16"), [quantized(512, 128, bits, 128, "bfloat16") for _ in range(2)]
    arguments = tf.ones([512]), kernels, [None, None]
    how = {"bits": bits, "group": 128, "gated": gated}
    for alone, among in zip(run(x[33:34], *arguments, **how), run(x, *arguments, **how)):
        alone, among = (tf.cast(y, "float32") for y in (alone[0], among[33]))
        if few_rows and "GPU" in device:
            np.testing.assert_array_equal(alone, among)
        np.testing.assert_allclose(alone, among, rtol=0.02, atol=0.02)


def test_refusals():
    x, kernel, scale = tf.ones([2, 16]), tf.zeros([1, 1, 1024], tf.uint8), tf.ones([1, 2, 4])
    refused = lambda text: pytest.raises(tf.errors.InvalidArgumentError, match=text)
    with refused("x must be .*two dimensions or more, got shape .16."):
        run(x[0], None, [(kernel, scale)], [None])
    with refused("kernel_a, tiles of 4 bits, must be .1, tiles down, 512. for a scale of .*got shape .1, 1, 1024."):
        run(x, None, [(kernel, scale)], [None], bits=4)
    with refused("scale_a must be .groups, 2, outputs., got shape .0."):
        run(x, None, [(kernel, tf.zeros([0]))], [None])
    with refused("scale_a must have 2 groups for 16 inputs in groups of 8, got shape .1, 2, 4."):
        run(x, None, [(kernel, scale)], [None], group=8)
    with refused("the last axis of x must be of size 32, as kernel_b has it, got shape .2, 16."):
        run(x, None, [(kernel, scale), (tf.zeros([1, 2, 1024], tf.uint8), scale)], [None, None])
    with refused("a gated unit has kernel_a and kernel_b alone"):
        run(x, None, [(kernel, scale)] * 2, [None, None], tf.ones([2, 4]), gated=True)
