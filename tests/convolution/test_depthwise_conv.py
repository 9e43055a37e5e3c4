"""Depthwise and separable convolutions beyond the cases: hundreds of random windows, and Keras's layers."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse import cases
from tfuse.cases.convolution.depthwise_conv import Geometry
from tfuse.convolution import depthwise_conv

LAYERS = ["DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"]


def some_geometry(rng):
    """Windows of all kinds, and a shape that they fit into."""
    axes = int(rng.choice([1, 2, 2, 2]))
    side = int(rng.choice([1, 2, 3, 3, 4, 5, 5, 7, 7]))
    window = tuple([side] * axes if rng.integers(4) else rng.integers(1, 6, axes).tolist())
    strides = [int(rng.integers(1, 3))] * axes if rng.integers(3) else rng.integers(1, 4, axes).tolist()
    dilation = 1 if rng.integers(3) else rng.integers(1, 4, axes).tolist()
    padding = str(rng.choice(["valid", "same", "causal"][:3 if axes == 1 else 2]))
    geometry = Geometry(window, strides, padding, dilation, int(rng.choice([1, 1, 1, 2, 3])))
    reach = [(k - 1) * d + 1 for k, d in zip(window, geometry.dilation)]
    least = reach if padding == "valid" else [1] * axes
    return geometry, (int(rng.integers(1, 4)), *(int(rng.integers(n, n + 14)) for n in least), int(rng.choice([1, 3, 8, 20, 34])))


@pytest.mark.parametrize("dtype", cases.DTYPES)
def test_random_windows(device, dtype):
    """Values and gradients against float64; strides and dilations of all axes may differ, and come together."""
    rng = np.random.default_rng(cases.DTYPES.index(dtype))
    epsilon = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-13}[dtype]
    for _ in range(100):
        geometry, shape = some_geometry(rng)
        x, kernel, dy = (tf.cast(tf.constant(rng.normal(size=s)), dtype) for s in (
            shape, (*geometry.size, shape[-1], geometry.multiplier), geometry.result(shape)))
        bias = tf.cast(tf.constant(rng.normal(size=dy.shape[-1])), dtype)
        with tf.GradientTape() as tape:
            tape.watch([x, kernel, bias])
            y = tfuse.depthwise_conv(x, kernel, bias, **geometry.options())
        dx, dkernel, dbias = tape.gradient(y, [x, kernel, bias], dy)
        x, kernel, bias, dy = map(cases.as64, (x, kernel, bias, dy))
        want = [cases.plus(cases.sums(geometry.forward, x, kernel), bias), *geometry.gradients(dy, x, kernel),
                cases.total(dy.reshape(-1, dy.shape[-1]), 0)]
        for name, got, w in zip(["y", "dx", "dkernel", "dbias"], (y, dx, dkernel, dbias), want):
            assert got.shape == w.shape, (name, shape, vars(geometry))
            assert np.max(np.abs(cases.as64(got) - w)) <= epsilon * np.max(w.terms) + 1e-30, (name, shape, vars(geometry))


@pytest.mark.parametrize("channels, multiplier", [(100, 3), (90, 7), (3, 300)])
def test_many_outputs(device, channels, multiplier):
    """More than the CPU has in one stretch, whose ends are between channels of x and never within one."""
    rng = np.random.default_rng(channels)
    geometry = Geometry((3, 3), 1, "same", 1, multiplier)
    x, kernel = rng.normal(size=(1, 6, 5, channels)), rng.normal(size=(3, 3, channels, multiplier))
    dy = rng.normal(size=(1, 6, 5, channels * multiplier))
    inputs = [tf.constant(x), tf.constant(kernel)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = tfuse.depthwise_conv(*inputs, **geometry.options())
    np.testing.assert_allclose(y, geometry.forward(x, kernel), rtol=1e-12, atol=1e-12)
    for got, want in zip(tape.gradient(y, inputs, tf.constant(dy)), geometry.gradients(dy, x, kernel)):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)


def test_gradient_refuses_a_missing_pre(device):
    """Without it, an activation has no slope."""
    x, kernel, bias, yes = tf.ones([1, 4, 4, 2]), tf.ones([3, 3, 2, 1]), tf.ones([2]), tf.zeros([0, 0], tf.bool)
    for activation in ("relu", "gelu"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="pre must be given where the activation is not linear"):
            depthwise_conv._grad(x, x, kernel, bias, None, yes, yes, activation=activation, padding="same")
    linear = depthwise_conv._grad(x, x, kernel, bias, None, yes, yes, padding="same")
    assert [g.shape for g in linear] == [x.shape, kernel.shape, bias.shape]


def layer_and_stock(name, **options):
    """A layer of ours and Keras's own, with the same weights."""
    first = (3, 3) if name.startswith("Depthwise") else (8, 3)
    arguments = {**dict(zip(["kernel_size"] if first == (3, 3) else ["filters", "kernel_size"],
                            [3] if first == (3, 3) else [8, 3])), **options}
    ours, stock = (getattr(module, name)(**arguments) for module in (tfuse, keras.layers))
    x = np.random.default_rng(5).normal(size=(2, 9, 10, 6) if "2D" in name else (2, 11, 6)).astype("float32")
    for layer in (ours, stock):
        layer.build(x.shape)
    weights = [np.random.default_rng(i).normal(size=w.shape) for i, w in enumerate(stock.get_weights())]
    ours.set_weights(weights)
    stock.set_weights(weights)
    return ours, stock, x


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", [
    {}, {"padding": "same", "activation": "relu"}, {"strides": 2, "padding": "same", "activation": "silu"},
    {"dilation_rate": 2, "padding": "same"}, {"depth_multiplier": 2, "use_bias": False}, {"activation": keras.ops.cos}],
    ids=lambda options: " ".join(options) or "default")
