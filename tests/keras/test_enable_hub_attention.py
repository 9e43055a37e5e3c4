"""KerasHub's models that write their attention out as products and a softmax, be it for a soft cap: by tfuse.attention they
give the same.

While tfuse is enabled, a softmax that Keras computes is tfuse's own: where Softmax did not run, no weights were computed
beside tfuse.attention."""

import keras
import numpy as np
import pytest

import tfuse
from conftest import skip_broken_xla
from enabling import (SPARSE, TOKENS, check_attention, left_as_it_was, needs_attention, ran, reasons, reasons_but_rotary,
                      sampler_of_ones_own, start, told)

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
    "GemmaBackbone": (dict(num_query_heads=4, num_key_value_heads=2, head_dim=8, attention_logit_soft_cap=0.5,  # Gemma 2
                           final_logit_soft_cap=5.0, use_sliding_window_attention=True, sliding_window_size=4,
                           query_head_dim_normalize=False, use_post_ffw_norm=True, use_post_attention_norm=True), ONCE),
    "Gemma3Backbone": (dict(image_size=None, num_query_heads=4, num_key_value_heads=2, head_dim=8, attention_logit_soft_cap=0.5,
                            use_sliding_window_attention=True, sliding_window_size=4), ONCE),
    "T5GemmaBackbone": (dict(
        vocabulary_size=32, attn_logit_softcapping=0.5, query_pre_attn_scalar=8, tie_word_embeddings=True,
        **{side + name: value for side in ("encoder_", "decoder_") for name, value in dict(
            hidden_dim=16, intermediate_dim=32, num_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            layer_types=["full_attention"] * 2).items()}), TWICE),
}


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("keras_hub", reason="needs keras-hub, tokenizers and regex").models


def backbone(hub, name, **options):
    keras.utils.set_random_seed(0)
    model = getattr(hub, name)(**(DIMS if name != "T5GemmaBackbone" else {}), **MODELS[name][0], **options)
    for i, weight in enumerate(model.weights):  # those that begin as 0 matter too
        weight.assign(weight + 0.1 * np.random.default_rng(i).normal(size=weight.shape))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_models(hub, name):
    model = backbone(hub, name)
    inputs = MODELS[name][1]

    def call():
        outputs = model(inputs)
        if "decoder_padding_mask" in inputs:
            return [outputs["encoder_sequence_output"][HERE], outputs["decoder_sequence_output"][HERE[::-1]]]
        return outputs[HERE]

    check_attention(call, [w.value for w in model.trainable_weights])
    start()
    with tfuse.enabled():
        call()
    assert "Softmax" not in ran() or name == "GptOssBackbone"  # which routes tokens to experts by a softmax


@pytest.mark.parametrize("name", ["Bloom", "Falcon", "T5", "GptOss", "Gemma"])
def test_generation(hub, name):
    """Token by token from a cache, in KerasHub's own loop; T5 with one for each of its decoder's attentions."""
    first = np.arange(12) < 5

    def text():
        body = backbone(hub, name + "Backbone")
        model = getattr(hub, name + ("Seq2SeqLM" if name == "T5" else "CausalLM"))(body, preprocessor=None)
        model.compile(sampler=sampler_of_ones_own())
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
    assert "Attention" in ran() and reasons_but_rotary().keys() == {"CausalLM.generate"}


@pytest.mark.parametrize("name, jit", [("Bloom", False), ("Falcon", False), ("T5", True), ("DebertaV3", False), ("Gemma", True)])
def test_training(hub, name, jit):
    """What stock Keras gives is the same without XLA, and it compiles for long."""
    if jit:
        skip_broken_xla()

    def step(jit):
        body = backbone(hub, name + "Backbone")
        output = body.output["decoder_sequence_output"] if name == "T5" else body.output
        model = keras.Model(body.input, body.token_embedding(output, reverse=True))
        model.compile(keras.optimizers.SGD(0.1), SPARSE(ignore_class=0), jit_compile=jit)
        return [model.train_on_batch(MODELS[name + "Backbone"][1], TOKENS) for _ in range(2)]

    want = step(False)
    start()
    with tfuse.enabled():
        got = step(jit)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert got[1] < got[0]
    assert "AttentionGrad" in ran() and not reasons()
    traced = {(row["op"], row["route"]) for row in told(when="traced")}
    assert not jit or ("AttentionGrad", "XLA custom call") in traced


def test_t5_in_float16(hub):
    """KerasHub's own T5 gives NaN, since float16 has no -1e9. By tfuse all layers receive the mask as what it is, through a
    functional model too."""
    model = backbone(hub, "T5Backbone", dtype="mixed_float16")
    with tfuse.enabled():
        assert np.all(np.isfinite(model(TWICE)["decoder_sequence_output"]))
        assert np.all(np.isfinite(model.predict(TWICE, verbose=0)["decoder_sequence_output"]))
