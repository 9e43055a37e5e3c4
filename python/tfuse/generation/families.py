"""Decoders of models of KerasHub. A family is a function from a backbone to a Decoder; it raises NotServed to say why not."""

import functools

import keras
import numpy as np
import tensorflow as tf

from tfuse.generation.decoders import Attention, Block, Decoder, Experts, Mlp, Norm, NotServed, Product, Quantized
from tfuse.products import quantized_layers
from tfuse.products.linear_cross_entropy import table_of
from tfuse.products.quantized_linear import TILE_ROWS

# ---- reading layers ----


def _named(layer, *names):
    """The first of these attributes, under its name or with an underscore before it."""
    for name in names:
        for known in ("_" + name, name):
            if getattr(layer, known, None) is not None:
                return getattr(layer, known)
    raise NotServed("%s has no %s" % (type(layer).__name__, " or ".join(names)))


def _value(variable, dtype):
    return tf.cast(tf.convert_to_tensor(variable), dtype)


def _check(layer, dtype):
    if getattr(layer, "lora_enabled", False):
        raise NotServed("%s has LoRA weights" % layer.name)
    if layer.compute_dtype != dtype.name:
        raise NotServed("%s computes in %s, and the model in %s" % (layer.name, layer.compute_dtype, dtype.name))


def _product(dense, inputs, dtype, leading=0):
    """Of a Dense or EinsumDense whose first axes, `inputs` of them, are summed over, with so many axes of results before them."""
    _check(dense, dtype)
    bias = getattr(dense, "bias", None)
    bias = None if bias is None else tf.reshape(_value(bias, dtype), [-1])
    if getattr(dense, "quantization_mode", None):
        return _quantized(dense, bias, dtype, leading)
    kernel = _value(dense.kernel, dtype)
    if leading:  # Gemma's are [heads, in, head_dim]
        kernel = tf.transpose(kernel, [1, 0, 2])
    rows = functools.reduce(lambda a, b: a * b, kernel.shape[:inputs], 1)
    return Product(tf.reshape(kernel, [rows, -1]), bias)


def _quantized(dense, bias, dtype, leading):
    why = quantized_layers.why_not_kernel(dense, leading)
    if not why and quantized_layers.is_static(dense):
        why = "it is calibrated, and steps have no rounding by a scale that stays"
    if why:
        raise NotServed("%s: %s" % (dense.name, why))
    kernel = quantized_layers.kernel_of(dense, leading)
    if "groups" in kernel:
        raise NotServed("%s: gptq with activation_order has groups of rows that are no neighbours" % dense.name)
    if "input_scale" in kernel:
        kernel["input_scale"] = tf.cast(kernel["input_scale"], dtype)
    found = Quantized(bias=bias, dtype=dtype, **kernel)
    _check_tiles(dense, found.kernel.shape[found.order == "columns"])
    return found


def _check_tiles(layer, inputs):
    if inputs % TILE_ROWS:
        raise NotServed("%s is quantised, and its %d inputs are no multiple of %d" % (layer.name, inputs, TILE_ROWS))


_ACTIVATIONS = {"relu": "relu", "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_approximate": "gelu_tanh"}


def _activation(function):
    name = getattr(function, "__name__", str(function))
    if name not in _ACTIVATIONS:
        raise NotServed("tfuse has no activation %s" % name)
    return _ACTIVATIONS[name]


def _rope(layer, rotary):
    """Attributes of the op Rope, and its frequencies where they are no powers."""
    name, kind = type(layer).__name__, getattr(layer, "rope_type", "linear")
    if name not in ("RotaryEmbedding", "LlamaRotaryEmbedding", "Phi3SuScaledRotaryEmbedding") or kind == "yarn":
        raise NotServed("tfuse's rope does not have the frequencies of this %s" % name)
    attributes = {"base": float(layer.max_wavelength), "rotary": rotary, "scale": 1.0}
    if name == "RotaryEmbedding" and kind == "linear" and getattr(layer, "denominator_dim", None) is None:
        return {**attributes, "scale": 1.0 / float(layer.scaling_factor)}, None
    if name == "LlamaRotaryEmbedding" and layer.low_freq_factor is None:  # it has a scaling_factor, and does not use it
        return attributes, None
    frequencies = layer._get_inverse_freq(rotary)
    if name == "Phi3SuScaledRotaryEmbedding":  # of sequences within _limit()
        frequencies = frequencies / np.array(layer.inverese_freq_short_factor, "float32")
    return attributes, tf.cast(frequencies, "float32")


