"""What a decoder is made of, in one form for all families of KerasHub that are served: norms, products, attention.

A family is a function from a model to a Decoder, or to a sentence that says why not. Nothing here computes: steps.py writes a
decoder's step as a chain.
"""

import dataclasses
import functools
import typing

import keras
import numpy as np
import tensorflow as tf


class NotServed(ValueError):
    """Why a model is left to KerasHub."""


@dataclasses.dataclass
class Norm:
    kind: str  # "rms" or "layer"
    gamma: tf.Tensor
    beta: typing.Optional[tf.Tensor]
    epsilon: float


@dataclasses.dataclass
class Product:
    """x . kernel + bias, of a kernel [in, out]."""
    kernel: tf.Tensor
    bias: typing.Optional[tf.Tensor] = None


@dataclasses.dataclass
class Attention:
    query: Product
    key: Product
    value: Product
    output: Product
    heads: int
    shared_heads: int  # those of keys and values
    scale: float
    rope: typing.Optional[dict]  # attributes of the op Rope …
    window: int = -1  # keys before its own that a query attends to; -1: all
    soft_cap: float = 0.0
    query_norm: typing.Optional[Norm] = None  # of each head
    key_norm: typing.Optional[Norm] = None
    frequencies: typing.Optional[tf.Tensor] = None  # … and its input, where they are no powers

    @property
    def head_dim(self):
        return self.key.kernel.shape[1] // self.shared_heads


@dataclasses.dataclass
class Mlp:
    gate: typing.Optional[Product]  # None: act(x . up) alone, else act(x . gate) * (x . up)
    up: Product
    down: Product
    activation: str


@dataclasses.dataclass
class Block:
    """x += attention(norm(x)); x += mlp(norm(x)), each sum normed before it is added where there is such a norm."""
    before_attention: Norm
    attention: Attention
    before_mlp: Norm
    mlp: Mlp
    after_attention: typing.Optional[Norm] = None
    after_mlp: typing.Optional[Norm] = None


@dataclasses.dataclass
class Decoder:
    table: tf.Tensor  # [words, width]
    blocks: list
    norm: Norm
    head: tf.Tensor  # [words, width], often the table
    positions: typing.Optional[tf.Tensor] = None  # [positions, width], learned
    limit: typing.Optional[int] = None  # tokens of a sequence, at most
    scale: float = 1.0  # of the embedding
    soft_cap: float = 0.0  # of the logits


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
    if getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False):
        raise NotServed("%s is quantised or has LoRA weights" % layer.name)
    if layer.compute_dtype != dtype.name:
        raise NotServed("%s computes in %s, and the model in %s" % (layer.name, layer.compute_dtype, dtype.name))


def _product(dense, inputs, dtype, leading=0):
    """Of a Dense or EinsumDense whose first axes, `inputs` of them, are summed over, with so many axes of results before them."""
    _check(dense, dtype)
    kernel = _value(dense.kernel, dtype)
    if leading:  # Gemma's are [heads, in, head_dim]
        kernel = tf.transpose(kernel, [1, 0, 2])
    rows = functools.reduce(lambda a, b: a * b, kernel.shape[:inputs], 1)
    bias = getattr(dense, "bias", None)
    return Product(tf.reshape(kernel, [rows, -1]), None if bias is None else tf.reshape(_value(bias, dtype), [-1]))


_ACTIVATIONS = {"relu": "relu", "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_approximate": "gelu_tanh"}


def _activation(function):
    name = getattr(function, "__name__", str(function))
    if name not in _ACTIVATIONS:
        raise NotServed("tfuse has no activation %s" % name)
    return _ACTIVATIONS[name]


def _rope(layer, rotary):
    """Attributes of the op Rope, and its frequencies where they are no powers."""
    name, kind = type(layer).__name__, getattr(layer, "rope_type", "linear")
    if name not in ("RotaryEmbedding", "LlamaRotaryEmbedding", "Phi3SuScaledRotaryEmbedding") or kind not in ("linear", "dynamic"):
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
    """Llama, Mistral, Qwen, Phi: RMS norms, rope, a gated product."""
    def block(layer):
        attention = _named(layer, "self_attention_layer", "attention")
        heads, shared = backbone.num_query_heads, backbone.num_key_value_heads
        query, key, value = (_product(_named(attention, name + "_dense"), 1, dtype) for name in ("query", "key", "value"))
        head_dim = key.kernel.shape[1] // shared
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
            Mlp(*(_product(_named(layer, "feedforward_%s_dense" % name), 1, dtype) for name in ("gate", "intermediate", "output")),
                _activation(layer.activation)))

    table, head = _embedding(backbone.token_embedding, dtype)
    first = _named(backbone.transformer_layers[0], "self_attention_layer", "attention")
    return Decoder(table, [block(layer) for layer in backbone.transformer_layers], _rms(backbone.layer_norm, dtype), head,
                   limit=_limit(_named(first, "rotary_embedding_layer")))


