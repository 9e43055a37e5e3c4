"""What tfuse.enable() joins around convolutions and batch norms, while a function is traced: activations, sums, zeros around the
input, a bias before a batch norm, a batch norm of running statistics, and channels that need not be moved."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import close, jit_of_ours, layer, left_as_it_was, normal, start, told
from looking_back import joined, needed, results, runs
from tfuse._core import _library

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
X = normal(2, 8, 8, 4)
CONV = layer(lambda: keras.layers.Conv2D(4, 3, padding="same"), None, 8, 8, 4)
BARE = layer(lambda: keras.layers.Conv2D(4, 3, padding="same", use_bias=False), None, 8, 8, 4)
DEPTHWISE = layer(lambda: keras.layers.DepthwiseConv2D(3, padding="same"), None, 8, 8, 4)
SPREAD = layer(lambda: keras.layers.Conv2DTranspose(4, 3, padding="same"), None, 8, 8, 4)
NORM = layer(keras.layers.BatchNormalization, None, 8, 8, 4)
NORM.moving_variance.assign(np.abs(normal(4)) + 0.5)
WEIGHTS = [w.value for made in (CONV, BARE, DEPTHWISE, SPREAD, NORM) for w in made.trainable_weights]
MOVING = [w.numpy() for w in NORM.non_trainable_weights]


@pytest.fixture(autouse=True)
def same_running_statistics():
    for w, value in zip(NORM.non_trainable_weights, MOVING):
        w.assign(value)


def same(f, jit, x=X, tolerance=2e-5):
    """Whether results and gradients are Keras's; the running statistics, too."""
    want = results(f, x, WEIGHTS, jit) + [tf.identity(w.value) for w in NORM.non_trainable_weights]
    for w, value in zip(NORM.non_trainable_weights, MOVING):
        w.assign(value)
    start()
    with tfuse.enabled():
        got = results(f, x, WEIGHTS, jit) + [tf.identity(w.value) for w in NORM.non_trainable_weights]
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            close(g, w, tolerance)


train = lambda x: NORM(x, training=True)
relu, add = keras.ops.relu, keras.ops.add
CASES = {  # what is computed, what is joined, the op that runs once
    "relu": (lambda x: relu(CONV(x)), ["relu of a convolution"], "Conv"),
    "no bias": (lambda x: keras.layers.ReLU()(BARE(x)), ["relu of a convolution"], "Conv"),
    "relu6": (lambda x: keras.layers.ReLU(6.0)(CONV(x)), ["relu6 of a convolution"], "Conv"),
    "gelu": (lambda x: keras.activations.gelu(CONV(x)), ["gelu of a convolution"], "Conv"),
    "residual": (lambda x: relu(CONV(x) + x), ["relu of a convolution and another tensor"], "Conv"),
    "residual first": (lambda x: keras.ops.silu(x + CONV(x)), ["silu of a convolution and another tensor"], "Conv"),
    "Add": (lambda x: relu(keras.layers.Add()([CONV(x), x])),
            ["the sum of a convolution and another tensor", "relu of a convolution and another tensor"], "Conv"),
    "sum": (lambda x: add(x, BARE(x)), ["the sum of a convolution and another tensor"], "Conv"),
    "depthwise": (lambda x: keras.ops.relu6(DEPTHWISE(x)), ["relu6 of a depthwise convolution"], "DepthwiseConv"),
    "transposed": (lambda x: keras.ops.silu(SPREAD(x)), ["silu of a transposed convolution"], "ConvData"),
    "norm": (lambda x: keras.ops.relu6(train(BARE(x))), ["relu6 of a batch norm"], "BatchNorm"),
    "norm, sum": (lambda x: add(train(BARE(x)), x), ["the sum of a batch norm and another tensor"], "BatchNorm"),
    "norm, sum, relu": (lambda x: relu(add(x, train(BARE(x)))), ["the sum of a batch norm and another tensor",
                                                                "relu of a batch norm and another tensor"], "BatchNorm"),
    "norm, bias": (lambda x: relu(train(CONV(x))),
                   ["a bias that the batch norm takes away again: its gradient is 0", "relu of a batch norm"], "BatchNorm"),
}


@pytest.mark.parametrize("name", CASES)
def test_joined(jit, name):
    f, why, op = CASES[name]
    same(f, jit)
    assert joined() == why
    if not (jit and _library.xla_status()):
        assert len(runs(op)) == 1 and len(runs("BatchNormStatistics")) == ("norm" in name)


