"""KerasHub's attention that is written out as products and a softmax: by tfuse.attention it gives the same.

While tfuse is enabled, a softmax that Keras computes is tfuse's own: where Softmax did not run, no weights were computed
beside tfuse.attention."""

import importlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import (SPARSE, TOKENS, TOLERANCE, check_declined, close, left_as_it_was, needs_attention, normal, ran, reasons,
                      reasons_in, start)
from tfuse._keras import _behind_hub_attention

pytestmark = needs_attention
HERE = TOKENS > 0
ONCE, TWICE = {"token_ids": TOKENS, "padding_mask": HERE}, {
    "encoder_token_ids": TOKENS, "encoder_padding_mask": HERE, "decoder_token_ids": TOKENS[::-1],
    "decoder_padding_mask": HERE[::-1]}
DIMS = dict(vocabulary_size=32, num_layers=2, hidden_dim=16, intermediate_dim=32)
# Backbones, small and with random weights; what they are called with.
MODELS = {
    "BloomBackbone": (dict(num_heads=4, max_sequence_length=16), ONCE),
    "FalconBackbone": (dict(num_attention_heads=4), ONCE),
    "T5Backbone": (dict(num_heads=4, key_value_dim=8, dropout=0.0), TWICE),
    "DebertaV3Backbone": (dict(num_heads=4, dropout=0.0, max_sequence_length=16, bucket_size=4), ONCE),
    "GptOssBackbone": (dict(num_query_heads=4, num_key_value_heads=2, num_experts=3, top_k=2, sliding_window=4, head_dim=8),
                       ONCE),
}


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex").models


def backbone(hub, name, **options):
    keras.utils.set_random_seed(0)
    model = getattr(hub, name)(**DIMS, **MODELS[name][0], **options)
    for i, weight in enumerate(model.weights):  # those that begin as 0 matter too
        weight.assign(weight + 0.1 * np.random.default_rng(i).normal(size=weight.shape))
    return model


def results(call, weights):
    """Outputs, and gradients of weights where there are any."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = tf.nest.flatten(call())
        loss = tf.add_n([tf.reduce_mean(tf.square(tf.cast(y, tf.float32) - 1)) for y in outputs])
    return outputs, tape.gradient(loss, weights) if weights else []


def check_same(call, weights, tolerance=1e-5):
    """Results and gradients of a call, by tfuse and by KerasHub itself; and that no other attention is computed."""
    want, dwant = results(call, weights)
    start()
    with tfuse.enabled():
        got, dgot = results(call, weights)
    assert {"Attention", *(["AttentionGrad"] if weights else [])} <= ran() and not reasons()
    assert [y.dtype for y in got] == [y.dtype for y in want]
    for a, b in zip(got, want, strict=True):
        close(a, b, tolerance)
    for a, b in zip(dgot, dwant, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            close(tf.convert_to_tensor(a), tf.convert_to_tensor(b), 10 * tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_models(hub, name):
    model = backbone(hub, name)
    inputs = MODELS[name][1]

    def call():
        outputs = model(inputs)
        if "decoder_padding_mask" in inputs:
            return [outputs["encoder_sequence_output"][HERE], outputs["decoder_sequence_output"][HERE[::-1]]]
        return outputs[HERE]

    check_same(call, [w.value for w in model.trainable_weights])
    start()
    with tfuse.enabled():
        call()
    assert "Softmax" not in ran() or name == "GptOssBackbone"  # which routes tokens to experts by a softmax


@pytest.mark.parametrize("name", ["Bloom", "Falcon", "T5", "GptOss"])
def test_generation(hub, name):
    """Token by token from a cache, T5 with one for each of its decoder's attentions."""
    first = np.arange(12) < 5

    def text():
        body = backbone(hub, name + "Backbone")
        model = getattr(hub, name + ("Seq2SeqLM" if name == "T5" else "CausalLM"))(body, preprocessor=None)
        model.compile(sampler="greedy")
        side = "decoder_" if name == "T5" else ""
        inputs = {side + "token_ids": np.where(first, TOKENS[:4], 0), side + "padding_mask": np.tile(first, (4, 1))}
        if name == "T5":
            inputs.update(encoder_token_ids=TOKENS[:4], encoder_padding_mask=HERE[:4])
        return model.generate(inputs, stop_token_ids=None)[side + "token_ids"]

    want = text()
    start()
    with tfuse.enabled():
        got = text()
    assert np.array_equal(got, want) and len(set(np.ravel(got))) > 4
    assert "Attention" in ran() and not reasons()


@pytest.mark.parametrize("name", ["Bloom", "Falcon", "T5", "DebertaV3"])
def test_training(hub, name, jit):
    def step():
        body = backbone(hub, name + "Backbone")
        output = body.output["decoder_sequence_output"] if name == "T5" else body.output
        model = keras.Model(body.input, body.token_embedding(output, reverse=True))
        model.compile(keras.optimizers.SGD(0.1), SPARSE(ignore_class=0), jit_compile=jit)
        return [model.train_on_batch(MODELS[name + "Backbone"][1], TOKENS) for _ in range(2)]

    want = step()
    start()
    with tfuse.enabled():
        got = step()
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert got[1] < got[0]
    assert {"Attention", "AttentionGrad"} <= ran() and not reasons()
    traced = {(row["op"], row["route"]) for row in tfuse.explain(1000) if row["when"] == "traced"}
    assert not jit or {("Attention", "XLA custom call"), ("AttentionGrad", "XLA custom call")} <= traced