def _gpt2(backbone, dtype):
    """Layer norms, biases, learned positions, one product before the activation."""
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
    positions = _value(backbone.position_embedding.position_embeddings, dtype)
    return Decoder(table, [block(layer) for layer in backbone.transformer_layers], norm(backbone.layer_norm), head, positions,
                   positions.shape[0])


def _gemma(backbone, dtype):
    """RMS norms by 1 + scale, before and, of version 2, after attention and products; soft caps; windows in every other layer."""
    def norm(layer):
        return Norm("rms", tf.cast(1 + _value(layer.scale, "float32"), _real(dtype)), None, float(layer.epsilon))

    def block(layer):
        attention = layer.attention
        key = _product(attention.key_dense, 1, dtype, leading=1)
        window = attention.sliding_window_size - 1 if attention.use_sliding_window_attention else -1
        rope, frequencies = _rope(attention.rope_layer, attention.head_dim)
        return Block(
            norm(layer.pre_attention_norm),
            Attention(_product(attention.query_dense, 1, dtype, leading=1), key, _product(attention.value_dense, 1, dtype, leading=1),
                      _product(attention.output_dense, 2, dtype), attention.num_query_heads, attention.num_key_value_heads,
                      float(attention.head_dim if attention.query_head_dim_normalize
                            else backbone.hidden_dim // attention.num_query_heads)**-0.5,
                      rope, int(window), float(attention.logit_soft_cap or 0), frequencies=frequencies),
            norm(layer.pre_ffw_norm),
            Mlp(*(_product(dense, 1, dtype) for dense in (layer.gating_ffw, layer.gating_ffw_2, layer.ffw_linear)), "gelu_tanh"),
            norm(layer.post_attention_norm) if layer.use_post_attention_norm else None,
            norm(layer.post_ffw_norm) if layer.use_post_ffw_norm else None)

    table, head = _embedding(backbone.token_embedding, dtype)
    return Decoder(table, [block(layer) for layer in backbone.transformer_layers], norm(backbone.layer_norm), head,
                   scale=float(np.sqrt(np.float32(backbone.hidden_dim)).astype(dtype.as_numpy_dtype)),
                   soft_cap=float(backbone.final_logit_soft_cap or 0))


def _window(attention):
    steps = getattr(attention, "_sliding_window", None) or getattr(attention, "sliding_window_size", None)
    return -1 if steps is None or getattr(attention, "use_sliding_window_attention", True) is False else int(steps) - 1


def _embedding(layer, dtype):
    """A table of words, and the head, which often is the same."""
    _check(layer, dtype)
    if getattr(layer, "reverse_dtype", None) not in (None, dtype.name):
        raise NotServed("logits are computed in %s, and the rest in %s" % (layer.reverse_dtype, dtype.name))
    table = _value(layer.embeddings, dtype)
    return table, table if getattr(layer, "tie_weights", True) else tf.transpose(_value(layer.reverse_embeddings, dtype))


FAMILIES = {"LlamaBackbone": _llama_like, "Llama3Backbone": _llama_like, "MistralBackbone": _llama_like,
            "QwenBackbone": _llama_like, "Qwen3Backbone": _llama_like, "Phi3Backbone": _llama_like,
            "GPT2Backbone": _gpt2, "GemmaBackbone": _gemma}


def decoder_of(model):
    """The Decoder of a KerasHub CausalLM. Raises NotServed."""
    backbone = getattr(model, "backbone", None)
    family = FAMILIES.get(type(backbone).__name__)
    if family is None:
        raise NotServed("tfuse has no steps for a %s" % type(backbone).__name__)
    for part in (backbone, *backbone.transformer_layers, type(model).generate_step, type(model).call_with_cache):
        where = getattr(part, "__module__", None)
        if not str(where).startswith("keras_hub."):
            raise NotServed("%s is of %s, and not KerasHub's own" % (getattr(part, "__qualname__", type(part).__name__), where))
    try:
        return family(backbone, tf.as_dtype(keras.backend.standardize_dtype(backbone.compute_dtype)))
    except AttributeError as error:  # another release of KerasHub has other names
        raise NotServed("tfuse does not know this release's layers: %s" % error) from error
