"""Which sizes of a function's tensors are surely equal, though they are not known while it is traced: of two results, what is
said is held against what they are, for many sizes of the inputs."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse._core import _sizes

WIDTH = 6
ROWS = tf.constant(np.random.default_rng(0).normal(size=[WIDTH, WIDTH]), tf.float32)
TABLE = tf.Variable(tf.zeros([9, WIDTH]))
tokens = lambda x: tf.cast(x[..., 0] * 0, tf.int32)
ops = keras.ops


def merged(x):
    """All rows of it in one axis, and back, by sizes that are computed."""
    batch, time, width = tf.unstack(tf.shape(x))
    return tf.reshape(tf.reshape(x, [batch * time, width]), [batch, time, width])


def halved(x):
    return tf.reshape(x, [tf.shape(x)[0], tf.shape(x)[1] * 2, WIDTH // 2])


def step(x, by, size=1, padding="valid"):
    return tfuse.conv(x, tf.ones([size, WIDTH, WIDTH]), strides=by, padding=padding)


SAME = {  # x and y are [unknown, unknown, WIDTH], and y need not be like x: two tensors of one shape
    "itself": lambda x, y: (x, x),
    "functions": lambda x, y: (tf.nn.softmax(tf.cast(tf.exp(x), tf.float16)), tf.stop_gradient(-x)),
    "sums": lambda x, y: (x + tf.constant(1.0), tf.nn.bias_add(x * tf.ones([1, WIDTH]), ROWS[0])),
    "a sum in two places": lambda x, y: (x + y, tf.maximum(y, x)),
    "where": lambda x, y: (tf.where(x > 0, x, 0.0), x),
    "products": lambda x, y: (tf.matmul(x, ROWS), tf.tensordot(x, ROWS, 1)),
    "scores": lambda x, y: (tf.matmul(tf.matmul(x, x, transpose_b=True), x),
                            tf.einsum("bqk,bkf->bqf", tf.matmul(x, x, transpose_b=True), x)),
    "einsum": lambda x, y: (tf.einsum("abc,cd->bad", x, ROWS), tf.transpose(x, [1, 0, 2])),
    "merged": lambda x, y: (merged(x), x),
    "by -1": lambda x, y: (tf.reshape(tf.reshape(x, [-1, WIDTH]), [tf.shape(x)[0], -1, WIDTH]), x),
    "halved": lambda x, y: (tf.reshape(halved(x), [tf.shape(x)[0], -1, WIDTH]), x),
    "heads": lambda x, y: (ops.reshape(ops.reshape(x, (*ops.shape(x)[:2], 2, 3)), ops.shape(x)), x),
    "axes": lambda x, y: (tf.squeeze(x[:, None][..., None], [1, 4]), tf.expand_dims(x, 1)[:, 0]),
    "slices": lambda x, y: (x[:, 0:, ..., ::-1], tf.concat([x[..., :2], x[..., 2:]], -1)),
    "parts": lambda x, y: (tf.split(x, 2, -1)[1], tf.split(x, [2, 3, 1], -1)[1]),
    "stacks": lambda x, y: (tf.unstack(tf.stack([x, x + 1], 1), axis=1)[1], tf.slice(x, [0, 0, 0], [-1, -1, WIDTH])),
    "reductions": lambda x, y: (tf.reduce_sum(x, -1), tf.argmax(x, -1)),
    "reduced": lambda x, y: (tf.reduce_mean(x, [1], keepdims=True), tf.reduce_max(x, 1)[:, None]),
    "random": lambda x, y: (tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2]), tf.random.uniform(tf.shape(x))),
    "filled": lambda x, y: (tf.zeros(tf.shape(x)), tf.broadcast_to(ROWS[0], tf.shape(x))),
    "tokens": lambda x, y: (tf.gather(ROWS, tokens(x)), tf.nn.embedding_lookup(TABLE, tokens(x))),
    "one of many": lambda x, y: (tf.one_hot(tokens(x), WIDTH), tf.gather_nd(ROWS, tokens(x)[..., None])),
    "gathered": lambda x, y: (tf.gather(x, [1, 0, 2, 3, 4, 5], axis=2), tf.gather(x, [[1]] * WIDTH, axis=-1)[..., 0]),
    "places": lambda x, y: (tf.range(tf.shape(x)[1]), tf.reduce_sum(x, [0, 2])),
    "more steps": lambda x, y: (tf.concat([tf.zeros([tf.shape(x)[0], 1, WIDTH]), x], 1), tf.pad(x, [[0, 0], [0, 1], [0, 0]])),
    "twice": lambda x, y: (tf.tile(x, [1, 2, 1]), tf.concat([x, x], 1)),
    "windows": lambda x, y: (tf.nn.conv1d(x, tf.ones([3, WIDTH, WIDTH]), 1, "SAME"), x),
    "pools": lambda x, y: (tf.nn.max_pool2d(x[:, None], [1, 3], 1, "SAME"), tf.nn.avg_pool2d(x[:, None], [1, 2], 1, "SAME")),
    "fused": lambda x, y: (tfuse.layer_norm(x, residual=tfuse.gelu(x))[0], tfuse.softmax(x, mask=y[:1, :1] > 9)),
    "fused, transposed": lambda x, y: (tfuse.transpose(x, [1, 0, 2]),
                                   tfuse.concat([tfuse.transpose(x[..., :1], [1, 0, 2])] * WIDTH, -1)),
    "batch norm": lambda x, y: (tfuse.batch_norm(x, *tf.unstack(tf.abs(ROWS))[:4], False)[0], x),
    "every second": lambda x, y: (step(x, 2), step(x, 2, 3, "same")),
    "every third": lambda x, y: (step(x, 3), tfuse.max_pool(x, 1, 3)),
    "a window more and less": lambda x, y: (step(x, 1, 1), step(x, 1, 3, ((1, 1),))),
    "attention": lambda x, y: (tfuse.attention(*[x[:, :, None]] * 3)[:, :, 0], x),
}
OTHER = {  # what may be of two shapes
    "two inputs": lambda x, y: (x, y),
    "a sum": lambda x, y: (x, x + y),
    "a gate": lambda x, y: (x, x * tf.sigmoid(tf.matmul(y, ROWS))),
    "fewer steps": lambda x, y: (x, x[:, :2]),
    "but one": lambda x, y: (x, x[:, 1:]),
    "every second": lambda x, y: (x, x[:, ::2]),
    "transposed": lambda x, y: (x, tf.transpose(x, [1, 0, 2])),
    "transposed, and a sum": lambda x, y: (x, x + tf.transpose(x, [1, 0, 2])),
    "a mean": lambda x, y: (x, tf.reduce_mean(x, 1, keepdims=True)),
    "by -1": lambda x, y: (tf.reshape(x, [-1, WIDTH]), tf.reshape(x, [tf.shape(x)[0], -1])[:, :WIDTH]),
    "a shape from elsewhere": lambda x, y: (x, tf.reshape(x, tf.where(tf.shape(x) > 2, tf.shape(x), [-1, 2, WIDTH]))),
    "-1 from elsewhere": lambda x, y: tuple(
        tf.reshape(z, [1, tf.shape(y)[0] - 2, WIDTH]) for z in (x, tf.tile(x, [2, 1, 1]))),
    "a longer one": lambda x, y: (x, tf.concat([x, x], 1)),
    "a padded one": lambda x, y: (x, tf.pad(x, [[0, 0], [1, 0], [0, 0]])),
    "halves": lambda x, y: (halved(x), tf.reshape(x, [tf.shape(x)[0] * 2, tf.shape(x)[1], WIDTH // 2])),
    "other tokens": lambda x, y: (tf.gather(ROWS, tokens(x)), tf.gather(ROWS, tokens(y))),
    "fewer images": lambda x, y: (x, tf.gather(x, [0])[:tf.shape(x)[0]]),
    "every second and third": lambda x, y: (step(x, 2), step(x, 3)),
    "a window that fits, and one that does not": lambda x, y: (step(x, 1), step(tf.pad(x, [[0, 0], [0, 1], [0, 0]]), 1, 3)),
    "a loop": lambda x, y: (x, tf.while_loop(lambda z: tf.shape(z)[1] < 2, lambda z: tf.concat([z, z], 1), [x], [
        tf.TensorShape([None, None, WIDTH])])[0]),
}
SIZES = [1, 2, 3, 4]


def traced(f, jit=False):
    """What is said of the two results of f, and f."""
    said = []

    @tf.function(input_signature=[tf.TensorSpec([None, None, WIDTH])] * 2, autograph=False, jit_compile=jit)
    def run(x, y):
        a, b = f(x, y)
        said.append(_sizes.same_shape(a, b))
        return a, b

    run.get_concrete_function()
    return said[0], run


def shapes(run):
    """Those of the two results, for all sizes of x and y that TensorFlow does not refuse."""
    for sizes in itertools.product(SIZES, repeat=4):
        try:
            a, b = run(tf.ones([*sizes[:2], WIDTH]), tf.ones([*sizes[2:], WIDTH]))
        except (tf.errors.InvalidArgumentError, ValueError):
            continue
        yield a.shape, b.shape


@pytest.mark.parametrize("name", SAME)
def test_surely_one_shape(name):
    said, run = traced(SAME[name])
    assert said
    found = list(shapes(run))
    assert len(found) > 3 and all(a == b for a, b in found)


@pytest.mark.parametrize("name", OTHER)
def test_perhaps_two_shapes(name):
    said, run = traced(OTHER[name])
    assert not said
    assert any(a != b for a, b in shapes(run))


@pytest.mark.usefixtures("xla")
@pytest.mark.parametrize("name", SAME)
def test_surely_one_shape_inside_xla(name):
    """Where tfuse's ops are modules that nothing can be read from."""
    assert traced(SAME[name], jit=True)[0]


def test_what_is_known():
    for a, b, one in ([2, 3], [2, 3], True), ([2, 3], [2, 4], False), ([2, None], [2, 3], False), (None, [2, 3], False):
        said = []
        f = tf.function(lambda x, y: said.append(_sizes.same_shape(x, y)))
        f.get_concrete_function(tf.TensorSpec(a), tf.TensorSpec(b))
        assert said == [one]
    assert not _sizes.same_shape(tf.zeros([]), tf.zeros([])) and _sizes.same_shape(tf.zeros([2]), tf.ones([2]))


def test_long_chains_end(jit):
    """Thousands of ops between two tensors are followed as far as they lie in one line; else a size has a name of its own."""
    def line(x, y):
        z = x
        for _ in range(2000):
            z = -z
        return x, z

    def sums(x, y):
        z = x
        for _ in range(300):
            z = z + tf.sin(z)
        return x, z

    assert traced(line, jit)[0]
    traced(sums, jit)