# ---- single layers ----


def class_of(module, name):
    return getattr(importlib.import_module("keras_hub.src.models." + module), name)


def built(module, name, *shapes, dtype="float32", **options):
    """A layer with weights that matter."""
    layer = class_of(module, name)(dtype=dtype, **options)
    if not layer.built:
        layer.build(*shapes)
    for i, weight in enumerate(layer.weights):
        if weight.dtype != "uint32":  # the state of a generator
            weight.assign(0.5 * np.random.default_rng(i).normal(size=weight.shape))
    return layer


X, STATES = normal(3, 6, 16), normal(3, 7, 16)
LATER = normal(3, 2, 16)  # two steps that come behind others which are in a cache
SOME = np.random.default_rng(1).random((3, 6, 6)) < 0.7
SOME[..., 0] = True
NONE = SOME.copy()
NONE[1, 2] = False  # a query that may attend to nothing
CACHE = normal(3, 2, 8, 4, 4)
UP_TO = np.arange(8) <= 5 + np.arange(2)[:, None] + np.zeros([3, 1, 1])
ALIBI = normal(3, 4, 1, 6)


def bloom(dtype="float32", dropout=0.0):
    return built("bloom.bloom_attention", "BloomAttention", (3, 6, 16), num_heads=4, dropout=dropout, dtype=dtype)


def falcon(dtype="float32", dropout=0.0):
    return built("falcon.falcon_attention", "FalconAttention", (3, 6, 16), num_heads=4, attention_dropout_rate=dropout,
                 dtype=dtype)


def t5(dtype="float32", dropout=0.0, **options):
    layer = class_of("t5.t5_multi_head_attention", "T5MultiHeadAttention")(
        hidden_dim=16, key_value_dim=4, num_heads=4, dropout=dropout, dtype=dtype, **{"is_decoder": False, **options})
    layer(X)  # which builds it
    return layer


def deberta(dtype="float32", dropout=0.0):
    return built("deberta_v3.disentangled_self_attention", "DisentangledSelfAttention", (3, 6, 16), num_heads=4,
                 hidden_dim=16, max_position_embeddings=8, bucket_size=4, dropout=dropout, dtype=dtype)


def gpt_oss(dtype="float32", **options):
    return built("gpt_oss.gpt_oss_attention", "GptOssAttention", (3, 6, 16), num_query_heads=4, num_key_value_heads=2,
                 head_dim=4, dtype=dtype, **options)


def gemma4(dtype="float32", dropout=0.0, **options):
    return built("gemma4.gemma4_attention", "Gemma4VisionAttention", (3, 6, 16), head_dim=4, num_query_heads=4,
                 num_key_value_heads=2, dropout=dropout, dtype=dtype, **options)


def video_prism(dtype="float32", dropout=0.0, **options):
    return built("video_prism.video_prism_layers", "VideoPrismAttention", (3, 6, 16), num_heads=4, key_dim=4, hidden_dim=16,
                 dropout_rate=dropout, dtype=dtype, **options)


def gemma3_vision(dtype="float32"):
    return built("gemma3.gemma3_vision_encoder", "Gemma3VisionEncoderLayer", (3, 6, 16), num_heads=4, intermediate_dim=8,
                 dtype=dtype)


def pali_gemma(dtype="float32"):
    return built("pali_gemma.pali_gemma_vit", "PaliGemmaVitEncoderBlock", (3, 6, 16), num_heads=4, intermediate_dim=8,
                 dtype=dtype)


def sam(dtype="float32"):
    return built("sam.sam_layers", "MultiHeadAttentionWithDownsampling", num_heads=4, key_dim=4, downsample_rate=2, dtype=dtype)


def flux(query, key, value, **options):
    return class_of("flux.flux_maths", "scaled_dot_product_attention")(query, key, value, **options)


