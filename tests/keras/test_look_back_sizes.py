"""Looking back where sizes are not known while a function is traced: what may be stretched is left to Keras, and what is surely
of one shape is joined."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import close, layer, left_as_it_was, normal, reasons, start
from looking_back import joined

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")
WIDTH = 16
BATCH_NORM = layer(keras.layers.BatchNormalization, None, None, WIDTH)
BATCH_NORM.moving_variance.assign(np.abs(normal(WIDTH)) + 0.5)
MOVING = [w.numpy() for w in BATCH_NORM.non_trainable_weights]
NORM = layer(keras.layers.LayerNormalization, None, None, WIDTH)
CONV = layer(lambda: keras.layers.Conv1D(WIDTH, 3, padding="same"), None, None, WIDTH)
DENSE = layer(lambda: keras.layers.Dense(WIDTH), None, None, WIDTH)
ops = keras.ops


@pytest.fixture(autouse=True)
def same_running_statistics():
    """Those of the layer, also after a test that trains it."""
    yield
    for w, value in zip(BATCH_NORM.non_trainable_weights, MOVING):
        w.assign(value)


def outcomes(f, shapes, unknown, jit=False):
    """f's result and gradients for arrays of these shapes, of which as many of the first axes are not known as is said."""
    inputs = [np.random.default_rng(i).normal(size=shape).astype("float32") for i, shape in enumerate(shapes)]
    signature = [tf.TensorSpec([*[None] * unknown, *shape[unknown:]]) for shape in shapes]

    @tf.function(input_signature=signature, autograph=False, jit_compile=jit)
    def step(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = f(*inputs)
            total = tf.reduce_sum(tf.sin(y))
        return [y, *tape.gradient(total, inputs)]

    return step(*map(tf.constant, inputs))


# ---- two inputs, of which one may be stretched ----

PAIRS = {
    "a batch norm": lambda a, b: ops.add(BATCH_NORM(a, training=False), b),
    "a batch norm, last": lambda a, b: ops.add(b, BATCH_NORM(a, training=False)),
    "relu of a batch norm": lambda a, b: ops.relu(BATCH_NORM(a, training=True) + b),
    "a norm": lambda a, b: NORM(a + b),
    "an RMS norm": lambda a, b: ops.rms_normalization(a + b, NORM.gamma),
    "a gate": lambda a, b: ops.multiply(ops.silu(a), b),
    "a gate of a product": lambda a, b: ops.multiply(b, ops.gelu(DENSE(a))),
    "a convolution": lambda a, b: ops.add(CONV(a), b),
    "relu of a convolution": lambda a, b: ops.relu(b + CONV(a)),
}
SHAPES = {"across": ([1, 5, WIDTH], [5, 1, WIDTH]), "over time": ([4, 5, WIDTH], [4, 1, WIDTH]),
          "the first": ([1, 5, WIDTH], [4, 5, WIDTH]), "one shape": ([4, 5, WIDTH], [4, 5, WIDTH])}


@pytest.mark.parametrize("name", PAIRS)
def test_what_may_be_stretched(jit, name):
    if not hasattr(ops, "rms_normalization") and "RMS" in name:
        pytest.skip("this Keras has no rms_normalization")
    for shapes in list(SHAPES.values())[:2 if jit else None]:
        want = outcomes(PAIRS[name], shapes, 2, jit)
        start()
        with tfuse.enabled():
            got = outcomes(PAIRS[name], shapes, 2, jit)
        assert not {why for why in joined() if "another tensor" in why or "sum" in why}
        for g, w in zip(got, want, strict=True):
            close(g, w, 2e-5)


@pytest.mark.parametrize("sizes", [(1,), (WIDTH,)], ids=["a number for all", "a number for each"])
def test_bias_that_may_be_stretched(sizes):
    """It is no bias to tfuse.linear, which has one for each output; nor is a vector that widens a product of one column."""
    for shapes in ([[3, WIDTH], [WIDTH, WIDTH], sizes], [[3, WIDTH], [WIDTH, 1], [WIDTH]]):
        f = lambda x, kernel, bias: ops.gelu(tf.matmul(x, kernel) + bias)
        signature = [tf.TensorSpec(shapes[0]), tf.TensorSpec([WIDTH, None]), tf.TensorSpec([None])]
        inputs = [tf.constant(normal(*shape)) for shape in shapes]
        run = lambda: tf.function(f, input_signature=signature, autograph=False)(*inputs)
        want = run()
        with tfuse.enabled():
            close(run(), want, 1e-5)
        assert not joined()


def test_fit_on_a_generator():
    """Its batches say no sizes; a vector is added to every step of a sequence."""
    def batches():
        for steps in (5, 3):
            rng = np.random.default_rng(steps)
            a, b, target = (rng.normal(size=shape).astype("float32") for shape in ([4, steps, 8], [4, 1, 8], [4, steps, 8]))
            yield (a, b), target

    def losses():
        keras.utils.set_random_seed(1)
        a, b = (keras.Input([None, 8]) for _ in range(2))
        h = keras.layers.LayerNormalization()(a + b)
        gates = ops.multiply(keras.layers.Dense(8, "silu")(h), keras.layers.Dense(8)(b))
        model = keras.Model([a, b], keras.layers.LayerNormalization()(h + keras.layers.Dense(8)(gates)))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        spec = tf.TensorSpec([None, None, 8])
        data = tf.data.Dataset.from_generator(batches, output_signature=((spec, spec), spec))
        return model.fit(data, epochs=2, verbose=0).history["loss"]

    want = losses()
    with tfuse.enabled():
        got = losses()
    np.testing.assert_allclose(got, want, rtol=1e-5)


# ---- one input, and what is made of it ----

HEADS = keras.layers.MultiHeadAttention(2, 8)
HEADS.build(*[(None, None, WIDTH)] * 2)
UP = layer(lambda: keras.layers.EinsumDense("abc,cde->abde", (None, 2, 8), bias_axes="de"), None, None, WIDTH)
IMAGES = {i: layer(lambda: keras.layers.Conv2D(4, i, strides=2, padding="same"), None, None, None, 4) for i in (1, 3)}
IMAGE_NORM = layer(keras.layers.BatchNormalization, None, None, None, 4)
IMAGE_NORM.moving_variance.assign(np.abs(normal(4)) + 0.5)


def block(x):
    """Of a transformer, with dropout."""
    drop = lambda y: keras.random.dropout(y, 0.2, seed=1)
    h = x + drop(HEADS(NORM(x), NORM(x), use_causal_mask=True))
    h = h + drop(DENSE(ops.multiply(ops.silu(DENSE(NORM(h))), DENSE(h))))
    return NORM(h)


def by_heads(x):
    """As if it were attention, by hand."""
    y = ops.transpose(UP(x), (0, 2, 1, 3))
    y = ops.transpose(ops.matmul(ops.softmax(ops.matmul(y, ops.transpose(y, (0, 1, 3, 2)))), y), (0, 2, 1, 3))
    return NORM(x + ops.reshape(y, (*ops.shape(x)[:2], WIDTH)))


WHOLE = {  # what is computed, of which shape, and what of it is joined
    "a transformer": (block, [2, 5, WIDTH], ["the norm of a sum", "silu of a product", "silu times another tensor",
                                            "the norm of a sum"]),
    "by heads": (by_heads, [2, 5, WIDTH], ["the norm of a sum"]),
    "a convolution": (lambda x: ops.relu(CONV(x) + x), [2, 5, WIDTH], ["relu of a convolution and another tensor"]),
    "a batch norm": (lambda x: ops.add(x, BATCH_NORM(x, training=False)), [2, 5, WIDTH],
                     ["the sum of a batch norm and another tensor"]),
    "images, every second": (lambda x: ops.relu(IMAGE_NORM(IMAGES[1](x)) + ops.sin(IMAGES[3](x))), [2, 7, 6, 4],
                             ["relu of a batch norm and another tensor"]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_of_one_shape(jit, name):
    f, shape, why = WHOLE[name]
    for unknown in (len(shape) - 1, 1):
        want = outcomes(f, [shape], unknown, jit)
        start()
        with tfuse.enabled():
            got = outcomes(f, [shape], unknown, jit)
        folded = ["a batch norm of running statistics as part of a convolution"] * (jit and "images" in name)
        assert joined() == (folded + [why[0].replace("batch norm", "convolution")] if folded else why)
        for g, w in zip(got, want, strict=True):
            close(g, w, 1e-4)


# ---- what tfuse's ops take as it is, and Keras stretches ----

TRI = np.tri(5, dtype=bool)[None, None]
attend = lambda q, k, **scores: ops.dot_product_attention(*(x[:, :, None] for x in (q, k, k)), **scores)
LEFT = {  # a function of two tensors [unknown, unknown, WIDTH], and their shapes
    "softmax, a mask for more rows": (lambda a, b: keras.layers.Softmax()(a, mask=b > 0), [1, 5, WIDTH], [3, 5, WIDTH]),
    "softmax, one mask": (lambda a, b: keras.layers.Softmax()(a, mask=b > 0), [3, 5, WIDTH], [1, 1, WIDTH]),
    "cross entropy, one target": (lambda a, b: ops.categorical_crossentropy(
        tf.stop_gradient(tf.nn.softmax(b)), a, from_logits=True), [3, 5, WIDTH], [1, 1, WIDTH]),
    "cross entropy, one shape": (lambda a, b: ops.categorical_crossentropy(
        tf.stop_gradient(tf.nn.softmax(b)), a, from_logits=True), [3, 5, WIDTH], [3, 5, WIDTH]),
    "attention, a mask for more queries": (lambda a, b: attend(a, b, mask=tf.constant(TRI)), [2, 1, WIDTH], [2, 5, WIDTH]),
    "attention, a causal mask": (lambda a, b: attend(a, b, mask=tf.constant(TRI)), [2, 5, WIDTH], [2, 5, WIDTH]),
    "attention, a bias for more queries": (lambda a, b: attend(a, b, bias=tf.matmul(b, b, transpose_b=True)[:, None]),
                                           [2, 1, WIDTH], [2, 5, WIDTH]),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_keras_stretches(jit, name):
    """Served all the same, and as Keras does it."""
    f, *shapes = LEFT[name]
    if not hasattr(ops, "dot_product_attention") and "attention" in name:
        pytest.skip("this Keras has no dot_product_attention")
    want = outcomes(f, shapes, 2, jit)
    start()
    with tfuse.enabled():
        got = outcomes(f, shapes, 2, jit)
    assert not reasons() and not joined()
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            close(g, w, 2e-5)
