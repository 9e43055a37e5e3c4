"""What attention finds by looking back: causal masks, however they are written, and heads that were repeated."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfuse
from tfuse._keras import _look_back_attention
from conftest import skip_broken_xla
from enabling import close, needs_attention, normal, ran, start
from looking_back import joined

pytestmark = [needs_attention, pytest.mark.usefixtures("as_on_a_gpu")]

BATCH, TIME, HEADS, DIM = 2, 5, 4, 8
Q, K, V = (normal(BATCH, TIME, HEADS, DIM) for _ in range(3))
PADDING = np.array([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
steps = lambda: ops.arange(TIME)
triangle = lambda: ops.expand_dims(steps(), 1) >= ops.expand_dims(steps(), 0)

CAUSAL = {
    "compared": lambda p: triangle(),
    "tril": lambda p: ops.cast(ops.tril(ops.ones((TIME, TIME))), "bool"),
    "band": lambda p: tf.linalg.band_part(tf.ones([TIME, TIME], tf.bool), -1, 0),
    "with axes": lambda p: ops.cast(triangle(), "int32")[None, None] == 1,
    "stretched": lambda p: ops.broadcast_to(triangle(), (BATCH, 1, TIME, TIME)),
    "by NumPy": lambda p: tf.constant(np.tri(TIME, dtype=bool)),
}
MORE = {  # causal, and what is padded, or long ago, is not seen
    "and": lambda p: ops.logical_and(triangle(), ops.cast(p, "bool")[:, None, None, :]),
    "and, turned": lambda p: ops.logical_and(ops.expand_dims(ops.cast(p, "bool"), (1, 2)), triangle()),
    "as KerasHub": lambda p: ops.cast(ops.expand_dims(ops.minimum(
        ops.expand_dims(ops.cast(p, "int32"), 1), ops.cast(ops.broadcast_to(triangle()[None], (BATCH, TIME, TIME)), "int32")),
        1), "bool"),
    "window": lambda p: ops.logical_and(triangle(), ops.expand_dims(steps(), 1) - ops.expand_dims(steps(), 0) < 3),
    "stretched, then with an axis": lambda p: ops.expand_dims(ops.broadcast_to(MORE["window"](p), (BATCH, TIME, TIME)), 1),
    "times": lambda p: ops.cast(ops.expand_dims(ops.cast(p, "int64")[:, None] * ops.cast(triangle(), "int64"), -3), "bool"),
}
OTHERS = {  # not causal, or not known to be
    "by an input": lambda p: ops.expand_dims(steps(), 1) + ops.cast(p[0, 0] - 1, "int32") >= ops.expand_dims(steps(), 0),
    "and the next": lambda p: ops.expand_dims(steps(), 1) + 1 >= ops.expand_dims(steps(), 0),
    "turned": lambda p: ops.logical_or(ops.transpose(triangle()), ops.eye(TIME, dtype="bool")),
    "padding": lambda p: ops.cast(p, "bool")[:, None, None, :],
    "along heads": lambda p: ops.expand_dims(ops.cast(np.tri(HEADS, TIME), "bool"), 1)[None],
    "or": lambda p: ops.logical_or(triangle(), ops.cast(p, "bool")[:, None, None, :]),
    "less than 1, as integers": lambda p: ops.cast(ops.cast((np.tri(TIME) + np.eye(TIME)) / 2, "int32"), "bool"),
    "for all keys": lambda p: tf.ones([TIME, 1], tf.bool),
    "for all keys, and padding": lambda p: ops.logical_and(tf.ones([TIME, 1], tf.bool), ops.cast(p, "bool")[:, None, None, :]),
}


def outcomes(f, jit, *inputs):
    """f's result and gradients in a function, padding given to it as a tensor that it does not know."""

    @tf.function(autograph=False, jit_compile=jit)
    def step(padding, *inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = f(padding, *inputs)
            loss = tf.reduce_sum(tf.sin(y) * tf.cast(padding, y.dtype)[..., None, None])
        return [y * tf.cast(padding, y.dtype)[..., None, None], *tape.gradient(loss, inputs)]

    return step(tf.constant(PADDING), *map(tf.constant, inputs))


def check(f, jit, *inputs):
    if jit:
        skip_broken_xla()
    want = outcomes(f, jit, *inputs)
    start()
    with tfuse.enabled():
        got = outcomes(f, jit, *inputs)
    assert "Attention" in ran() or jit
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)
    return joined()


