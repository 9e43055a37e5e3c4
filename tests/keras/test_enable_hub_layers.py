"""KerasHub's layers that write attention out as products and a softmax, one by one: by tfuse.attention they give the same,
whatever is added to the scores and however they are masked."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from enabling import (TOLERANCE, check_attention, check_declined, close, left_as_it_was, needs_attention, normal, ran,
                      reasons, reasons_but_rotary, reasons_in, start)
from tfuse._keras import _replaced_hub_attention, _replaced_hub_vision

pytestmark = needs_attention


@pytest.fixture(scope="module", autouse=True)
def hub():
    return pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex")


def class_of(module, name):
    return getattr(pytest.importorskip("keras_hub.src.models." + module), name)


def built(module, name, *shapes, dtype="float32", **options):
    """A layer with weights that matter."""
    layer = class_of(module, name)(dtype=dtype, **options)
    if not layer.built:
        layer.build(*shapes)
    for i, weight in enumerate(layer.trainable_weights):
        weight.assign(0.5 * np.random.default_rng(i).normal(size=weight.shape))
    return layer


X, STATES = normal(3, 6, 16), normal(3, 7, 16)
LATER = normal(3, 2, 16)  # two steps that come after others which are in a cache
SOME = np.random.default_rng(1).random((3, 6, 6)) < 0.7
SOME[..., 0] = True
NONE = SOME.copy()
NONE[1, 2] = False  # a query that may attend to nothing
CACHE = normal(3, 2, 8, 4, 4)
UP_TO = np.arange(8) <= 5 + np.arange(2)[:, None] + np.zeros([3, 1, 1])
ALIBI, IMAGE = normal(3, 4, 1, 6), normal(2, 16, 16)


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
    return built("sam.sam_layers", "MultiHeadAttentionWithDownsampling", num_heads=4, key_dim=4, downsample_rate=2,
                 dtype=dtype)


def d_fine(dtype="float32", dropout=0.0):
    return built("d_fine.d_fine_attention", "DFineMultiheadAttention", (3, 6, 16), embedding_dim=16, num_heads=4,
                 dropout=dropout, dtype=dtype)


def segformer(sr_ratio=1, dropout=0.0):
    layer = class_of("mit.mit_layers", "SegFormerMultiheadAttention")(16, 4, sr_ratio)
    layer(IMAGE)  # which builds it
    layer.dropout.rate = dropout
    return layer


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
    "Gemma 4, vision, soft cap": (lambda **o: gemma4(logit_soft_cap=2.0, **o), (X,), dict(attention_mask=SOME[:, 0])),
    "VideoPrism": (video_prism, (X, X), {}),
    "VideoPrism, scale per channel": (lambda **o: video_prism(use_per_dim_scale=True, **o), (X, X),
                                      dict(attention_mask=SOME)),
    "VideoPrism, padding": (video_prism, (X, STATES), dict(key=STATES, attention_mask=np.arange(7) < [[7], [5], [6]])),
    "VideoPrism, soft cap": (lambda **o: video_prism(attention_logit_soft_cap=0.5, **o), (X, X), dict(attention_mask=SOME)),
    "VideoPrism, all axes": (video_prism, (X, X), dict(attention_mask=SOME[:, None])),
    "Gemma 3, vision": (gemma3_vision, (X,), {}),
    "PaliGemma, vision": (pali_gemma, (X,), {}),
    "SAM": (sam, (X, STATES, STATES), {}),
    "D-FINE": (d_fine, (X,), dict(position_embeddings=normal(3, 6, 16), attention_mask=normal(6, 6))),
    "D-FINE, mask of a batch": (d_fine, (X,), dict(attention_mask=normal(3, 6, 6))),
    "D-FINE, no mask": (d_fine, (X,), {}),
    "SegFormer": (segformer, (IMAGE,), {}),
    "SegFormer, smaller keys": (lambda: segformer(2), (IMAGE,), {}),
    "Flux": (lambda: flux, [normal(2, 4, 6, 8), normal(2, 4, 7, 8), normal(2, 4, 7, 8)], {}),
    "Flux, scale": (lambda: flux, [normal(2, 4, 6, 8), normal(2, 4, 7, 8), normal(2, 4, 7, 8)], dict(scale=0.5)),
}
HALF = {"Bloom", "Falcon", "T5, no mask", "T5, later layer", "T5, cross", "DeBERTa", "GPT-OSS", "Gemma 4, vision",
        "Gemma 4, vision, soft cap", "VideoPrism, scale per channel", "VideoPrism, soft cap", "PaliGemma, vision", "SAM", "D-FINE"}


@pytest.mark.parametrize("name", CALLS)
def test_layers(name):
    make, inputs, options = CALLS[name]
    layer, inputs = make(), [tf.constant(x) for x in inputs]
    weights = [*inputs, *(w.value for w in getattr(layer, "trainable_weights", []))]
    if "cache_update_index" in options:
        weights = []  # TensorFlow has no gradient of what updates a cache
    check_attention(lambda: [y for y in tf.nest.flatten(layer(*inputs, **options)) if y is not None], weights)
    start()
    with tfuse.enabled():
        layer(*inputs, **options)
    assert "Attention" in ran() and "Softmax" not in ran()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", HALF)
def test_mixed_precision(name, policy):
    """Against KerasHub in float32: its own T5 gives NaN where there is a mask in float16, which has no -1e9."""
    make, inputs, options = CALLS[name]
    layer, mixed = make(), make(dtype=policy)
    mixed.set_weights(layer.get_weights())
    want = tf.nest.flatten(layer(*inputs, **options))[0]
    with tfuse.enabled():
        start()
        got = tf.nest.flatten(mixed(*inputs, **options))[0]
    assert got.dtype == mixed.compute_dtype and "Attention" in ran() and not reasons_but_rotary()
    close(got, want, TOLERANCE[mixed.compute_dtype])


DROPS = {
    "Bloom": (bloom, (), dict(attention_mask=np.tile(SOME[:1], (2048, 1, 1)))),
    "Falcon": (falcon, (ALIBI[:1],), dict(attention_mask=np.tile(SOME[:1], (2048, 1, 1)))),
    "T5": (t5, (), {}),
    "DeBERTa": (deberta, (normal(1, 8, 16),), dict(attention_mask=np.tile(SOME[:1], (2048, 1, 1)))),
    "Gemma 4, vision": (gemma4, (), {}),
    "VideoPrism": (video_prism, (np.tile(X[:1], (2048, 1, 1)),), {}),
    "D-FINE": (d_fine, (), {}),
    "SegFormer": (segformer, (), {}),
}


@pytest.mark.parametrize("name", DROPS)
def test_dropout(name):
    """Of the same sequence, over and over: while it trains, results scatter as far as KerasHub's do, and around what they
    are without dropout."""
    make, others, options = DROPS[name]
    layer, x = make(dropout=0.3), np.tile(X[:1], (2048, 1, 1))
    if name == "DeBERTa":
        layer._position_dropout_layer.rate = 0.0  # what this drops, it drops for the whole batch

    def call(training):
        return np.asarray(tf.nest.flatten(layer(x, *others, training=training, **options))[0])

    plain, want = call(False), call(True)
    start()
    with tfuse.enabled():
        close(call(False), plain, 1e-5)
        got = call(True)
    assert "Attention" in ran() and not reasons()
    assert np.all(np.abs(got.std(0) - want.std(0)) < 0.15 * want.std(0).max())
    assert np.all(np.abs(got.mean(0) - plain[0]) < 6 * want.std(0) / np.sqrt(len(x)))


@pytest.mark.parametrize("carried", [True, False])
def test_t5_where_there_is_nothing_to_attend_to(carried):
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

    check_attention(call, weights)
    for x in whole:
        assert not np.any(x[1, 2]) and np.all(np.any(x[0], -1))


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("queries, keys, start", [(6, 6, 0), (150, 140, 0), (3, 300, 250), (1, 5, 4), (7, 1, 0)])
def test_t5_bias(is_decoder, queries, keys, start):
    """Bit for bit that of KerasHub, near and far; its gradient is a tensor, and no rows to scatter."""
    layer = t5(use_relative_attention_bias=True, is_decoder=is_decoder)
    weights, factors = layer.relative_attention_bias.value, normal(1, 4, queries, keys)
    bias = functools.partial(_replaced_hub_attention._t5_bias, layer)
    for dynamic in (False, True):
        sizes = [tf.constant(size) for size in (queries, keys, start)] if dynamic else (queries, keys, start)
        with tf.GradientTape(persistent=True) as tape:
            want = layer.compute_bias(queries, keys, start)
            got = tf.function(bias)(*sizes) if dynamic else bias(*sizes)
            totals = [tf.reduce_sum(y * factors) for y in (got, want)]
        np.testing.assert_array_equal(got, want)
        gradients = [tape.gradient(total, weights) for total in totals]
        assert isinstance(gradients[0], tf.Tensor)
        close(gradients[0], tf.convert_to_tensor(gradients[1]), 1e-5)


# ---- what is left to KerasHub ----

DEAD, NO_MASK = "dropout leaves nothing", "the mask is not [batch, queries, keys]"
NO_CACHE = "cache_update_index without a cache"
HEADS_FIRST = [normal(2, 4, 6, 8)] * 3
DECLINED = {
    "Bloom, no mask": ("BloomAttention.call", NO_MASK, lambda: bloom()(X)),
    "Bloom, no cache": ("BloomAttention.call", NO_CACHE, lambda: bloom()(X, attention_mask=SOME, cache_update_index=1)),
    "Bloom, dropout": ("BloomAttention.call", DEAD, lambda: bloom(dropout=1.0)(X, attention_mask=SOME)),
    "Falcon, no mask": ("FalconAttention.call", NO_MASK, lambda: falcon()(X, ALIBI)),
    "Falcon, no cache": ("FalconAttention.call", NO_CACHE, lambda: falcon()(X, ALIBI, SOME, cache_update_index=1)),
    "T5, no cache": ("T5MultiHeadAttention.call", NO_CACHE, lambda: t5()(X, cache_update_index=1)[0]),
    "DeBERTa, no mask": ("DisentangledSelfAttention.call", NO_MASK, lambda: deberta()(X, STATES[:1])),
    "DeBERTa, scores": ("DisentangledSelfAttention.call", "return_attention_scores",
                        lambda: deberta()(X, STATES[:1], SOME, return_attention_scores=True)[1]),
    "Gemma 3, vision, mask": ("Gemma3VisionEncoderLayer.compute_attention",
                              "KerasHub adds the mask to the scores as a number", lambda: gemma3_vision()(X, SOME[:, None])),
    "D-FINE, weights": ("DFineMultiheadAttention.call", "output_attentions", lambda: d_fine()(X, output_attentions=True)[1]),
    "D-FINE, integers": ("DFineMultiheadAttention.call", "tfuse takes float32, float16, bfloat16 and float64, got int32",
                         lambda: d_fine()(X, attention_mask=np.ones([6, 6], "int32"))),
    "Flux, mask": ("scaled_dot_product_attention", "Flux attends to all, without dropout",
                   lambda: flux(*HEADS_FIRST, attn_mask=SOME[0])),
    "Flux, no heads": ("scaled_dot_product_attention", "query, key and value are not all [batch, heads, time, head_dim]",
                       lambda: flux(X, X, X)),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declined(name):
    check_declined(*DECLINED[name])


def test_another_release():
    """A method with other arguments is left alone, since its results may be others, too."""
    of_class = class_of("t5.t5_multi_head_attention", "T5MultiHeadAttention")
    layer, own = t5(), of_class.call

    def earlier(self, hidden_states, mask=None, key_value_states=None, position_bias=None, training=False):
        return own(self, hidden_states, mask, key_value_states, position_bias, training=training)[:2]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_class, "call", earlier)
        check_declined("T5MultiHeadAttention.call", "this release of KerasHub has other arguments here", lambda: layer(X)[0])


def test_every_reason_has_a_call():
    tested = {why for _, why, _ in DECLINED.values()} | {"this release of KerasHub has other arguments here"}
    for pattern in reasons_in(_replaced_hub_attention) + reasons_in(_replaced_hub_vision):
        assert any(re.fullmatch(pattern, why) for why in tested), pattern