@pytest.mark.parametrize("f", [
    lambda x: relu(keras.ops.concatenate([CONV(x), x])), lambda x: add(CONV(x), 1.0), lambda x: add(CONV(x), normal(4)),
    lambda x: relu(DEPTHWISE(x) + x)], ids=["something between", "a number", "a vector", "a sum that the op has not"])
def test_what_is_not_joined(f):
    with tfuse.enabled():
        results(f, X, [], False)
    assert not joined()


def test_what_is_read_already_stays(jit):
    def f(x):
        y = CONV(x)
        z = y * 2
        return add(relu(y), z)

    same(f, jit)
    assert not joined()


def test_what_a_tape_watches_stays(jit):
    def f(x):
        parts = CONV(x), keras.layers.ZeroPadding2D(1)(x)
        with tf.GradientTape() as tape:
            tape.watch(parts)
            y = [relu(parts[0]), BARE(parts[1])]
        return tape.gradient(y, parts)

    run = lambda: tf.function(f, autograph=False, jit_compile=jit)(X)
    want = run()
    with tfuse.enabled():
        got = run()
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


# ---- zeros around the input ----

STEPS = {name: layer(lambda: make(*args, strides=2), None, 9, 9, 4) for name, make, *args in (
    ("Conv2D", keras.layers.Conv2D, 4, 3), ("DepthwiseConv2D", keras.layers.DepthwiseConv2D, 3),
    ("SeparableConv2D", keras.layers.SeparableConv2D, 4, 3))}


@pytest.mark.parametrize("zeros, left", [(((0, 1), (0, 1)), []), (1, ["DepthwiseConv2D", "SeparableConv2D"])],
                         ids=["same", "more"])
@pytest.mark.parametrize("name", STEPS)
def test_zeros_become_padding(jit, name, zeros, left):
    """A convolution has any padding; others that of "same"."""
    f = lambda x: STEPS[name](keras.layers.ZeroPadding2D(zeros)(x))
    same(f, jit)
    assert joined() == ["zeros around the input as padding"] * (name not in left)
    with tfuse.enabled():
        graph = tf.function(f, autograph=False).get_concrete_function(tf.TensorSpec(X.shape)).graph
    assert ("Pad" in {op.type for op in needed(graph)}) == (name in left)


@pytest.mark.parametrize("pairs", [[(0, 0), (1, 1), (1, 1), (2, 0)], [(1, 0), (1, 1), (1, 1), (0, 0)]],
                         ids=["channels", "images"])
def test_zeros_along_other_axes_stay(jit, pairs):
    more, channels = len(X) + sum(pairs[0]), X.shape[-1] + sum(pairs[-1])
    conv = layer(lambda: keras.layers.Conv2D(4, 3), more, 10, 10, channels)
    same(lambda x: conv(tf.pad(x, pairs)), jit)
    assert not joined()


@pytest.mark.parametrize("zeros", [1, 2])
def test_zeros_before_a_dilated_window(jit, zeros):
    """Of 3 places in steps of 2, two on each side are those of "same", and one is not."""
    dilated = layer(lambda: keras.layers.DepthwiseConv2D(3, dilation_rate=2), None, 12, 12, 4)
    same(lambda x: dilated(keras.layers.ZeroPadding2D(zeros)(x)), jit)
    assert joined() == ["zeros around the input as padding"] * (zeros == 2)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
@pytest.mark.parametrize("name", ["MaxPooling2D", "AveragePooling2D"])
def test_zeros_become_padding_of_pools(jit, name, data_format):
    """As ResNet begins; what is less than 0 shows whether the zeros count."""
    pad = keras.layers.ZeroPadding2D(((1, 1), (0, 2)), data_format)
    pool = getattr(keras.layers, name)(3, 2, data_format=data_format)
    f = lambda x: pool(pad(x - 3))
    if data_format == "channels_last" or jit or tf.config.list_physical_devices("GPU"):  # else TensorFlow has none on a CPU
        same(f, jit)
        assert joined() == ["zeros around the input as padding"]
    with tfuse.enabled():
        graph = tf.function(f, autograph=False).get_concrete_function(tf.TensorSpec(X.shape)).graph
    assert "Pad" not in {op.type for op in needed(graph)}
    start()
    with tfuse.enabled():
        same_padding = getattr(keras.layers, name)(3, 2, "same", data_format)
        tf.function(lambda x: same_padding(pad(x)), autograph=False).get_concrete_function(tf.TensorSpec(X.shape))
    assert not joined()


# ---- a batch norm of running statistics ----


