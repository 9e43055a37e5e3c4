"""What tfuse.enable() replaces in KerasHub, as rows of a table: attention that its models write out as products and
a softmax, since something is added to the scores. Here tfuse.attention takes that as its bias.

A replacement stands for the whole method that has the products in it, so it repeats what that does around them: the
projections, the cache. Names and arguments are those of KerasHub 0.32. Those of vision models are in
_replaced_hub_vision.py. What is left to KerasHub, and why:
  Gemma 3n: its text layers hand the weights on as a result, which tfuse.attention never has.
  Audio of Gemma 3n and Gemma 4: blocks of the sequence, with a score for every relative place inside the soft cap.
  XLNet: three kinds of scores, for two streams of queries that share their parts.
"""

import functools
import inspect
import sys

import tensorflow as tf
from keras import ops
from keras.src.backend.common import global_state

from tfuse._core._explain import reason
from tfuse._core._op import real
from tfuse._keras import _look_back_attention
from tfuse._keras._replaced import Row, by_name, not_taken
from tfuse.attention.attention import attention
from tfuse.rows.softmax import kept

# ---- what they share ----


def attend(dropout, training, query, key, value, **options):
    """tfuse.attention, which drops weights as a layer's Dropout does while it trains."""
    if training and dropout.rate:
        options.update(dropout=dropout.rate, seed=dropout.seed_generator)
    return attention(query, key, value, **options)


def is_training():
    """What a Dropout that is told nothing goes by: what the layers around it were called with."""
    return getattr(global_state.get_global_attribute("current_call_ctx"), "training", None)