def _limit(layer):
    """So many tokens a sequence may have: KerasHub has other frequencies beyond that, mixed with these in one cache."""
    return layer.pretraining_sequence_length if type(layer).__name__ == "Phi3SuScaledRotaryEmbedding" else None


def _rms(layer, dtype):
    return Norm("rms", tf.cast(_value(_named(layer, "scale"), "float32"), _real(dtype)), None, float(layer.epsilon))


def _real(dtype):
    return tf.float64 if dtype == tf.float64 else tf.float32


# ---- families ----


def _llama_like(backbone, dtype):
    """Llama, Mistral, Qwen, Phi: RMS norms, rope, a gated product or a mixture of them."""
    def block(layer):
        attention = _named(layer, "self_attention_layer", "attention")
        heads, shared = backbone.num_query_heads, backbone.num_key_value_heads
        query, key, value = (_product(_named(attention, name + "_dense"), 1, dtype) for name in ("query", "key", "value"))
        head_dim = key.outputs // shared
        norms = [getattr(attention, "_%s_dense_layer_norm" % name, None) for name in ("query", "key")]
        turned = _named(attention, "rotary_embedding_layer")
        rope, frequencies = _rope(turned, head_dim)
        gain = getattr(turned, "embedding_scaling_factor", 1.0)  # of queries and of keys
        return Block(
            _rms(_named(layer, "self_attention_layernorm", "pre_attention_layernorm"), dtype),
            Attention(query, key, value, _product(_named(attention, "output_dense"), 2, dtype), heads, shared,
                      gain**2 * float(getattr(attention, "_inv_norm_factor", head_dim**-0.5)), rope, _window(attention),
                      0.0, *(None if norm is None else _rms(norm, dtype) for norm in norms), frequencies),
            _rms(_named(layer, "feedforward_layernorm", "post_attention_layernorm"), dtype),
            _feedforward(layer, dtype))

    table, head = _embedding(backbone.token_embedding, dtype)
    first = _named(backbone.transformer_layers[0], "self_attention_layer", "attention")
    return Decoder(table, [block(layer) for layer in backbone.transformer_layers], _rms(backbone.layer_norm, dtype), head,
                   limit=_limit(_named(first, "rotary_embedding_layer")))


def _feedforward(layer, dtype):
    """A gated product, of a layer itself or of a part of it, or experts."""
    part = getattr(layer, "_sparse_moe_block", None) or getattr(layer, "mlp", layer)
    if hasattr(part, "expert_bank"):
        return _experts(part, dtype)
    names = ("gate", "intermediate", "output")
    return Mlp(*(_product(_named(part, "feedforward_%s_dense" % name), 1, dtype) for name in names), _activation(part.activation))


def _experts(layer, dtype):
    bank, shared = layer.expert_bank, getattr(layer, "shared_expert_dense", None)
    _check(bank, dtype)
    every = None if shared is None else _feedforward(shared, dtype)
    if every is not None and any(isinstance(part, Quantized) for part in (every.gate, every.up, every.down)):
        raise NotServed("%s is quantised, and steps have experts in floats alone" % shared.name)
    gate, up, down = (None if kernel is None else _value(kernel, dtype) for kernel in (
        getattr(bank, "_expert_feedforward_%s_dense" % name, None) for name in ("gate", "intermediate", "output")))
    return Experts(_product(layer._sparse_feedforward_gate_dense, 1, dtype), gate, up, down, int(layer.top_k),
                   bool(getattr(layer, "norm_top_k_prob", True)), _activation(bank.activation),
                   every, None if shared is None else _product(layer.shared_expert_gate_dense, 1, dtype))


