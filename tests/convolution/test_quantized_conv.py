"""tfuse.quantized_conv with results of int8, and the layers that are made of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse.cases.convolution.conv import Geometry

RNG = np.random.default_rng(0)


def codes(*shape):
    return RNG.integers(-127, 128, shape).astype("int8")


# Channels and outputs that tensor cores take, which are multiples of 16, whole tiles of these and parts; and others.
@pytest.mark.parametrize("shape", [(2, 9, 7, 16, 8), (1, 12, 11, 48, 40), (2, 17, 19, 64, 144), (1, 14, 14, 80, 272),
                                   (2, 5, 6, 3, 5), (3, 30, 31, 64, 64)])
@pytest.mark.parametrize("compiled", [False, True])
def test_results_of_int8(shape, compiled):
    """Exact, but for sums that are rounded at a half."""
    *images, c, k = shape
    geometry = Geometry((3, 3), strides=2, padding=[(1, 1), (0, 1)])
    x, kernel = codes(*images, c), codes(k, 3, 3, c)
    scale, bias = (RNG.uniform(0.5, 2, k) / 73**2 / np.sqrt(9 * c)).astype("float32"), RNG.normal(size=k).astype("float32")
    residual = codes(images[0], *geometry.out(images[1:]), k)
    run = tf.function(lambda: tfuse.quantized_conv(x, kernel, scale, bias, "relu", residual, residual_scale=0.01, y_scale=30.0,
                                                   **{key: v for key, v in geometry.options().items()}),
                      autograph=False, jit_compile=compiled)
    exact = geometry.forward(x.astype(float), np.moveaxis(kernel, 0, -1).astype(float)) * scale + bias + 0.01 * residual
    want = np.clip(np.maximum(exact, 0) * 30, -127, 127)
    got = run()
    assert got.dtype == tf.int8
    assert np.abs(got.numpy() - want).max() < 0.5001
    if want.size > 1000:  # what is clipped, and what relu leaves
        assert (want > 127 - 1e-9).any() and (got.numpy() == 0).any()


def test_there_is_no_gradient():
    bias = tf.zeros([8])
    with tf.GradientTape() as tape:
        tape.watch(bias)
        y = tfuse.quantized_conv(codes(1, 4, 4, 16), codes(8, 1, 1, 16), tf.ones([8]), bias)
    with pytest.raises(ValueError, match="int8 has no gradient; train in floats, and calibrate after it"):
        tape.gradient(y, bias)


def test_layers(tmp_path):
    """What they compute, and files."""
    inputs = keras.Input((9, 7, 16))
    narrow = tfuse.Quantize(3.0)(inputs)
    first = tfuse.QuantizedConv2D(16, 3, padding="same", activation="relu", x_range=3.0, y_range=5.0)
    last = tfuse.QuantizedConv2D(24, 1, strides=2, x_range=5.0, residual_range=2.0)
    more = keras.layers.Concatenate()([inputs, inputs[..., :8]])
    residual = tfuse.Quantize(2.0)(keras.layers.AveragePooling2D(2, padding="same")(more))
    model = keras.Model(inputs, last([first(narrow), residual]))
    kernels = RNG.normal(size=(3, 3, 16, 16)) / 12, RNG.normal(size=(1, 1, 16, 24)) / 4
    biases = RNG.normal(size=16), RNG.normal(size=24)
    first.set_floats(kernels[0], biases[0]), last.set_floats(kernels[1], biases[1])
    x = RNG.normal(size=(4, 9, 7, 16)).astype("float32")
    y = np.maximum(Geometry((3, 3), padding="same").forward(x.astype(float), kernels[0]) + biases[0], 0)
    mean = keras.layers.AveragePooling2D(2, padding="same")(np.concatenate([x, x[..., :8]], -1))
    want = Geometry((1, 1), strides=2).forward(y, kernels[1]) + biases[1] + np.asarray(mean)
    got = model.predict(x, verbose=0)
    assert first.output.dtype == "int8" and got.dtype == np.float32
    assert np.sqrt(np.mean((got - want)**2) / np.mean(want**2)) < 0.02
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "model.keras").predict(x, verbose=0), got)
    with pytest.raises(ValueError, match="Quantize: range must be a positive number, got 0"):
        tfuse.Quantize(0)
    with pytest.raises(ValueError, match="QuantizedConv2D: y_range must be a positive number, got nan"):
        tfuse.QuantizedConv2D(8, 1, x_range=1.0, y_range=np.nan)
