"""The convolution layers beside Keras's own: results, gradients, files, dtypes; and in models that train."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import check_files_go_both_ways

NAMES = ["Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"]
VARIANTS = [{}, {"padding": "same", "activation": "relu"}, {"strides": 2, "padding": "same", "activation": "silu"},
            {"strides": 2, "use_bias": False}, {"activation": keras.activations.softsign},
            {"data_format": "channels_first", "activation": "relu"}]
OF_SOME = {"Conv1D": [{"padding": "causal", "dilation_rate": 2}, {"groups": 2}], "Conv2D": [{"groups": 2, "activation": "gelu"}],
           "Conv2DTranspose": [{"strides": 3, "output_padding": 1}]}


def pair(name, channels, **options):
    """Our layer and Keras's, with the same weights."""
    layers = [getattr(module, name)(6, 3, **options) for module in (tfuse, keras.layers)]
    axes = layers[0].rank
    shape = (None, *[9] * axes, channels) if options.get("data_format") != "channels_first" else (None, channels, *[9] * axes)
    for layer in layers:
        layer.build(shape)
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=w.shape) for w in layers[0].get_weights()]
    for layer in layers:
        layer.set_weights(weights)
    return layers, [2, *shape[1:]]


def step(layer, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        loss = tf.reduce_sum(tf.cos(tf.cast(y, tf.float32)))
    return [y, *tape.gradient(loss, [x, *(w.value for w in layer.trainable_weights)])]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", NAMES)
def test_as_keras(name):
    for options in VARIANTS + OF_SOME.get(name, []):
        if "Transpose" in name and "channels_first" == options.get("data_format"):
            continue  # Keras's own has none on a CPU
        (ours, theirs), shape = pair(name, 4, **options)
        if options.get("data_format") == "channels_first":
            last = pair(name, 4, **{**options, "data_format": "channels_last"})[0][1]
            x = tf.random.normal(shape)
            transposed = tf.transpose(x, [0, *range(2, len(shape)), 1])
            np.testing.assert_allclose(tf.transpose(ours(x), [0, *range(2, len(shape)), 1]), last(transposed), 1e-4, 1e-4)
            continue
        x = tf.random.normal(shape)
        for got, want in zip(step(ours, x), step(theirs, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        assert ours.compute_output_shape(shape) == theirs.compute_output_shape(shape)
        assert ours.get_config() == {**theirs.get_config(), "name": ours.name}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_dtypes(dtype):
    for name in NAMES:
        (ours, theirs), shape = pair(name, 4, dtype=dtype, activation="relu")
        x = tf.random.normal(shape)
        got, want = ours(x), theirs(x)
        assert got.dtype == want.dtype
        exact = pair(name, 4, dtype="float64", activation="relu")[0][1](tf.cast(tf.cast(x, got.dtype), tf.float64))
        errors = [float(tf.reduce_max(tf.abs(tf.cast(y, tf.float64) - exact))) for y in (got, want)]
        assert errors[0] <= 2 * errors[1] + 1e-12  # float64 is compared with itself


@pytest.mark.usefixtures("as_on_a_gpu")
def test_files(tmp_path):
    models = [keras.Sequential([keras.Input([9, 9, 4]), module.Conv2D(6, 3, activation="relu"),
                                module.Conv2DTranspose(3, 2, strides=2)]) for module in (tfuse, keras.layers)]
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    check_files_go_both_ways(models, tf.random.normal([2, 9, 9, 4]), tmp_path, close)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_trains(jit):
    """A small U of convolutions, of unknown batch and sizes, loses as much in every epoch as Keras's own."""
    images = np.random.default_rng(0).normal(size=[32, 12, 10, 3]).astype("float32")
    losses = []
    for module in (tfuse, keras.layers):
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input([None, None, 3])
        x = module.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
        x = module.Conv2D(8, 3, padding="same", activation="silu")(x)
        x = module.Conv2DTranspose(1, 3, strides=2, padding="same")(x)
        model = keras.Model(inputs, x)
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=jit)
        fitted = model.fit(images, images.mean(-1, keepdims=True), batch_size=12, epochs=8, verbose=0)
        losses.append(fitted.history["loss"])
    assert losses[0][-1] < 0.6 * losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-3)