def _smollm3(backbone, dtype):
    """The same with other names, and with layers that do not rotate."""
    def block(layer):
        attention, mlp = layer.self_attn, layer.mlp
        heads, shared, head_dim = backbone.num_attention_heads, backbone.num_key_value_heads, attention.head_dim
        rope = {"base": float(attention.rope_theta), "rotary": head_dim, "scale": 1.0}
        turns = attention.rotary_embedding  # of whose weights Keras rounds, in a mixed policy, what it computes with
        rounded = turns.compute_dtype if turns.compute_dtype != turns.variable_dtype else "float32"
        frequencies = _value(_value(turns.inv_freq, rounded), "float32")
        if 2 * frequencies.shape[0] != head_dim or attention.rotary_embedding.attention_scaling != 1:
            raise NotServed("a part of each head is rotated, or it is scaled")
        return Block(
            _rms(layer.input_layernorm, dtype),
            Attention(*(_product(getattr(attention, name + "_proj"), 1, dtype) for name in "qkv"),
                      _product(attention.o_proj, 2, dtype), heads, shared, head_dim**-0.5, rope if attention.use_rope else None,
                      frequencies=frequencies if attention.use_rope else None),
            _rms(layer.post_attention_layernorm, dtype),
            Mlp(*(_product(getattr(mlp, name + "_proj"), 1, dtype) for name in ("gate", "up", "down")), "silu"))

    table, head = _embedding(backbone.token_embedding, dtype)
    return Decoder(table, [block(layer) for layer in backbone.transformer_layers], _rms(backbone.norm, dtype), head)


