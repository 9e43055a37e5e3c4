"""KerasHub's rotary embedding by tfuse.rope: the same, wherever tfuse.rope knows the frequencies."""

import importlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import check_declined, close, normal, ran, reasons, reasons_in, start
from tfuse._keras import _replaced_hub_rotary

X = normal(2, 5, 3, 8)


@pytest.fixture(scope="module", autouse=True)
def hub():
    return pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex")


def embedding(where="layers.modeling.rotary_embedding.RotaryEmbedding", **options):
    module, name = where.rsplit(".", 1)
    return getattr(importlib.import_module("keras_hub.src." + module), name)(**options)


LLAMA = "models.llama.llama_rotary_embedding.LlamaRotaryEmbedding"
SERVED = {
    "plain": (embedding, {}),
    "scaled": (lambda: embedding(max_wavelength=500, scaling_factor=4.0), {}),
    "later": (embedding, {"start_index": 7}),
    "later, by a tensor": (embedding, {"start_index": tf.constant(7)}),
    "by positions": (embedding, {"positions": tf.constant(np.arange(10).reshape(2, 5)[::-1])}),
    "by positions of all": (embedding, {"positions": tf.range(5) * 3}),
    "by one row of positions": (embedding, {"positions": tf.range(5)[None] * 3}),
    "by positions of one step": (embedding, {"positions": tf.constant([[7], [3]])}),
    "other axes": (lambda: embedding(sequence_axis=2, feature_axis=1), {}),
    "Llama": (lambda: embedding(LLAMA, max_wavelength=500, position_scaling_factor=2.0), {}),
}


@pytest.mark.parametrize("name", SERVED)
def test_same(name):
    make, options = SERVED[name]
    layer, x = make(), tf.constant(X if name != "other axes" else X.transpose(0, 3, 1, 2))

    def results():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, **options)
            loss = tf.reduce_sum(tf.sin(y))
        return y, tape.gradient(loss, x)

    want = results()
    start()
    with tfuse.enabled():
        got = results()
    assert "Rope" in ran() and not reasons()
    for g, w in zip(got, want, strict=True):
        close(g, w, 1e-5)


@pytest.mark.parametrize("shapes", [((2, 5, 3, 8), (2, 5)), ((2, 5, 3, 8), (1, 5)), ((1, 5, 3, 8), (2, 5))], ids=str)
def test_positions_of_unknown_sizes(shapes, jit):
    """One row of them is for all sequences, or all of them for one sequence."""
    layer, (x, places) = embedding(), shapes
    signature = [tf.TensorSpec([None, None, 3, 8]), tf.TensorSpec([None, None], tf.int32)]
    run = lambda: tf.function(lambda x, p: layer(x, positions=p), signature, autograph=False, jit_compile=jit)(
        normal_of(x), tf.reshape(tf.range(np.prod(places), dtype=tf.int32), places))
    want = run()
    start()
    with tfuse.enabled():
        got = run()
    close(got, want, 1e-5)
    assert jit or "Rope" in ran() and not reasons()


def normal_of(shape):
    return tf.constant(np.random.default_rng(3).normal(size=shape), tf.float32)


def test_in_mixed_precision():
    """At most twice as far from float32 as KerasHub's own."""
    x, layers = tf.cast(X, tf.bfloat16), [embedding(dtype=policy) for policy in ("float32", "mixed_bfloat16")]
    exact, own = layers[0](tf.cast(x, tf.float32)), layers[1](x)
    with tfuse.enabled():
        got = layers[1](x)
    off = lambda y: np.abs(tf.cast(y, tf.float32) - exact).max()
    assert got.dtype == own.dtype and off(got) <= 2 * off(own)


DECLINED = {
    "tfuse.rope does not know the frequencies of Phi3SuScaledRotaryEmbedding": (
        lambda: embedding("models.phi3.phi3_rotary_embedding.Phi3SuScaledRotaryEmbedding",
                          inverese_freq_short_factor=[1.0] * 4, inverese_freq_long_factor=[2.0] * 4), X, {}),
    "tfuse.rope scales all frequencies alike": (lambda: embedding(rope_type="dynamic", scaling_factor=2.0), X, {}),
    "tfuse.rope takes frequencies from the number of features": (lambda: embedding(denominator_dim=16), X, {}),
    "tfuse takes float32, float16, bfloat16 and float64, got int32": (embedding, np.ones((2, 5, 8), "int32"), {}),
    "the input is not [batch, time, ..., features] with an even number of features": (embedding, normal(5, 8), {}),
    "positions are no integers": (embedding, X, {"start_index": 0.5}),
    "positions are not [batch, time]": (embedding, X, {"positions": tf.ones([2, 5, 1], tf.int32)}),
}


@pytest.mark.parametrize("why", DECLINED)
def test_declined(why):
    make, x, options = DECLINED[why]
    layer = make()
    check_declined("RotaryEmbedding.call", why, lambda: layer.call(tf.constant(x), **options))


def test_every_reason_has_a_call():
    for pattern in reasons_in(_replaced_hub_rotary):
        assert any(re.fullmatch(pattern, why) for why in DECLINED), pattern


def test_names_of_other_layers_stay():
    keras.backend.clear_session()
    layer = embedding()
    with tfuse.enabled():
        layer(X)
    assert tfuse.RotaryEmbedding().name == "rotary_embedding_1"
