"""tfuse.enable() after convolutions and pooling, as layers and in keras.ops: results and gradients are Keras's, or the call is
left to Keras."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from enabling import all_reasons, close, jit_of_ours, layer, left_as_it_was, normal, ran, told
from looking_back import results

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
IMAGES, TARGETS = normal(4, 4, 4, 3), normal(4, 6, 6, 4)
SIZES = {1: [11], 2: [9, 10], 3: [5, 6, 7]}
STRIDED = {"strides": 2, "padding": "same"}
LAYERS = {  # the op that serves a layer, its arguments, and for which numbers of spatial axes with what else
    "Conv%dD": ("Conv", [6, 3], {1: [{"padding": "causal", "dilation_rate": 2}], 2: [{"groups": 2}], 3: []}),
    "Conv%dDTranspose": ("ConvData", [6, 3], {1: [], 2: [], 3: []}),
    "DepthwiseConv%dD": ("DepthwiseConv", [3], {1: [{"depth_multiplier": 2}],
                                                2: [{"depth_multiplier": 2}, {"dilation_rate": 2}]}),
    "SeparableConv%dD": ("DepthwiseConv", [6, 3], {1: [], 2: [{"depth_multiplier": 2, "dilation_rate": 2}]}),
    "MaxPooling%dD": ("MaxPool", [2], {1: [], 2: [{"pool_size": (3, 2)}], 3: []}),
    "AveragePooling%dD": ("AveragePool", [2], {1: [], 2: [{"pool_size": (3, 2)}], 3: []}),
    "UpSampling%dD": ("Resize", [2], {1: [], 2: [{"interpolation": "bilinear"}, {"interpolation": "lanczos3"}], 3: []}),
    "GlobalAveragePooling%dD": ("Reduce", [], {1: [{"keepdims": True}], 2: [{"keepdims": True}], 3: []}),
    "GlobalMaxPooling%dD": ("Reduce", [], {1: [], 2: [{"keepdims": True}], 3: []}),
}


def variants(name, more):
    if name.startswith(("Global", "UpSampling")):
        return [{}, *more]
    if "Pooling" in name:
        return [{}, {"pool_size": 3, **STRIDED}, *({"padding": "same", **options} for options in more)]
    return [{}, {"activation": "relu", **STRIDED}, {"use_bias": False, "padding": "same"},
            *({"activation": "silu", **options} for options in more)]


CASES = [(name % axes, axes, op, arguments, options) for name, (op, arguments, of_axes) in LAYERS.items()
         for axes, more in of_axes.items() for options in variants(name, more)]


def made(name, axes, arguments, options, **more):
    options = dict(zip(["pool_size"], arguments), **options) if "Pooling" in name else options
    arguments = [] if "Pooling" in name else arguments
    first = more.get("data_format") == "channels_first"
    shape = [2, 4, *SIZES[axes]] if first else [2, *SIZES[axes], 4]
    return layer(lambda: getattr(keras.layers, name)(*arguments, **options, **more), *shape), normal(*shape)


def both(f, x, weights, jit=False):
    want = results(f, x, weights, jit)
    with tfuse.enabled():
        got = results(f, x, weights, jit)
    return got, want


@pytest.mark.parametrize("name, axes, op, arguments, options", CASES, ids=["%s %s" % (c[0], c[-1]) for c in CASES])
def test_layers(name, axes, op, arguments, options):
    f, x = made(name, axes, arguments, options)
    got, want = both(f, x, [w.value for w in f.trainable_weights])
    assert op in ran() and not all_reasons()
    for g, w in zip(got, want, strict=True):
        close(g, w, 2e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_in_xla(name, jit):
    op, arguments, of_axes = LAYERS[name]
    f, x = made(name % 2, 2, arguments, variants(name, of_axes[2])[1])
    got, want = both(f, x, [w.value for w in f.trainable_weights], jit)
    assert bool(all_reasons()) == (jit and name.startswith("Global"))  # which XLA joins with what comes before it
    for g, w in zip(got, want, strict=True):
        close(g, w, 2e-5)


FIRST = [c for c in CASES if "causal" not in str(c) and c[0] != "UpSampling1D"]


@pytest.mark.parametrize("name, axes, op, arguments, options", FIRST, ids=["%s %s" % (c[0], c[-1]) for c in FIRST])
def test_channels_first(name, axes, op, arguments, options):
    """As a stock layer with the channels last; on a CPU Keras has not all of them with the channels first."""
    if name == "DepthwiseConv1D" and "depth_multiplier" in options and tf.__version__.startswith(("2.16.", "2.17.", "2.18.")):
        pytest.skip("TensorFlow 2.16 to 2.18 die of the stock layer")
    f, x = made(name, axes, arguments, options, data_format="channels_first")
    last, _ = made(name, axes, arguments, options)
    last.set_weights(f.get_weights())
    to_last = lambda y: tf.transpose(y, [0, *range(2, y.shape.rank), 1]) if y.shape.rank > 2 else y
    to_first = lambda y: tf.transpose(y, [0, y.shape.rank - 1, *range(1, y.shape.rank - 1)]) if y.shape.rank > 2 else y
    want = results(lambda x: to_first(last(to_last(x))), x, [w.value for w in last.trainable_weights], False)
    with tfuse.enabled():
        got = results(f, x, [w.value for w in f.trainable_weights], False)
    assert op in ran() and not all_reasons()
    if not name.startswith("Global"):
        assert [row["route"] for row in told(when="traced")] == ["channels first"]
    for g, w in zip(got, want, strict=True):
        close(g, w, 2e-5)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", LAYERS)
def test_sixteen_bits(name, dtype):
    """At most twice as far from float64 as Keras."""
    _, arguments, of_axes = LAYERS[name]
    options = variants(name, of_axes[2])[1]
    f, x = made(name % 2, 2, arguments, options, dtype=dtype)
    exact, _ = made(name % 2, 2, arguments, options, dtype="float64")
    exact.set_weights(f.get_weights())
    x = tf.cast(tf.cast(x, f.compute_dtype), tf.float32)
    want = f(x)
    with tfuse.enabled():
        got = f(x)
    assert got.dtype == want.dtype == f.compute_dtype
    off = [float(tf.reduce_max(tf.abs(tf.cast(y, tf.float64) - exact(x)))) for y in (got, want)]
    assert off[0] <= 2 * off[1]


K, DEPTH, POINT = normal(3, 3, 4, 6), normal(3, 3, 4, 2), normal(1, 1, 8, 5)
OPS = {
    "conv": ("Conv", lambda x: keras.ops.conv(x, K, 2, "same")),
    "conv, groups": ("Conv", lambda x: keras.ops.conv(x, K[:, :, :2])),
    "conv, dilated": ("Conv", lambda x: keras.ops.conv(x, K, dilation_rate=(2, 1))),
    "conv_transpose": ("ConvData", lambda x: keras.ops.conv_transpose(x, np.swapaxes(K, 2, 3), 2, "same")),
    "depthwise_conv": ("DepthwiseConv", lambda x: keras.ops.depthwise_conv(x, DEPTH, 2, "same")),
    "separable_conv": ("DepthwiseConv", lambda x: keras.ops.separable_conv(x, DEPTH, POINT, padding="same")),
    "max_pool": ("MaxPool", lambda x: keras.ops.max_pool(x, 3, 2, "same")),
    "resize": ("Resize", lambda x: keras.ops.image.resize(x, (7, 13), "bicubic")),
    "resize, antialias": ("Resize", lambda x: keras.ops.image.resize(x[0], (3, 4), antialias=True)),
    "resize, a layer": ("Resize", lambda x: keras.layers.Resizing(5, 20)(x)),
    "average_pool": ("AveragePool", lambda x: keras.ops.average_pool(x, (2, 3), padding="same")),
}


@pytest.mark.parametrize("name", OPS)
def test_ops(name):
    op, f = OPS[name]
    got, want = both(f, normal(2, 9, 10, 4), [])
    assert op in ran() and not all_reasons()
    for g, w in zip(got, want, strict=True):
        close(g, w, 2e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_upsampling_between_convolutions_trains(interpolation, jit_compile):
    """In mixed precision, two steps: stock XLA compiles no bilinear gradient in 16 bits, so that is held against no XLA."""
    x, losses = np.float32(normal(4, 6, 6, 8)), []
    for on in (False, True):
        keras.utils.set_random_seed(1)
        convolution = lambda n: keras.layers.Conv2D(n, 3, padding="same", dtype="mixed_bfloat16")
        model = keras.Sequential([keras.Input((6, 6, 8)), convolution(16), keras.layers.UpSampling2D(
            2, interpolation=interpolation, dtype="mixed_bfloat16"), convolution(4)])
        with tfuse.enabled() if on else contextlib.nullcontext():
            model.compile("sgd", "mse", jit_compile=on and jit_compile)
            losses.append([model.train_on_batch(x, np.ones((4, 12, 12, 4), "float32")) for _ in range(2)])
    assert losses[1][1] < losses[1][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-2)
    assert jit_compile or {"Resize", "ResizeGrad"} <= ran()


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Max", "Average"])
def test_pooling_windows_larger_than_the_image(kind, axes):
    """The result is empty, as Keras's is where it is called on tensors."""
    f, x = getattr(keras.layers, "%sPooling%dD" % (kind, axes))(6, 2), normal(2, *[3] * axes, 4)
    want = f(x)
    with tfuse.enabled():
        got = f(x)
    assert got.shape == want.shape == (2, *[0] * axes, 4) and not all_reasons()