def _gpt2(backbone, dtype):
    """GPT-2, OPT: layer norms, biases, learned positions, one product before the activation."""
    def norm(layer):
        return Norm("layer", *(tf.cast(_value(v, "float32"), _real(dtype)) for v in (layer.gamma, layer.beta)), float(layer.epsilon))

    def block(layer):
        attention = layer._self_attention_layer
        return Block(
            norm(layer._self_attention_layer_norm),
            Attention(*(_product(getattr(attention, "_%s_dense" % name), 1, dtype) for name in ("query", "key", "value")),
                      _product(attention._output_dense, 2, dtype), backbone.num_heads, backbone.num_heads,
                      (backbone.hidden_dim // backbone.num_heads)**-0.5, None),
            norm(layer._feedforward_layer_norm),
            Mlp(None, *(_product(getattr(layer, "_feedforward_%s_dense" % name), 1, dtype) for name in ("intermediate", "output")),
                _activation(layer.activation)))

    table, head = _embedding(backbone.token_embedding, dtype)
    embedding = getattr(backbone, "embeddings", backbone).position_embedding
    positions = _value(embedding.position_embeddings, dtype)
    return Decoder(table, [block(layer) for layer in backbone.transformer_layers], norm(backbone.layer_norm), head, positions,
                   positions.shape[0])


def _gemma(backbone, dtype):
    """RMS norms by 1 + scale, before and, from version 2 on, after attention and products, in version 3 also of queries and
    keys; soft caps; windows in some layers."""
    def norm(layer):
        return Norm("rms", tf.cast(1 + _value(layer.scale, "float32"), _real(dtype)), None, float(layer.epsilon))

    def block(layer):
        attention = layer.attention
        key = _product(attention.key_dense, 1, dtype, leading=1)
        window = attention.sliding_window_size - 1 if attention.use_sliding_window_attention else -1
        rope, frequencies = _rope(attention.rope_layer, attention.head_dim)
        norms = [norm(getattr(attention, name + "_norm")) if getattr(attention, "use_query_key_norm", False) else None
                 for name in ("query", "key")]
        return Block(
            norm(layer.pre_attention_norm),
            Attention(_product(attention.query_dense, 1, dtype, leading=1), key, _product(attention.value_dense, 1, dtype, leading=1),
                      _product(attention.output_dense, 2, dtype), attention.num_query_heads, attention.num_key_value_heads,
                      float(attention.head_dim if attention.query_head_dim_normalize
                            else backbone.hidden_dim // attention.num_query_heads)**-0.5,
                      rope, int(window), float(attention.logit_soft_cap or 0), *norms, frequencies),
            norm(layer.pre_ffw_norm),
            Mlp(*(_product(dense, 1, dtype) for dense in (layer.gating_ffw, layer.gating_ffw_2, layer.ffw_linear)), "gelu_tanh"),
            norm(layer.post_attention_norm) if layer.use_post_attention_norm else None,
            norm(layer.post_ffw_norm) if layer.use_post_ffw_norm else None)

    table, head = _embedding(backbone.token_embedding, dtype)
    return Decoder(table, [block(layer) for layer in backbone.transformer_layers], norm(backbone.layer_norm), head,
                   scale=float(np.sqrt(np.float32(backbone.hidden_dim)).astype(dtype.as_numpy_dtype)),
                   soft_cap=float(backbone.final_logit_soft_cap or 0))


def _gemma3(backbone, dtype):
    """Of a model that reads images, too, what reads tokens: prompts with images have more inputs, and come to no decoder."""
    if backbone.use_bidirectional_attention:
        raise NotServed("tokens attend to those after them")
    if dtype == tf.float16:
        raise NotServed("float16 is clipped")
    return _gemma(backbone, dtype)


def _window(attention):
    steps = next((size for size in (getattr(attention, name, None) for name in (
        "_sliding_window", "sliding_window", "sliding_window_size")) if size), None)
    return -1 if steps is None or getattr(attention, "use_sliding_window_attention", True) is False else int(steps) - 1


def _embedding(layer, dtype):
    """A table of words, and the head where that is not the table."""
    _check(layer, dtype)
    if getattr(layer, "reverse_dtype", None) not in (None, dtype.name):
        raise NotServed("logits are computed in %s, and the rest in %s" % (layer.reverse_dtype, dtype.name))
    if getattr(layer, "quantization_mode", None):
        return _value(table_of(layer), dtype), _quantized_head(layer, dtype)
    table = _value(layer.embeddings, dtype)
    return table, None if getattr(layer, "tie_weights", True) else Product(_value(layer.reverse_embeddings, dtype))


def _quantized_head(layer, dtype):
    """The head of a quantised embedding, tied or not: of the table, a row is read and of the head, all."""
    why = quantized_layers.why_not_head(layer)
    if why:
        raise NotServed("%s: %s" % (layer.name, why))
    _check_tiles(layer, layer.output_dim)
    return Quantized(dtype=dtype, **quantized_layers.head_of(layer))


FAMILIES = {"LlamaBackbone": _llama_like, "Llama3Backbone": _llama_like, "MistralBackbone": _llama_like,
            "QwenBackbone": _llama_like, "Qwen3Backbone": _llama_like, "Phi3Backbone": _llama_like,
            "MixtralBackbone": _llama_like, "QwenMoeBackbone": _llama_like, "Qwen3MoeBackbone": _llama_like,
            "SmolLM3Backbone": _smollm3, "GPT2Backbone": _gpt2, "OPTBackbone": _gpt2, "GemmaBackbone": _gemma,
            "Gemma3Backbone": _gemma3}

ALIBI = "its attention adds to scores what grows with the position of a key (ALiBi), which tfuse's decoding does not"
ROTATES = "KerasHub's own generate() rotates the query of each new token as that of a first one, which tfuse does not"
LEFT = {"BloomBackbone": ALIBI, "FalconBackbone": ALIBI, "GPTNeoXBackbone": ROTATES}


def decoder_of(model):
    """The Decoder of a KerasHub CausalLM. Raises NotServed."""
    backbone = getattr(model, "backbone", None)
    if backbone is None:
        raise NotServed("a %s is no CausalLM of KerasHub" % type(model).__name__)
    family = FAMILIES.get(type(backbone).__name__)
    if family is None:
        name = type(backbone).__name__
        raise NotServed(LEFT.get(name, "tfuse has no steps for a %s" % name))
    for part in (backbone, *backbone.transformer_layers, type(model).generate_step, type(model).call_with_cache):
        where = getattr(part, "__module__", None)
        if not str(where).startswith("keras_hub."):
            raise NotServed("%s is of %s, and not KerasHub's own" % (getattr(part, "__qualname__", type(part).__name__), where))
    try:
        return family(backbone, tf.as_dtype(keras.backend.standardize_dtype(backbone.compute_dtype)))
    except AttributeError as error:  # another release of KerasHub has other names
        raise NotServed("tfuse does not know this release's layers: %s" % error) from error
