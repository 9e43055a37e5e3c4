"""Resizing beyond the cases: random sizes against stock TensorFlow, large windows, and arguments of all kinds."""

import numpy as np
import tensorflow as tf

import tfuse


def _with_gradient(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return y, tape.gradient(y, x, tf.cast(tf.cos(tf.reshape(tf.range(tf.size(y), dtype=tf.float32), tf.shape(y))), y.dtype))


def _stock(x, size, interpolation, antialias, convention):
    if convention == "half_pixel":
        return tf.image.resize(x, size, interpolation, antialias=antialias)
    name = {"nearest": "nearest_neighbor"}.get(interpolation, interpolation)
    function = getattr(tf.raw_ops, "Resize" + name.title().replace("_", ""))
    return function(images=x, size=size, align_corners=convention == "align_corners")


def test_random_sizes(device):
    """Values and gradients as in stock TensorFlow, of one position, of odd channels, and of windows as large as x."""
    rng = np.random.default_rng(3)
    for _ in range(120):
        interpolation = str(rng.choice(["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"]))
        antialias = bool(rng.integers(2))
        half = antialias or interpolation.startswith("lanczos") or rng.integers(2)
        convention = "half_pixel" if half else str(rng.choice(["align_corners", "asymmetric"]))
        shape = (int(rng.integers(1, 4)), *map(int, rng.integers(1, 30, 2)), int(rng.choice([1, 3, 4, 8, 24])))
        size = [2 * n for n in shape[1:3]] if rng.integers(3) == 0 else rng.integers(1, 40, 2).tolist()
        x = tf.constant(rng.normal(size=shape), tf.float32)
        got = _with_gradient(lambda x: tfuse.resize(x, size, interpolation, antialias, convention), x)
        with tf.device("CPU:0"):  # where products are not joined with sums, which moves positions
            want = _with_gradient(lambda x: _stock(x, size, interpolation, antialias, convention), x)
        for g, w in zip(got, want):
            assert g.shape == w.shape
            what = shape, size, interpolation, antialias, convention
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=4e-5, err_msg=str(what))


def test_large_windows(device):
    """Windows beyond what a block has a table for, and beyond what the CPU adds up at once; a position of float64."""
    x = tf.constant(np.random.default_rng(4).normal(size=(1, 3, 6000, 2)), tf.float64)
    for size in [1, 3], [3, 1], [2, 7000]:
        y, dx = _with_gradient(lambda x: tfuse.resize(x, size, antialias=True), x)
        want, wanted = _with_gradient(lambda x: tf.cast(
            tf.image.resize(tf.cast(x, tf.float32), size, antialias=True), x.dtype), x)
        np.testing.assert_allclose(y, want, atol=1e-5)
        np.testing.assert_allclose(dx, wanted, atol=1e-5)


def test_other_arguments(device):
    """Without a batch, of lines and volumes, one size for all axes, of sizes that are tensors, NumPy's or not known yet."""
    x = tf.random.stateless_normal([3, 5, 7, 8], [1, 2])
    want = tfuse.resize(x, [10, 14])
    mixed = tf.constant(10, tf.int64), tf.constant(14)
    for size in tf.constant([10, 14]), np.array([10, 14]), (np.int64(10), tf.constant(14)), mixed, tf.TensorShape([10, 14]):
        np.testing.assert_array_equal(tfuse.resize(x, size), want)
    np.testing.assert_array_equal(tfuse.resize(x[1], [10, 14]), want[1])
    np.testing.assert_array_equal(tfuse.resize(x[:, 0], [14], "nearest"), tf.repeat(x[:, 0], 2, 1))
    assert tfuse.resize(x[None], 4).shape == (1, 4, 4, 4, 8)
    for shape in [2], [None], None:
        for dtype in tf.int32, tf.int64:
            late = tf.function(lambda x, size: tfuse.resize(x, size), input_signature=[
                tf.TensorSpec(None), tf.TensorSpec(shape, dtype)])
            np.testing.assert_array_equal(late(x, tf.constant([10, 14], dtype)), want)
    outside = tf.constant([[[[np.inf], [1.0], [np.nan], [2.0]]]])
    assert np.isinf(tfuse.resize(outside, [1, 8])[0, 0, 0, 0])  # and no 0 times infinity