# A layer, and what it is called with.
CALLS = {
    "Bloom": (bloom, (X,), dict(attention_mask=SOME)),
    "Bloom, mask of numbers": (bloom, (X,), dict(attention_mask=SOME.astype("int32"))),
    "Bloom, nothing": (bloom, (X,), dict(attention_mask=NONE)),
    "Bloom, cache": (bloom, (LATER,), dict(attention_mask=UP_TO, cache=CACHE, cache_update_index=5)),
    "Bloom, cache as it is": (bloom, (LATER,), dict(attention_mask=UP_TO, cache=CACHE)),
    "Falcon": (falcon, (X, ALIBI), dict(attention_mask=SOME)),
    "Falcon, nothing": (falcon, (X, ALIBI), dict(attention_mask=NONE)),
    "Falcon, cache": (falcon, (LATER, normal(3, 4, 1, 8)), dict(attention_mask=UP_TO, cache=CACHE, cache_update_index=5)),
    "T5, first layer": (lambda **o: t5(use_relative_attention_bias=True, **o), (X,), dict(mask=SOME)),
    "T5, no mask": (lambda **o: t5(use_relative_attention_bias=True, **o), (X,), {}),
    "T5, later layer": (t5, (X,), dict(mask=NONE, position_bias=tf.where(SOME[:, None], normal(3, 4, 6, 6), -1e9))),
    "T5, cross": (t5, (X,), dict(mask=np.arange(7) < [[[7]], [[5]], [[6]]], key_value_states=STATES)),
    "T5, cross, mask of numbers": (t5, (X,), dict(mask=(np.arange(7) < [[[7]], [[5]], [[6]]]).astype("int32"),
                                                  key_value_states=STATES)),
    "T5, cross, no mask": (t5, (X,), dict(key_value_states=STATES)),
    "T5, cross, cache": (t5, (LATER,), dict(cache=CACHE, key_value_states=STATES)),
    "T5, cache": (lambda **o: t5(use_relative_attention_bias=True, is_decoder=True, **o), (LATER,),
                  dict(mask=UP_TO, cache=CACHE, cache_update_index=5)),
    "DeBERTa": (deberta, (X, normal(1, 8, 16)), dict(attention_mask=SOME)),
    "DeBERTa, padding": (deberta, (X, normal(1, 8, 16)), dict(attention_mask=SOME[:, :1].astype("int32"))),
    "DeBERTa, nothing": (deberta, (X, normal(1, 8, 16)), dict(attention_mask=NONE)),
    "GPT-OSS": (gpt_oss, (X,), dict(attention_mask=SOME)),
    "GPT-OSS, nothing": (gpt_oss, (X,), dict(attention_mask=NONE)),
    "GPT-OSS, no mask": (gpt_oss, (X,), {}),
    "GPT-OSS, window": (lambda **o: gpt_oss(sliding_window=2, **o), (X,), dict(attention_mask=SOME)),
    "GPT-OSS, only window": (lambda **o: gpt_oss(sliding_window=2, **o), (X,), {}),
    "GPT-OSS, cache": (lambda **o: gpt_oss(sliding_window=2, **o), (LATER,), dict(
        attention_mask=UP_TO > 0, cache=CACHE[..., :2, :], cache_update_index=5)),
    "Gemma 4, vision": (gemma4, (X,), dict(attention_mask=SOME[:, 0])),
    "Gemma 4, vision, no mask": (gemma4, (X,), {}),
    "VideoPrism": (video_prism, (X, X), {}),
    "VideoPrism, scale per channel": (lambda **o: video_prism(use_per_dim_scale=True, **o), (X, X), dict(attention_mask=SOME)),
    "VideoPrism, padding": (video_prism, (X, STATES), dict(key=STATES, attention_mask=np.arange(7) < [[7], [5], [6]])),
    "VideoPrism, all axes": (video_prism, (X, X), dict(attention_mask=SOME[:, None])),
    "Gemma 3, vision": (gemma3_vision, (X,), {}),
    "PaliGemma, vision": (pali_gemma, (X,), {}),
    "SAM": (sam, (X, STATES, STATES), {}),
}
HALF = {"Bloom", "Falcon", "T5, no mask", "T5, later layer", "T5, cross", "DeBERTa", "GPT-OSS", "Gemma 4, vision",
        "VideoPrism, scale per channel", "PaliGemma, vision", "SAM"}


@pytest.mark.parametrize("name", CALLS)
def test_layers(hub, name):
    make, inputs, options = CALLS[name]
    layer, inputs = make(), [tf.constant(x) for x in inputs]
    weights = [*inputs, *(w.value for w in layer.trainable_weights)]
    if "cache_update_index" in options:
        weights = []  # TensorFlow has no gradient of what updates a cache
    check_same(lambda: [y for y in tf.nest.flatten(layer(*inputs, **options)) if y is not None], weights)
    start()
    with tfuse.enabled():
        layer(*inputs, **options)
    assert "Attention" in ran() and "Softmax" not in ran()


@pytest.mark.parametrize("carried", [True, False])
def test_t5_where_there_is_nothing_to_attend_to(hub, carried):
    """KerasHub's T5 gives the mean of all values there, tfuse gives 0, in later layers as in the first, whether or not the
    position bias comes as the first has returned it. All other queries, and gradients, are as if it were not there."""
    first, later = t5(use_relative_attention_bias=True), t5()
    weights = [w.value for layer in (first, later) for w in layer.trainable_weights]
    whole = []

    def call():
        y, position_bias, _ = first(X, mask=NONE)
        z, _, _ = later(X, position_bias=position_bias if carried else tf.identity(position_bias))
        whole[:] = y, z
        return [x[np.any(NONE, -1)] for x in whole]

    check_same(call, weights)
    for x in whole:
        assert not np.any(x[1, 2]) and np.all(np.any(x[0], -1))