def test_every_channel_a_group():
    """As ConvNeXt has it: by the kernels of depthwise convolution. On a CPU, Keras has XLA compile groups."""
    skip_broken_xla()
    f = layer(lambda: keras.layers.Conv2D(16, 7, padding="same", groups=16), None, 9, 10, 16)
    got, want = both(f, normal(2, 9, 10, 16), [w.value for w in f.trainable_weights])
    assert "DepthwiseConv" in ran() and "Conv" not in ran()
    for g, w in zip(got, want, strict=True):
        close(g, w, 2e-5)


def test_layer_scale():
    f = layer(lambda: keras.src.applications.convnext.LayerScale(0.5, 8), None, 5, 8)
    got, want = both(f, normal(2, 5, 8), [f.gamma.value])
    assert "ScaleBiasActGrad" in ran()
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


def test_without_a_gpu_they_are_keras_s(monkeypatch):
    from tfuse._core import _library
    monkeypatch.setattr(_library, "without_gpu", lambda: True)
    f, x = made("MaxPooling2D", 2, [2], {})
    got, want = both(f, x, [])
    assert all_reasons() == {"max_pool": "there is no GPU, and TensorFlow's own pooling is faster on the CPU"}
    assert all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))


SQUEEZE = {
    "an image": lambda x: keras.layers.Multiply()([x, keras.ops.sigmoid(keras.ops.mean(x, (1, 2), keepdims=True))]),
    "the number first": lambda x: keras.ops.mean(x, (1, 2), keepdims=True) * keras.ops.multiply(
        keras.ops.sigmoid(x[:, :1, :1]), x),
}


