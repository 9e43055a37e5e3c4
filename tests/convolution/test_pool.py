"""Pooling beyond the cases: random windows against Keras, special values, large windows, and the layers."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import GPUS

SHAPES = {1: (2, 11, 6), 2: (2, 9, 10, 6), 3: (2, 5, 6, 7, 3)}


@pytest.mark.parametrize("kind", ["max", "average"])
def test_random_windows(device, kind):
    """Values and gradients as in stock TensorFlow, whose values here have no equals."""
    rng = np.random.default_rng(7)
    ours, stock = {"max": (tfuse.max_pool, tf.nn.max_pool), "average": (tfuse.average_pool, tf.nn.avg_pool)}[kind]
    for _ in range(120):
        axes = int(rng.integers(1, 4))
        size = rng.integers(1, 5, axes).tolist()
        strides, padding = rng.integers(1, 4, axes).tolist(), str(rng.choice(["valid", "same"]))
        if axes == 3:  # stock TensorFlow moves windows of volumes on the CPU that are shorter than their strides
            strides = [min(pair) for pair in zip(strides, size)]
        shape = (int(rng.integers(1, 4)), *(int(rng.integers(n, n + 9)) for n in size), int(rng.choice([1, 3, 8, 19])))
        x = tf.constant(rng.permutation(int(np.prod(shape))).reshape(shape) / 100, tf.float32)
        layout = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[axes]
        results = []
        for f in (lambda: ours(x, size, strides, padding), lambda: stock(x, size, strides, padding.upper(), layout)):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f()
            results.append([y, tape.gradient(y, x, tf.cos(y))])
        for got, want in zip(*results):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str((shape, size, strides, padding)))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", ["max", "average"])
def test_padding_by_numbers(device, jit, kind, zeros):
    """As the same windows see it in x with something around it: zeros, or what does not count."""
    rng = np.random.default_rng(8)
    ours, stock = {"max": (tfuse.max_pool, tf.nn.max_pool), "average": (tfuse.average_pool, tf.nn.avg_pool)}[kind]
    for _ in range(6 if jit else 60):
        axes = int(rng.integers(1, 3))  # of volumes, stock TensorFlow moves windows that are shorter than their strides
        size, strides = rng.integers(1, 5, axes).tolist(), rng.integers(1, 4, axes).tolist()
        pairs = [tuple(map(int, rng.integers(0, n + 2 if zeros else n, 2))) for n in size]
        shape = (int(rng.integers(1, 4)), *(int(rng.integers(n + 4, n + 9)) for n in size), int(rng.choice([1, 3, 8, 19])))
        x = tf.constant((rng.permutation(int(np.prod(shape))).reshape(shape) - np.prod(shape) // 2 + 0.5) / 100, tf.float32)
        layout = {1: "NWC", 2: "NHWC"}[axes]
        around = lambda t, value: tf.pad(t, [(0, 0), *pairs, (0, 0)], constant_values=value)
        average = lambda t: tf.nn.avg_pool(around(t, 0), size, strides, "VALID", layout)

        def wanted(x):
            if kind == "max":
                return stock(around(x, 0 if zeros else -1e30), size, strides, "VALID", layout)
            return average(x) if zeros else average(x) / average(tf.ones_like(x))

        results = []
        for f in (tf.function(lambda x: ours(x, size, strides, pairs, zeros), jit_compile=jit), wanted):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            results.append([y, tape.gradient(y, x, tf.cos(y))])
        for got, want in zip(*results):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str((shape, size, strides, pairs)))


def test_zeros_around_take_the_gradient(device):
    """Where a zero around x is the first of the greatest; NaN is greater."""
    x = tf.constant([[-1.0, 0.0, 0.0, -2.0], [np.nan, 0.0, -1.0, -2.0]])[..., None]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tfuse.max_pool(x, 2, padding=[(1, 3)], zeros=True)
    assert np.array_equal(y[..., 0], [[0, 0, 0, 0], [np.nan, 0, 0, 0]], equal_nan=True)
    assert tape.gradient(y, x, tf.ones_like(y))[..., 0].numpy().tolist() == [[0, 1, 0, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_special_values(device, dtype, channels):
    """NaN is greater than all others; nothing but -infinity is -infinity. The gradient goes to the first of equals, and of
    NaNs, wherever in the window it is. As lines of four and as squares of 2 x 2, which have kernels of their own."""
    nan, inf = np.nan, np.inf
    windows = {(1.0, nan, 0.0, 3.0): (nan, 1), (nan, 1.0, 2.0, inf): (nan, 0), (nan, nan, inf, 1.0): (nan, 0),
               (1.0, nan, nan, nan): (nan, 1), (inf, 2.0, inf, 1.0): (inf, 0), (-inf, -inf, -inf, -inf): (-inf, 0),
               (-inf, 1.0, inf, nan): (nan, 3), (-0.0, 0.0, -1.0, 0.0): (0, 0)}
    want, first = zip(*windows.values())
    for shape, size in ((len(want), 4, channels), 4), ((len(want), 2, 2, channels), 2):
        x = tf.constant(np.repeat(np.ravel(list(windows))[:, None], channels, -1).reshape(shape), dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tfuse.max_pool(x, size)
        for got in (y, tfuse.max_pool(x, size)):  # with positions, and without
            got = tf.cast(got, tf.float64).numpy().reshape(len(want), channels)
            assert np.array_equal(got, np.repeat(np.array(want)[:, None], channels, -1), equal_nan=True), size
        dx = tf.cast(tape.gradient(y, x, tf.ones_like(y)), tf.float64).numpy().reshape(len(want), 4, channels)
        assert np.array_equal(dx, np.repeat(np.eye(4)[list(first)][..., None], channels, -1)), size


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["max", "average"])
def test_windows_larger_than_the_image(device, jit, kind, axes):
    """An empty result where stock TensorFlow has one, and no gradient for anybody; else both refuse."""
    ours, stock = {"max": (tfuse.max_pool, tf.nn.max_pool), "average": (tfuse.average_pool, tf.nn.avg_pool)}[kind]
    x, layout = tf.ones([2, *[3] * axes, 4]), {1: "NWC", 2: "NHWC", 3: "NDHWC"}[axes]

    def step(x, size, stride):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ours(x, size, stride)
        return y, tape.gradient(y, x)

    for shape in (x.shape, [None] * (axes + 1) + [4]):
        for size, stride in [(4, 1), (5, 1), (5, 2), (6, 2), (7, 2), (9, 5), (12, 5), (13, 5)]:
            traced = tf.function(lambda x: step(x, size, stride), input_signature=[tf.TensorSpec(shape)], jit_compile=jit,
                                 autograph=False)
            if not GPUS:  # on some CPUs of machines that have GPUs, stock TensorFlow divides by zero and dies
                check = contextlib.nullcontext() if 3 - size + stride > -stride else pytest.raises(tf.errors.InvalidArgumentError)
                with check:
                    assert stock(x, size, stride, "VALID", layout).shape == [2, *[0] * axes, 4]
            if 3 - size + stride <= -stride:
                with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="the window reaches over"):
                    traced(x)
                continue
            y, dx = traced(x)
            assert y.shape == [2, *[0] * axes, 4]
            assert dx.shape == x.shape and not np.any(dx), (size, stride)
    for layers in (tfuse, keras.layers)[:1 if GPUS else 2]:
        assert getattr(layers, "%sPooling%dD" % (kind.title(), axes))(9, 5)(x).shape == [2, *[0] * axes, 4]


def test_large_windows(device):
    x = tf.random.normal([1, 40, 40, 3], seed=1)
    np.testing.assert_array_equal(tfuse.max_pool(x, 40), tf.reduce_max(x, [1, 2], keepdims=True))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tfuse.max_pool(x, 40)
    with pytest.raises(tf.errors.InvalidArgumentError,
                       match="windows of at most 256 elements can be kept for a gradient, got 1 . 40 . 40"):
        tape.gradient(y, x)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_global_average_pool(device, axes, dtype):
    x = tf.cast(tf.random.normal(SHAPES[axes], seed=2), dtype)
    positions = list(range(1, axes + 1))
    want = tf.reduce_mean(tf.cast(x, tf.float64), positions)
    epsilon = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-14}[dtype]
    np.testing.assert_allclose(tf.cast(tfuse.global_average_pool(x), tf.float64), want, rtol=epsilon, atol=epsilon)
    assert tfuse.global_average_pool(x, keepdims=True).shape == [2, *[1] * axes, SHAPES[axes][-1]]
    with pytest.raises(ValueError, match="global_average_pool: x must be .batch, 1 to 3 sizes, channels., got shape"):
        tfuse.global_average_pool(tf.ones([2, 3]))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name, options", [
    ("MaxPooling", {}), ("MaxPooling", {"pool_size": 3, "strides": 2, "padding": "same"}), ("AveragePooling", {"pool_size": 2}),
    ("AveragePooling", {"pool_size": 3, "strides": 1, "padding": "same"}), ("GlobalAveragePooling", {}),
    ("GlobalAveragePooling", {"keepdims": True})], ids=str)
def test_layers_are_keras_s(device, axes, name, options, tmp_path):
    x = tf.random.normal(SHAPES[axes], seed=3)
    layer, stock = (getattr(module, "%s%dD" % (name, axes))(**options) for module in (tfuse, keras.layers))
    np.testing.assert_allclose(layer(x), stock(x), rtol=1e-5, atol=1e-6)
    assert layer.get_config().keys() == stock.get_config().keys()
    model = keras.Sequential([keras.layers.Input(x.shape[1:]), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.layers[-1]) is type(layer)
    np.testing.assert_array_equal(again(x), model(x))
    first = type(layer).from_config({**layer.get_config(), "data_format": "channels_first"})
    transposed = np.moveaxis(x.numpy(), -1, 1)
    want = type(stock).from_config({**stock.get_config(), "data_format": "channels_first"})(transposed)
    np.testing.assert_allclose(first(transposed), want, rtol=1e-5, atol=1e-6)


def test_mask(device):
    """What Keras's layer makes of a mask, Keras makes."""
    x, mask = tf.random.normal([2, 4, 3], seed=4), tf.constant([[True, True, False, False], [True] * 4])
    np.testing.assert_allclose(tfuse.GlobalAveragePooling1D()(x, mask=mask),
                               keras.layers.GlobalAveragePooling1D()(x, mask=mask), rtol=1e-5)
