"""Small decoders of KerasHub with random weights, for tests of generation."""

import functools
import zlib

import keras
import keras_hub
import numpy as np

SIZES = {"vocabulary_size": 97, "num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32,
         "intermediate_dim": 48}
# A class, and what distinguishes it from others of its kind. One has a layer that is neither the first nor the last.
FAMILIES = {"Llama": {"num_layers": 3}, "Llama3": {}, "Mistral": {"sliding_window": 6}, "Qwen": {},
            "Qwen3": {"head_dim": 16}, "Phi3": {},
            "Llama3, scaled": {"rope_max_wavelength": 20, "rope_frequency_adjustment_factor": 8.0, "rope_low_freq_factor": 1.0,
                               "rope_high_freq_factor": 4.0, "rope_pretraining_sequence_length": 64},
            "Phi3, su": {"max_sequence_length": 400, "pretraining_sequence_length": 100, "rope_scaling_type": "su",
                         "rope_scaling_short_factor": [1.0, 1.5, 2.0, 0.5], "rope_scaling_long_factor": [1.0, 2.0, 3.0, 4.0]},
            "GPT2": {"num_query_heads": None, "num_key_value_heads": None, "num_heads": 4, "max_sequence_length": 100},
            "Gemma": {"head_dim": 8, "query_head_dim_normalize": True, "use_post_ffw_norm": True, "use_post_attention_norm": True,
                      "final_logit_soft_cap": 3.0, "attention_logit_soft_cap": 2.0, "sliding_window_size": 6,
                      "use_sliding_window_attention": True},
            "Gemma3": {"num_layers": 6, "head_dim": 8, "image_size": 16, "use_post_ffw_norm": True, "sliding_window_size": 6,
                       "use_post_attention_norm": True, "use_sliding_window_attention": True, "global_rope_scaling_factor": 8.0},
            "OPT": {"num_query_heads": None, "num_key_value_heads": None, "num_heads": 4, "max_sequence_length": 100},
            "Mixtral": {"sliding_window": 6, "num_experts": 5},
            "QwenMoe": {"num_layers": 3, "num_experts": 5, "top_k": 3, "norm_top_k_prob": False, "moe_intermediate_dim": 24,
                        "shared_expert_intermediate_dim": 20, "decoder_sparse_step": 1, "mlp_only_layers": [1]},
            "Qwen3Moe": {"num_experts": 9, "top_k": 3, "norm_top_k_prob": True, "moe_intermediate_dim": 16, "head_dim": 16,
                         "mlp_only_layers": [0]},
            "SmolLM3": {"num_layers": 3, "num_query_heads": None, "num_attention_heads": 4, "attention_bias": False,
                        "attention_dropout": 0.0, "rope_layer_enabled_list": [True, False, True], "layer_types": ["attention"] * 3,
                        "mlp_bias": False, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 100, "rope_theta": 500.0,
                        "partial_rotary_factor": 1.0}}


def fresh(family, **options):
    """A model of one's own."""
    name = family.split(",")[0]
    made = getattr(keras_hub.models, name + "CausalLM")(
        preprocessor=None, backbone=getattr(keras_hub.models, name + "Backbone")(
            **{name: value for name, value in {**SIZES, **FAMILIES[family], **options}.items() if value is not None}))
    for v in made.trainable_variables:
        about = 1.0 if "norm" in v.path else 0.0
        v.assign(about + keras.random.normal(v.shape, stddev=0.3, seed=zlib.crc32(v.path.split("/", 1)[-1].encode()) % 1000))
    made.compile(sampler="greedy", jit_compile=False)
    return made


@functools.lru_cache(None)
def writer():
    """A model of texts, of which each character is a token."""
    words = {letter: i + 1 for i, letter in enumerate("abcdefghijklmnopqrstuvwxy Ġz.")}
    words["<|endoftext|>"] = words.pop(" ")  # 26, which this model writes often
    lm = fresh("GPT2", vocabulary_size=31, num_layers=1)
    lm.preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(
        keras_hub.models.GPT2Tokenizer(vocabulary=words, merges=[]), sequence_length=24, add_start_token=False)
    return lm


model = functools.lru_cache(None)(fresh)  # one that all tests may have


def prompts(lengths, room, seed=0):
    mask = np.arange(room) < np.array(lengths)[:, None]
    ids = np.random.default_rng(seed).integers(1, 97, size=mask.shape)
    return {"token_ids": np.where(mask, ids, 0).astype("int32"), "padding_mask": mask}


def assert_same(ours, stock):
    """The same words, as far as there are any: what comes after a stop is left open."""
    kept = np.asarray(stock["padding_mask"]).astype(bool)
    np.testing.assert_array_equal(ours["padding_mask"], kept)
    np.testing.assert_array_equal(np.asarray(ours["token_ids"])[kept], np.asarray(stock["token_ids"])[kept])
    assert ours["token_ids"].dtype == "int32"