@pytest.mark.parametrize("name", SQUEEZE)
def test_a_number_for_each_image_and_channel(name, jit):
    got, want = both(SQUEEZE[name], normal(3, 9, 10, 4), [], jit)
    assert jit or "ScaleChannels" in ran()
    for g, w in zip(got, want, strict=True):
        close(g, w, 2e-5)


@pytest.mark.parametrize("shape", [(3, 9, 10, 1), (1, 1, 10, 4), (1, 1, 1, 4), (3, 9, 10, 4), (4,)])
def test_other_products_are_left_to_keras(shape):
    x, other = normal(3, 9, 10, 4), normal(*shape)
    got, want = both(lambda x: keras.ops.multiply(x, other), x, [])
    assert "ScaleChannels" not in ran()
    for g, w in zip(got, want, strict=True):
        close(g, w, 2e-5)


@pytest.mark.parametrize("sizes", [(3, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("x, other", [((None, 9, 10, 4), (1, 1, 1, 4)), ((1, 9, 10, 4), (None, 1, 1, 4)),
                                      ((None, 9, 10, 4), (None, 1, 1, 4))])
def test_a_batch_of_one_is_stretched_by_keras(x, other, sizes):
    f = tf.function(lambda a, b: keras.ops.multiply(a, b), input_signature=[tf.TensorSpec(x), tf.TensorSpec(other)])
    a, b = (normal(shape[0] or size, *shape[1:]) for shape, size in zip((x, other), sizes))
    with tfuse.enabled():
        np.testing.assert_array_equal(f(a, b), a * b)


@pytest.mark.parametrize("served, scale", [
    (True, lambda x: keras.ops.sigmoid(keras.ops.mean(x, (1, 2), keepdims=True) @ tf.ones([4, 4]))),
    (True, lambda x: keras.ops.reshape(keras.layers.GlobalAveragePooling2D()(x), (-1, 1, 1, 4))),
    (False, lambda x: keras.ops.max(x[:tf.shape(x)[3] - 3], (1, 2), keepdims=True))])
def test_numbers_of_as_many_images_as_there_are(served, scale):
    """Which is not known; the first image alone is Keras's to stretch."""
    x = normal(3, 9, 10, 4)
    with tfuse.enabled():
        f = tf.function(lambda x: keras.ops.multiply(x, scale(x)), input_signature=[tf.TensorSpec([None, 9, 10, 4])],
                        autograph=False).get_concrete_function()
    assert served == any(op.type == "Tfuse>ScaleChannels" for op in f.graph.get_operations())
    assert f(tf.constant(x)).shape == x.shape


@pytest.mark.parametrize("more", [lambda x: tf.tile(x, [3, 1, 1, 1]), lambda x: tf.gather(x, [0, 0, 0])], ids=["tile", "gather"])
def test_numbers_of_an_image_that_is_repeated(more):
    f = tf.function(lambda x: keras.ops.multiply(more(x), keras.ops.mean(x, (1, 2), keepdims=True)),
                    input_signature=[tf.TensorSpec([None, 9, 10, 4])], autograph=False)
    x = tf.constant(normal(1, 9, 10, 4))
    want = more(x) * tf.reduce_mean(x, (1, 2), keepdims=True)
    with tfuse.enabled():
        close(f(x), want, 1e-6)


def test_other_dropout_is_left_to_keras():
    x = tf.constant(normal(8, 5, 6, 4))
    drop = lambda shape, rate=0.5: tf.function(
        lambda x: keras.random.dropout(x, rate, noise_shape=shape(x), seed=3), autograph=False)(x)
    shapes = [lambda x: (tf.shape(x)[0], 1, 1, 1), lambda x: (8, 1, 1, 4), lambda x: (1, 1, 1, 1), lambda x: None]
    want = [drop(shape) for shape in shapes]
    with tfuse.enabled():
        got = [drop(shape) for shape in shapes]
        np.testing.assert_array_equal(drop(lambda x: (8, 1, 1, 1), 0), x)
    np.testing.assert_array_equal(got, want)


def dropping(batch, dtype, jit):
    """A function(x) that drops images, and the gradient of that."""
    drop = keras.layers.Dropout(0.5, noise_shape=(batch, 1, 1, 1), seed=7, dtype=dtype)

    @tf.function(input_signature=[tf.TensorSpec([batch, 5, 6, 8], dtype)], jit_compile=jit)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = drop(x, training=True)
        return y, tape.gradient(y, x)

    return step


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batch", [None, 16])
def test_dropout_of_whole_images(dtype, batch, jit):
    """Bit for bit as Keras drops them, and what is dropped is 0 whatever it was."""
    x = normal(16, 5, 6, 8)
    x[3:9, 0, 0] = np.inf
    x = tf.cast(x, dtype)
    want = dropping(batch, dtype, jit)(x)
    with tfuse.enabled():
        got = dropping(batch, dtype, jit)(x)
    assert jit or "ScaleChannels" in ran()
    for g, w in zip(got, want):
        np.testing.assert_array_equal(tf.cast(g, tf.float32), tf.cast(w, tf.float32))
    dropped = tf.reduce_all(got[0] == 0, [1, 2, 3])
    assert 0 < int(tf.reduce_sum(tf.cast(dropped, tf.int32))) < 16


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_bilinear_resizing_between_convolutions(dtype, jit):
    """XLA's gradient of it is float32, whatever the dtype of the convolution that takes it."""
    losses = []
    for on in (False, True):
        keras.utils.set_random_seed(1)
        layers = [keras.Input((4, 4, 3)), keras.layers.Conv2D(8, 3, padding="same", dtype=dtype),
                  keras.layers.UpSampling2D(2, interpolation="bilinear", dtype=dtype), keras.layers.Conv2D(4, 3, dtype=dtype)]
        with tfuse.enabled() if on else contextlib.nullcontext():
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.SGD(1e-2), "mse", jit_compile=jit_of_ours(jit))
            losses.append([float(model.train_on_batch(IMAGES, TARGETS)) for _ in range(3)])
    assert "ConvFilter" in ran()
    np.testing.assert_allclose(*losses, rtol=2e-2)
