"""tfuse.enable() behind Keras's ops on arrays: the same results and gradients, where it serves them, and no trace elsewhere."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from enabling import TOLERANCE, close, left_as_it_was, normal, start  # noqa: F401
from looking_back import runs
from tfuse._core import _library
from tfuse._keras import _behind_arrays

X, IDS = normal(6, 5, 8), np.array([2, 0, 1, 2, 0, 0])
CALLS = {  # a call of Keras, the op that serves it, whether inside jit_compile=True, too
    "sum": (lambda x: keras.ops.sum(x, 0), "Reduce", False),
    "mean": (lambda x: keras.ops.mean(x, (0, 2), keepdims=True), "Reduce", False),
    "max": (lambda x: keras.ops.max(x, -1), "Reduce", False),
    "min": (lambda x: keras.ops.min(x, axis=1), "Reduce", False),
    "transpose": (lambda x: keras.ops.transpose(x, (2, 0, 1)), "Transpose", False),
    "transpose, all axes": (keras.ops.transpose, "Transpose", False),
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
    "sort of all": lambda x: keras.ops.sort(x, None),
}


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch):
    """As where there is a GPU, and for small tensors."""
    monkeypatch.setattr(_library, "without_gpu", lambda: False)
    monkeypatch.setattr(_behind_arrays, "LEAST", 1)


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
        monkeypatch.setattr(_behind_arrays, "LEAST", X.size + 1)
    else:
        monkeypatch.setattr(_library, "without_gpu", lambda: True)
    with tfuse.enabled():
        keras.ops.sum(tf.constant(X), 0)
    assert not any(map(runs, OPS)) and not [row for row in tfuse.explain(64) if row["when"] == "called"]


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
