"""tfuse.enable() behind Keras's ops on arrays: the same results and gradients, where it serves them, and no trace elsewhere."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from enabling import TOLERANCE, close, left_as_it_was, normal, ran, start, told  # noqa: F401
from looking_back import runs
from tfuse._core import _library
from tfuse._keras import _replaced_arrays

X, IDS = normal(6, 5, 8), np.array([2, 0, 1, 2, 0, 0])
CALLS = {  # a call of Keras, the op that serves it, whether inside jit_compile=True, too
    "sum": (lambda x: keras.ops.sum(x, 0), "Reduce", False),
    "mean": (lambda x: keras.ops.mean(x, (0, 2), keepdims=True), "Reduce", False),
    "max": (lambda x: keras.ops.max(x, -1), "Reduce", False),
    "min": (lambda x: keras.ops.min(x, axis=1), "Reduce", False),
    "transpose": (lambda x: keras.ops.transpose(x, (2, 0, 1)), "Transpose", False),
    "transpose, all axes": (keras.ops.transpose, "Transpose", False),
    "concatenate": (lambda x: keras.ops.concatenate([x, 2 * x, x[:, :2]], 1), "Concat", False),
    "Concatenate": (lambda x: keras.layers.Concatenate()([x, x[..., :3]]), "Concat", False),
    "cumsum": (lambda x: keras.ops.cumsum(x, 1), "Scan", True),
    "sort": (lambda x: keras.ops.sort(x, 0), "Sort", True),
    "top_k": (lambda x: keras.ops.top_k(x, 3)[0], "TopK", True),
    "segment_sum": (lambda x: keras.ops.segment_sum(x, IDS, num_segments=4), "SegmentSum", True),
    "segment_sum of sorted ids": (lambda x: keras.ops.segment_sum(x, np.sort(IDS), sorted=True), "SegmentSum", None),
    "GlobalAveragePooling1D": (keras.layers.GlobalAveragePooling1D(), "Reduce", False),
}
OPS = {op for _, op, _ in CALLS.values()}
LEFT = {  # to Keras
    "sum of all": keras.ops.sum,
    "mean over the last axes": lambda x: keras.ops.mean(x, (-1, 1)),
    "integers": lambda x: keras.ops.sum(keras.ops.cast(x, "int32"), 0),
    "max with a first value": lambda x: keras.ops.max(x, 0, initial=9.0),
    "cumsum of another type": lambda x: keras.ops.cumsum(x, 0, dtype="float64"),
    "cumsum of all": keras.ops.cumsum,
    "concatenate integers": lambda x: keras.ops.concatenate([keras.ops.cast(x, "int32")] * 2, -1),
    "concatenate two types": lambda x: keras.ops.concatenate([x, keras.ops.cast(x, "bfloat16")], -1),
    "concatenate one": lambda x: keras.ops.concatenate([x], 0),
    "concatenate an array": lambda x: keras.ops.concatenate([x, X], 0),
    "sort of all": lambda x: keras.ops.sort(x, None),
}


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch):
    """As where there is a GPU, and for small tensors."""
    monkeypatch.setattr(_library, "without_gpu", lambda: False)
    monkeypatch.setattr(_replaced_arrays, "LEAST", 1)


def results(f, jit=False):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) * tf.cast(tf.reshape(tf.range(tf.size(y)), tf.shape(y)), tf.float32))
        return y, tape.gradient(loss, x)

    return (tf.function(step, jit_compile=True) if jit else step)(tf.constant(X))


def check(f, served, op, jit):
    want = results(f, jit)
    start()
    with tfuse.enabled():
        got = results(f, jit)
    assert bool(runs(op)) == served
    for g, w in zip(got, want):
        close(g, w, TOLERANCE["float32"])


@pytest.mark.parametrize("name", CALLS)
def test_served(name):
    f, op, _ = CALLS[name]
    check(f, True, op, False)


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name][2] is not None])
def test_inside_xla(name):
    skip_broken_xla()
    f, op, inside = CALLS[name]
    check(f, inside and not _library.xla_status(), op, True)


@pytest.mark.parametrize("name", LEFT)
def test_left_to_keras(name):
    f = LEFT[name]
    want = f(tf.constant(X))
    start()
    with tfuse.enabled():
        got = f(tf.constant(X))
    assert not any(map(runs, OPS)) and got.dtype == want.dtype and np.array_equal(got, want)


@pytest.mark.parametrize("why", ["without a GPU", "small"])
def test_not_worth_it(why, monkeypatch):
    if why == "small":
        monkeypatch.setattr(_replaced_arrays, "LEAST", X.size + 1)
    else:
        monkeypatch.setattr(_library, "without_gpu", lambda: True)
    with tfuse.enabled():
        keras.ops.sum(tf.constant(X), 0)
    assert not any(map(runs, OPS)) and not told(when="called")


def test_sizes_that_are_not_known():
    """A batch of any size, as in a Keras model: what is known decides."""
    f = tf.function(lambda x: keras.ops.mean(x, 1), input_signature=[tf.TensorSpec([None, 5, 8])])
    with tfuse.enabled():
        got = f(tf.constant(X))
    assert runs("Reduce")
    close(got, X.mean(1), TOLERANCE["float32"])


def test_sums_of_halves_over_the_last_axes_are_served():
    """Which stock TensorFlow has at the speed of memory in float32 only."""
    x = tf.cast(X, tf.bfloat16)
    start()
    with tfuse.enabled():
        got = keras.ops.sum(x), keras.ops.mean(x, -1)
    assert len(runs("Reduce")) == 2
    close(tf.cast(got[0], tf.float32), np.sum(tf.cast(x, tf.float32)), TOLERANCE["bfloat16"])
    close(tf.cast(got[1], tf.float32), np.mean(tf.cast(x, tf.float32), -1), TOLERANCE["bfloat16"])


def test_concatenate_small_and_of_any_batch(monkeypatch):
    """A result that is known to be small is left to Keras; one whose batch is not known is served."""
    monkeypatch.setattr(_replaced_arrays, "LEAST", 2 * X.size + 1)
    join = lambda x: keras.ops.concatenate([x, -x], -1)
    with tfuse.enabled():
        join(tf.constant(X))
        assert not runs("Concat")
        got = tf.function(join, input_signature=[tf.TensorSpec([None, 5, 8])])(tf.constant(X))
    assert runs("Concat") and np.array_equal(got, np.concatenate([X, -X], -1))


def test_a_model_with_skips():
    """A small U-Net trains as it does without tfuse."""
    images = normal(16, 8, 8, 3)

    def losses():
        keras.utils.set_random_seed(1)
        x = keras.Input([8, 8, 3])
        wide = keras.layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        deep = keras.layers.UpSampling2D()(keras.layers.MaxPooling2D()(wide))
        y = keras.layers.Conv2D(1, 3, padding="same")(keras.layers.Concatenate()([wide, deep]))
        model = keras.Model(x, y)
        model.compile("sgd", "mse", jit_compile=False)
        return [model.train_on_batch(images, images[..., :1]) for _ in range(3)]

    want = losses()
    with tfuse.enabled():
        got = losses()
    assert {"Concat", "ConcatSplit"} <= ran()
    np.testing.assert_allclose(got, want, rtol=1e-4)
