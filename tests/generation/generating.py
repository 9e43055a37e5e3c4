"""Small decoders of KerasHub with random weights, for tests of generation."""

import functools
import zlib

import keras
import keras_hub

SIZES = {"vocabulary_size": 97, "num_layers": 3, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32,
         "intermediate_dim": 48}
FAMILIES = {"Llama": {}, "Llama3": {}, "Mistral": {"sliding_window": 6}, "Qwen": {}, "Qwen3": {"head_dim": 16}, "Phi3": {}}


@functools.lru_cache(None)
def model(family, **options):
    made = getattr(keras_hub.models, family + "CausalLM")(
        getattr(keras_hub.models, family + "Backbone")(**{**SIZES, **FAMILIES[family], **options}))
    for v in made.trainable_variables:
        about = 1.0 if "norm" in v.path else 0.0
        v.assign(about + keras.random.normal(v.shape, stddev=0.3, seed=zlib.crc32(v.path.split("/", 1)[-1].encode()) % 1000))
    made.compile(sampler="greedy", jit_compile=False)
    return made
