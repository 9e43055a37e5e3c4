"""float8: what numbers become, kernels that are kept in it, and the scales and histories that training gets."""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse.products import float8_linear

_RNG = np.random.default_rng(0)
_CODES = np.arange(256).astype(np.uint8)
_VALUES = _CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def test_codes_are_those_of_e4m3():
    codes = float8_linear.codes_of(tf.constant(_VALUES)).numpy()
    assert np.array_equal(np.delete(codes, 255), np.delete(_CODES, 255)) and codes[255] == 127  # one NaN is as good
    np.testing.assert_array_equal(float8_linear.values_of(tf.constant(_CODES), tf.float32), _VALUES)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_numbers_are_rounded_to_the_nearest(device, dtype):
    """And what is beyond the largest to that; NaN stays. A kernel of ones shows what becomes of x."""
    halves = (_VALUES[:126] + _VALUES[1:127]) / 2  # of two neighbours, to the even one
    x = np.concatenate([_VALUES, halves, np.nextafter(halves, 0), np.nextafter(halves, 500), [500, 1e4, np.inf, np.nan, 1e-30]])
    x = tf.cast(np.concatenate([x, -x])[:, None], dtype)
    clipped = np.clip(tf.cast(x, tf.float64), -448, 448)
    want = clipped.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    got = tfuse.quantized_linear(x, tf.constant([[0x38]], tf.uint8), 1.0, float8=True, x_scale=1.0)  # 1
    np.testing.assert_array_equal(tf.cast(got, tf.float64), want)
    np.testing.assert_array_equal(float8_linear.nearest(tf.cast(x, tf.float32), float8_linear.E4M3), want.astype("float32"))


def test_a_kernel_in_float8():
    x, w = (tf.constant(_RNG.normal(size=s), tf.float32) for s in ([5, 64], [64, 32]))
    for per_output in (True, False):
        codes, scale = tfuse.float8_kernel(w, per_output)
        assert (codes.dtype, codes.shape, scale.shape) == (tf.uint8, [32, 64], [32] if per_output else [])
        kept = float8_linear.values_of(codes, tf.float32)
        columns = scale[:, None] if per_output else scale
        assert np.abs(kept).max() == 448
        assert np.abs(tf.transpose(kept * columns) - w).max() <= 2**-4 * np.abs(w).max()
        run = lambda kernel, **how: tfuse.quantized_linear(x, kernel, scale, quantize_rows=True, **how)
        want = run(codes, float8=True, order="columns")
        assert np.abs(want - x @ w).max() < 0.1 * np.abs(want).max()
        np.testing.assert_array_equal(run(tf.transpose(codes), float8=True), want)
        np.testing.assert_array_equal(run(tf.cast(kept, float8_linear.E4M3), order="columns"), want)
        divided = tfuse.quantized_linear(x, codes, 1 / scale, float8=True, order="columns", quantize_rows=True, divide=True)
        np.testing.assert_allclose(divided, want, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"float8_kernel: kernel must be a matrix of floats, got int32 of shape \(2, 2\)"):
        tfuse.float8_kernel(tf.ones([2, 2], tf.int32))


HISTORIES = {"new": [0.0, 0, 0, 0], "used": [0.5, 3, 0, 1], "of one": [7.0], "infinite": [1.0, np.inf, 2], "NaN": [np.nan, 1]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", HISTORIES)
def test_scales_and_histories_are_keras_own(device, name, dtype):
    x, kernel, dy = (tf.cast(_RNG.normal(size=s), dtype) for s in ([6, 16], [16, 32], [6, 32]))
    state = [tf.Variable(v, dtype=tf.float32) for v in (0.3, 0.01, 2.0, *3 * [HISTORIES[name]])]
    with tf.GradientTape() as tape:
        y = float8_linear.delayed(x, kernel, [tf.convert_to_tensor(s) for s in state[:3]], [
            tf.convert_to_tensor(s) for s in state[3:]])
    found = tape.gradient(y, state, dy)
    for i, (v, largest) in enumerate([(x, 448.0), (kernel, 448.0), (dy, 57344.0)]):
        scale = keras.quantizers.compute_float8_scale(tf.reduce_max(state[3 + i]), state[i], largest)
        np.testing.assert_array_equal(found[i], scale)
        np.testing.assert_array_equal(found[3 + i], keras.quantizers.compute_float8_amax_history(v, state[3 + i].value()))


def test_what_has_no_history_is_not_updated():
    x, kernel = tf.ones([4, 8]), tf.ones([8, 8])
    scales = [tf.Variable(1.0) for _ in range(3)]
    with tf.GradientTape() as tape:
        y = float8_linear.delayed(x, kernel, list(map(tf.convert_to_tensor, scales)), [None, None, tf.constant([2.0, 0])])
    assert [g is None for g in tape.gradient(y, scales)] == [True, True, False]


def test_a_kernel_in_float8_has_no_history():
    grad = tfuse._core._op.registry["Float8LinearGrad"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="a kernel that is kept in float8 has no history, got .*shape .3."):
        grad(tf.ones([2, 4]), None, tf.ones([8, 4], tf.uint8), None, tf.constant(1.0), *[None] * 2, tf.ones([3]), *[None] * 3)