def test_layers_are_keras_s(device, name, options):
    ours, stock, x = layer_and_stock(name, **options)
    results = []
    for layer in (ours, stock):
        with tf.GradientTape() as tape:
            y = layer(x)
            loss = tf.reduce_sum(tf.sin(y))
        results.append([y, *tape.gradient(loss, layer.trainable_variables)])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    assert ours.compute_output_shape(x.shape) == results[0][0].shape
    tfuse_ran = any(row["op"] == "DepthwiseConv" for row in tfuse.explain(4))
    assert tfuse_ran


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_saved(device, name, tmp_path):
    ours, _, x = layer_and_stock(name, activation="relu")
    config = ours.get_config()
    json.dumps(config)
    assert type(ours).from_config(config).get_config() == config
    model = keras.Sequential([keras.layers.Input(x.shape[1:]), ours])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert type(again.layers[-1]) is type(ours)
    np.testing.assert_array_equal(again(x), model(x))


@pytest.mark.parametrize("name", LAYERS)
def test_channels_first_is_left_to_keras(name):
    ours, stock, x = layer_and_stock(name, padding="same")
    x = np.moveaxis(x, -1, 1)
    first = [getattr(module, name).from_config({**layer.get_config(), "data_format": "channels_first"})
             for module, layer in ((tfuse, ours), (keras.layers, stock))]
    for layer in first:
        layer.build(x.shape)
        layer.set_weights(stock.get_weights())
    np.testing.assert_allclose(first[0](x), first[1](x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_separable_conv(device, padding):
    rng = np.random.default_rng(2)
    x, depthwise, pointwise, bias = (tf.constant(rng.normal(size=s), tf.float32) for s in (
        (2, 9, 8, 6), (3, 3, 6, 2), (1, 1, 12, 5), (5,)))
    want = tf.nn.relu(tf.nn.separable_conv2d(x, depthwise, pointwise, [1, 2, 2, 1], padding.upper()) + bias)
    got = tfuse.separable_conv(x, depthwise, pointwise, bias, "relu", strides=2, padding=padding)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"separable_conv: pointwise_kernel must be .1, 1, channels, outputs., got shape \(2, 1, 12, 5\)"):
        tfuse.separable_conv(x, depthwise, tf.ones([2, 1, 12, 5]))


def test_mixed_precision(device):
    layer = tfuse.DepthwiseConv2D(3, padding="same", dtype="mixed_bfloat16")
    y = layer(tf.ones([1, 5, 5, 4]))
    assert y.dtype == tf.bfloat16 and layer.kernel.dtype == "float32"