def split(x, heads):
    """[batch, time, heads * dim] as [batch, time, heads, dim]."""
    return ops.reshape(x, (*ops.shape(x)[:2], heads, x.shape[-1] // heads))


def joined(x):
    """[batch, time, heads, dim] as [batch, time, heads * dim]."""
    return ops.reshape(x, (*ops.shape(x)[:2], x.shape[2] * x.shape[3]))


def _cached(cache, index, project):
    """Key, value and cache. `project` gives key and value of the input, which take their place in a cache from step `index`
    on; without an index all that is attended to is in the cache already."""
    if cache is None:
        return *project(), None
    if index is None:
        return cache[:, 0], cache[:, 1], cache
    key, value = (ops.slice_update(cache[:, i], [0, index, 0, 0], x) for i, x in enumerate(project()))
    return key, value, ops.stack((key, value), axis=1)


@reason
def guard(x, dropout, cache=None, cache_update_index=None):
    yield not_taken(x)
    yield dropout.rate >= 1 and "dropout leaves nothing"
    yield cache is None and cache_update_index is not None and "cache_update_index without a cache"


def _mask_guard(mask, *others):
    """For layers that want a mask, [batch, queries, keys]; numbers are taken as Keras's Softmax takes them."""
    if mask is None or len(mask.shape) != 3:
        return "the mask is not [batch, queries, keys]"
    return guard(*others)


@functools.lru_cache(64)
def _arguments(function):
    """Names, but for the layer itself and what is replaced."""
    return [name for name in inspect.signature(function).parameters if name not in ("self", "layer", "block", "own")]


def row(module, attribute, serve, why_not):
    """A row whose method is left alone where a release of KerasHub gives it other arguments, and perhaps other results.
    why_not: as by_name takes it."""
    module, named = "keras_hub.src.models." + module, by_name(serve, why_not)

    def same_arguments(*inputs, **options):
        there = functools.reduce(getattr, attribute.split("."), sys.modules[module])
        if _arguments(there) != _arguments(serve):
            return "this release of KerasHub has other arguments here"
        return named(*inputs, **options)

    return Row(module, attribute, serve, same_arguments)


# ---- Bloom and Falcon: ALiBi, a bias per head that grows with the place of the key ----


def _bloom(own, layer, hidden_states, attention_mask=None, cache=None, cache_update_index=None):
    """softmax(scale * query . key + alibi): alibi is [1, heads, 1, keys], and is not scaled."""
    query = layer._query_dense(hidden_states)
    key, value, cache = _cached(cache, cache_update_index,
                                lambda: (layer._key_dense(hidden_states), layer._value_dense(hidden_states)))
    alibi = layer._alibi_layer._get_alibi_bias(layer.num_heads, ops.shape(key)[1])
    y = attend(layer._dropout_layer, is_training(), query, key, value, bias=alibi, mask=kept(attention_mask)[:, None],
               scale=layer.inv_norm_factor)
    y = layer._dropout_layer(layer._output_dense(joined(y)))
    return y if cache is None else (y, cache)


def _falcon(own, layer, inputs, alibi, attention_mask=None, cache=None, cache_update_index=None):
    """softmax(scale * (query . key + alibi)): alibi is [batch, heads, 1, keys], and is scaled with the rest."""
    query = layer.query_dense(inputs)
    key, value, cache = _cached(cache, cache_update_index, lambda: (layer.key_dense(inputs), layer.value_dense(inputs)))
    alibi = alibi * ops.cast(layer.inv_norm_factor, layer.compute_dtype)
    y = attend(layer.attention_dropout, is_training(), query, key, value, bias=alibi, mask=kept(attention_mask)[:, None],
               scale=layer.inv_norm_factor)
    y = layer.output_dense(joined(y))
    return y if cache is None else (y, cache)


# ---- T5: a learned bias per head and distance, which the first layer makes for all ----


def _t5(own, layer, hidden_states, mask=None, key_value_states=None, position_bias=None, cache=None,
        cache_update_index=None, training=False):
    """softmax(query . key + bias), without a scale. The first layer returns the bias with the mask in it, -1e9 where that is
    False, and later layers receive it so. The sum has a batch axis, which the bias alone has not; and with nothing but -1e9
    in a row, log(sum of exp) has no digits left for the sum, which gradients are made from. So the returned tensor carries
    all parts along, and what comes without them is masked again by its size."""
    states = hidden_states if key_value_states is None else key_value_states
    query = split(layer.query_projector(hidden_states), layer.num_heads)
    key, value, cache = _cached(cache, cache_update_index, lambda: (
        split(layer.key_projector(states), layer.num_heads), split(layer.value_projector(states), layer.num_heads)))
    if hasattr(position_bias, "_tfuse_parts"):
        bias, seen, causal = position_bias._tfuse_parts
    elif position_bias is not None:
        bias, seen, causal = position_bias, position_bias > -5e8, False
    else:
        queries, keys, bias = ops.shape(query)[1], ops.shape(key)[1], None
        if layer.use_relative_attention_bias:
            bias = _t5_bias(layer, queries, keys, 0 if cache_update_index is None else cache_update_index)
            position_bias = tf.identity(bias)
        else:
            position_bias = ops.zeros((1, layer.num_heads, queries, keys), layer.compute_dtype)
        causal, seen = False, None
        if mask is not None:
            causal, seen = _look_back_attention.without_causal(tf.expand_dims(kept(mask), 1), query, key)
            position_bias = position_bias + (1.0 - ops.cast(mask[:, None], position_bias.dtype)) * -1e9
        position_bias._tfuse_parts = bias, seen, causal
    y = attend(layer.dropout_layer, training, query, key, value, scale=1.0, mask=seen, is_causal=causal,
               bias=None if bias is None else ops.cast(bias, query.dtype))
    return layer.output_projector(joined(y)), position_bias, cache


def _t5_bias(layer, queries, keys, start):
    """layer.compute_bias(), [1, heads, queries, keys], which depends on the distance from query to key alone. KerasHub gathers
    a row of the weights for every pair; the gradient of that is as many rows to scatter, all to the same few. Here a row is
    picked for every distance, and the others are copies of it, whose gradients are sums along an axis.

    With period queries + keys, w[j - i] for j >= i and w[period + j - i] for j < i are the distance's: query i has w moved
    on by i. Rows that are all w, written one after the other and read in rows of period - 1, are moved so."""
    period = queries + keys
    place = tf.range(period)
    distance = tf.where(place < keys, place, place - period) - tf.cast(start, place.dtype)
    bucket = layer._relative_position_bucket(distance, not layer.is_decoder, layer.relative_attention_buckets,
                                             layer.relative_attention_max_distance)
    weights = tf.transpose(ops.convert_to_tensor(layer.relative_attention_bias))
    dtype, weights = weights.dtype, tf.cast(weights, real(weights.dtype))
    chosen = bucket == tf.range(layer.relative_attention_buckets)[:, None]
    w = tf.reduce_sum(tf.where(chosen, weights[:, :, None], tf.zeros([], weights.dtype)), 1)
    rows = tf.broadcast_to(w[:, None], [layer.num_heads, queries, period])
    rows = tf.reshape(rows, [1, layer.num_heads, queries * period])[..., :queries * (period - 1)]
    rows = tf.reshape(rows, [1, layer.num_heads, queries, period - 1])
    return tf.cast(rows[..., :keys], dtype)


# ---- DeBERTa: scores of content to position and position to content ----


def _deberta(own, layer, inputs, rel_embeddings, attention_mask=None, return_attention_scores=False, training=None):
    """softmax(scale * query . key + c2p + p2c), where KerasHub makes the last two, [batch, heads, queries, keys], as ever:
    they are handed over instead of added, and neither the sum nor the weights are stored."""
    query, key, value = layer._query_dense(inputs), layer._key_dense(inputs), layer._value_dense(inputs)
    rel_embeddings = layer._position_dropout_layer(rel_embeddings, training=training)
    bias = layer._compute_disentangled_attention(query=query, key=key, rel_embeddings=rel_embeddings)
    y = attend(layer._attn_dropout_layer, training, query, key, value, bias=bias, mask=kept(attention_mask)[:, None],
               scale=layer.scale_factor)
    return layer._output_dense(joined(y))


# ---- GPT-OSS: a learned score per head that takes weight and gives no value ----


def _gpt_oss(own, layer, query, key, value, attention_mask=None, start_index=0):
    """With the score s of the sink, weights are exp(score) / (exp(s) + sum of exp) = (1 + exp(s - lse))^-1 of what they
    are without, lse being log(sum of exp)."""
    mask = None if attention_mask is None else ops.cast(attention_mask, "bool")[:, None]
    if layer.sliding_window:
        places = ops.arange(ops.shape(query)[1])[:, None] + start_index
        near = ops.arange(ops.shape(key)[1]) >= places - layer.sliding_window
        mask = near if mask is None else tf.logical_and(mask, near)
    y, lse = attention(query, key, value, mask=mask, scale=layer._inv_norm_factor, return_lse=True)
    share = ops.sigmoid(lse - ops.cast(layer.sinks, lse.dtype)[:, None])
    return y * ops.cast(ops.transpose(share, (0, 2, 1))[..., None], y.dtype)


TABLE = [
    row("bloom.bloom_attention", "BloomAttention.call", _bloom, lambda a: _mask_guard(
        a.attention_mask, a.hidden_states, a.layer._dropout_layer, a.cache, a.cache_update_index)),
    row("falcon.falcon_attention", "FalconAttention.call", _falcon, lambda a: _mask_guard(
        a.attention_mask, a.inputs, a.layer.attention_dropout, a.cache, a.cache_update_index)),
    row("t5.t5_multi_head_attention", "T5MultiHeadAttention.call", _t5, lambda a: guard(
        a.hidden_states, a.layer.dropout_layer, a.cache, a.cache_update_index)),
    row("deberta_v3.disentangled_self_attention", "DisentangledSelfAttention.call", _deberta, lambda a: (
        "return_attention_scores" if a.return_attention_scores else
        _mask_guard(a.attention_mask, a.inputs, a.layer._attn_dropout_layer))),
    row("gpt_oss.gpt_oss_attention", "GptOssAttention._compute_attention", _gpt_oss, lambda a: not_taken(
        a.query, a.key, a.value)),
]