@pytest.mark.parametrize("name", CAUSAL)
def test_causal(jit, name):
    found = check(lambda p, *qkv: ops.dot_product_attention(*qkv, mask=CAUSAL[name](p)), jit, Q, K, V)
    assert "the mask is causal" in found


@pytest.mark.parametrize("name", MORE)
def test_causal_and_another(jit, name):
    found = check(lambda p, *qkv: ops.dot_product_attention(*qkv, mask=MORE[name](p)), jit, Q, K, V)
    assert "the mask is causal, and another" in found


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    found = check(lambda p, *qkv: ops.dot_product_attention(*qkv, mask=OTHERS[name](p)), False, Q, K, V)
    assert not any("causal" in why for why in found)


def test_more_keys_than_queries():
    for queries, keys in (3, 5), (5, 3):
        q, k, v = Q[:, :queries], K[:, :keys], V[:, :keys]

        def f(q, k, v):
            return ops.dot_product_attention(q, k, v, mask=tf.constant(np.tri(queries, keys, dtype=bool)))

        want = tf.function(f)(q, k, v)
        with tfuse.enabled():
            close(tf.function(f)(q, k, v), want, 1e-5)
        assert "the mask is causal" in joined()


@pytest.mark.parametrize("axis", [1, 2], ids=["keys", "queries"])
def test_a_triangle_of_heads(axis):
    """As many as there are steps: which axis was put in says what the others are."""
    def f(q, k, v):
        mask = ops.expand_dims(ops.expand_dims(ops.cast(np.tri(HEADS), "bool"), axis), 0)
        return ops.dot_product_attention(q, k, v, mask=mask)

    inputs = [x[:, :HEADS] for x in (Q, K, V)]
    want = tf.function(f)(*inputs)
    start()
    with tfuse.enabled():
        got = tf.function(f)(*inputs)
    seen = slice(None) if axis == 1 else np.tri(HEADS, dtype=bool).T  # a query that sees nothing is 0, with Keras a mean
    close(got.numpy()[:, seen], want.numpy()[:, seen], 1e-5)
    assert not joined()


def test_large_masks_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(_look_back_attention, "MOST", TIME * TIME - 1)
    assert not check(lambda p, *qkv: ops.dot_product_attention(*qkv, mask=triangle()), False, Q, K, V)


# ---- heads ----


def test_repeated_heads(jit):
    def f(p, query, key, value):
        key, value = (ops.repeat(x, 2, axis=2) for x in (key, value))
        return ops.dot_product_attention(query, key, value, is_causal=True)

    assert "heads that were repeated are shared" in check(f, jit, Q, K[:, :, :2], V[:, :, :2])


def test_repeated_heads_that_a_tape_watches(jit):
    """Their gradients are found."""
    def f(query, key, value):
        with tf.GradientTape() as tape:
            heads = [ops.repeat(x, 2, axis=2) for x in (key, value)]
            tape.watch(heads)
            y = tf.sin(ops.dot_product_attention(query, *heads))
        return tape.gradient(y, heads)

    run = lambda: tf.function(f, autograph=False, jit_compile=jit)(Q, K[:, :, :2], V[:, :, :2])
    want = run()
    start()
    with tfuse.enabled():
        got = run()
    assert not joined()
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


@pytest.mark.parametrize("how", [
    lambda k, v: (ops.repeat(k, 2, axis=2), ops.tile(v, (1, 1, 2, 1))),
    lambda k, v: (ops.tile(k, (1, 1, 2, 1)), ops.tile(v, (1, 1, 2, 1))),
    lambda k, v: (ops.repeat(ops.tile(k, (1, 1, 2, 1))[..., :4], 2, axis=-1), ops.repeat(v, 2, axis=2)),
], ids=["one of them", "tiled", "another axis"])
def test_other_repetitions(how):
    def f(p, query, key, value):
        key, value = how(key, value)
        return ops.dot_product_attention(query, key, value)

    assert "heads that were repeated are shared" not in check(f, False, Q, K[:, :, :2], V[:, :, :2])


def test_off():
    def f(query, key, value):
        key, value = (ops.repeat(x, 2, axis=2) for x in (key, value))
        return ops.dot_product_attention(query, key, value, mask=triangle())

    start()
    with tfuse.enabled(look_back=False):
        tf.function(f)(Q, K[:, :, :2], V[:, :, :2])
    assert not joined()
