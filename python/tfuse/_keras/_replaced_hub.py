"""What tfuse.enable() replaces in KerasHub, as rows of a table: which attention goes to Keras's dot_product_attention,
and the RMS norms that its models have of their own.

On TensorFlow, fused_attention_op_available() answers no, and most models then compute attention by einsum. Those that do so
in any case are in _replaced_hub_attention.py and _replaced_hub_vision.py. Names are those of KerasHub 0.32; what another release
has not, it goes without.
"""

import inspect

import keras
import tensorflow as tf

from tfuse._core._explain import reason
from tfuse._core._op import real
from tfuse._keras._replaced import Row
from tfuse._keras._replaced_nn import norm_guard, with_the_sum_before
from tfuse.rows.norm import rms_norm


def _answer_true():
    """As KerasHub's fused_attention_op_available(): dot_product_attention is the place to go."""
    return True


def _use_fused_attention(own, layer):
    return True


@reason
def _use_fused_attention_guard(layer):
    yield layer.dropout and "KerasHub's fused path has no dropout"
    takes_cap = "attn_logits_soft_cap" in inspect.signature(keras.ops.dot_product_attention).parameters
    yield getattr(layer, "logit_soft_cap", None) and not takes_cap and (
        "KerasHub's fused path may leave out the soft cap, which this Keras has no argument for")


def _windowed(own, layer, query, key, value, attention_mask=None, cache_update_index=None, **others):
    """KerasHub's fused path forgets the sliding window, which its other path folds into the mask."""
    if getattr(layer, "use_sliding_window_attention", True) and layer.sliding_window_size and attention_mask is not None:
        start = 0 if cache_update_index is None else cache_update_index
        attention_mask = layer._mask_sliding_window(attention_mask, cache_update_index=start)
    return own(layer, query, key, value, attention_mask, cache_update_index=cache_update_index, **others)


def _norm(weight="scale", epsilon="epsilon", offset=0.0, as_input=False):
    """What serves the call() of an RMS norm, and its guard. Of the norm: the names of its weight and epsilon, what is added
    to the weight, and whether the result has the input's dtype, where it has not the layer's."""

    def gamma_of(layer):
        gamma = getattr(layer, weight, None)
        return None if isinstance(gamma, float) else gamma

    def serve(own, layer, x):
        gamma = gamma_of(layer)
        if gamma is not None and offset:
            gamma = keras.ops.cast(gamma, real(tf.as_dtype(x.dtype)).name) + offset
        y = with_the_sum_before(rms_norm, x, gamma, axes=[len(x.shape) - 1], epsilon=getattr(layer, epsilon))
        return y if as_input else keras.ops.cast(y, layer.compute_dtype)

    return serve, lambda layer, x: norm_guard(x, [gamma_of(layer)], -1, getattr(layer, epsilon))


def _t5_norm():
    """Of T5, whose argument has another name."""
    serve, guard = _norm(weight="weight", as_input=True)
    return lambda own, layer, hidden_states: serve(own, layer, hidden_states), lambda layer, hidden_states: guard(
        layer, hidden_states)


_MODELS = "keras_hub.src.models."
_NORMS = {
    "llama.llama_layernorm": {"LlamaLayerNorm": _norm()},
    "mistral.mistral_layer_norm": {"MistralLayerNormalization": _norm()},
    "mixtral.mixtral_layer_norm": {"MixtralLayerNormalization": _norm()},
    "gpt_oss.gpt_oss_layer_norm": {"GptOssLayerNormalization": _norm()},
    "phi3.phi3_layernorm": {"Phi3LayerNorm": _norm()},
    "qwen.qwen_layernorm": {"QwenLayerNorm": _norm()},
    "qwen_moe.qwen_moe_layernorm": {"QwenMoeLayerNorm": _norm()},
    "qwen3.qwen3_layernorm": {"Qwen3LayerNorm": _norm(as_input=True)},
    "qwen3_moe.qwen3_moe_layernorm": {"Qwen3MoeLayerNorm": _norm(as_input=True)},
    "qwen3_5.qwen3_5_layers": {"Qwen3_5LayerNorm": _norm(offset=1.0, as_input=True),
                               "Qwen3_5RMSNormGated": _norm(as_input=True)},
    "gemma.rms_normalization": {"RMSNormalization": _norm(offset=1.0)},
    "gemma3.gemma3_layers": {"RMSNormalization": _norm(offset=1.0)},
    "gemma3n.rms_normalization": {"Gemma3nRMSNorm": _norm(epsilon="eps", as_input=True)},
    "gemma4.gemma4_layers": {"RMSNormalization": _norm(), "Gemma4VNorm": _norm(), "Gemma4FrozenNorm": _norm()},
    "edrec.edrec_layers": {"EdRecRMSNormalization": _norm(offset=1.0, as_input=True)},
    "t5.t5_layer_norm": {"T5LayerNorm": _t5_norm()},
}
# These ask first whether there is a GPU of a kind that their other backends serve.
_CHOOSY = {"gemma.gemma_attention": "CachedGemmaAttention", "gemma3.gemma3_attention": "CachedGemma3Attention",
               "gemma4.gemma4_attention": "Gemma4TextAttention", "mixtral.mixtral_attention": "CachedMixtralAttention",
               "qwen_moe.qwen_moe_attention": "QwenMoeAttention"}
_WINDOWED = {"qwen.qwen_attention": "QwenAttention", "qwen_moe.qwen_moe_attention": "QwenMoeAttention",
             "qwen3.qwen3_attention": "Qwen3Attention", "qwen3_moe.qwen3_moe_attention": "Qwen3MoeAttention",
             "qwen3_5.qwen3_5_attention": "Qwen3_5Attention"}

TABLE = [
    Row("keras_hub.src.utils.keras_utils", "fused_attention_op_available", _answer_true, in_place=True),
    *(Row(_MODELS + module, name + "._use_fused_attention_op", _use_fused_attention, _use_fused_attention_guard)
      for module, name in _CHOOSY.items()),
    *(Row(_MODELS + module, name + "._compute_attention", _windowed) for module, name in _WINDOWED.items()),
    *(Row(_MODELS + module, name + ".call", *norm) for module, norms in _NORMS.items() for name, norm in norms.items()),
]