@pytest.mark.parametrize("conv", [CONV, BARE], ids=["bias", "no bias"])
def test_running_statistics_become_weights(jit, conv):
    f = lambda x: relu(NORM(conv(x), training=False) + x)
    same(f, jit, tolerance=5e-5)
    folded = ["a batch norm of running statistics as part of a convolution", "relu of a convolution and another tensor"]
    assert joined() == (folded if jit else ["relu of a batch norm and another tensor"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits(jit, dtype):
    """At most twice as far from float64 as Keras, with a mean that is large beside the deviation."""
    def model(policy):
        keras.utils.set_random_seed(1)
        made = keras.Sequential([keras.Input([8, 8, 4]), keras.layers.Conv2D(16, 3, dtype=policy),
                                 keras.layers.BatchNormalization(dtype=policy), keras.layers.ReLU(dtype=policy)])
        made.layers[1].set_weights([np.abs(normal_of(w)) + 0.1 for w in made.layers[1].get_weights()])
        made.layers[0].set_weights([np.abs(normal_of(w)) for w in made.layers[0].get_weights()])
        run = tf.function(lambda x: made(x, training=False), autograph=False, jit_compile=jit)
        return lambda: tf.cast(run(tf.cast(np.abs(X), "bfloat16")), tf.float64)

    def normal_of(w):
        return np.random.default_rng(w.size).normal(size=w.shape)

    exact, want = model("float64")(), model("mixed_" + dtype)()
    with tfuse.enabled():
        got = model("mixed_" + dtype)()
    off = [np.sqrt(np.mean(np.square(y - exact))) for y in (got, want)]
    assert off[0] <= 2 * off[1]
    assert ("a batch norm of running statistics as part of a convolution" in joined()) == (jit and dtype == "bfloat16")


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_casts_no_weights(policy):
    """Kernels, biases and their gradients stay in the dtype of the variables, which the ops take."""
    layers = [keras.layers.Conv2D(8, 3, dtype=policy), keras.layers.BatchNormalization(dtype=policy),
              keras.layers.Conv2DTranspose(4, 3, dtype=policy, use_bias=False)]
    model = keras.Sequential([keras.Input([8, 8, 4]), *layers])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    with tfuse.enabled():
        graph = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([2, 8, 8, 4])).graph
    casts = [op.outputs[0].shape for op in needed(graph) if op.type == "Cast"]
    assert casts == [[2, 8, 8, 4]]  # of the input


# ---- channels first ----


def residual_network(data_format):
    """Two blocks, of layers that have the channels where data_format says."""
    keras.utils.set_random_seed(3)
    axis = 1 if data_format == "channels_first" else -1
    conv = lambda: keras.layers.Conv2D(8, 3, padding="same", data_format=data_format)
    norm = lambda: keras.layers.BatchNormalization(axis)
    x = inputs = keras.Input([3, 8, 8] if axis == 1 else [8, 8, 3])
    x = keras.layers.ReLU()(norm()(conv()(x)))
    for _ in range(2):
        y = keras.layers.ReLU()(norm()(conv()(x)))
        x = keras.layers.ReLU()(keras.layers.Add()([norm()(conv()(y)), x]))
    x = keras.layers.MaxPooling2D(2, data_format=data_format)(keras.layers.ZeroPadding2D(1, data_format)(x))
    x = keras.layers.Conv2D(4, 1, data_format=data_format)(x)
    return keras.Model(inputs, keras.layers.Flatten()(keras.layers.GlobalAveragePooling2D(data_format)(x)))


def losses(data_format, jit):
    model = residual_network(data_format)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_of_ours(jit))
    images = np.random.default_rng(0).normal(size=[16, 8, 8, 3]).astype("float32")
    targets = images.mean((1, 2))[:, [0, 1, 2, 0]]
    images = np.moveaxis(images, -1, 1) if data_format == "channels_first" else images
    return model.fit(images, targets, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]


def test_residual_networks_train_alike(jit):
    want = losses("channels_last", jit)
    for data_format in ("channels_last", "channels_first"):
        start()
        with tfuse.enabled():
            np.testing.assert_allclose(losses(data_format, jit), want, rtol=1e-3)
        assert {"relu of a batch norm", "relu of a batch norm and another tensor"} <= set(joined())


def test_channels_are_moved_at_the_ends_alone():
    """Once after the input, and once before what takes them first."""
    model = residual_network("channels_first")
    with tfuse.enabled():
        graph = tf.function(lambda x: model(x, training=True)).get_concrete_function(tf.TensorSpec([2, 3, 8, 8])).graph
    assert [op.type for op in needed(graph)].count("Tfuse>Transpose") == 2
    assert len(told(route="channels first")) == 1
