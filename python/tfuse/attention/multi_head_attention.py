"""Keras's attention layers by tfuse.attention: memory linear in the sequence length, dropout inside, heads not repeated.

Keras's layers compute a mask in one method and attend in another. Here the first hands over what the mask is made of, and
the second asks tfuse.attention for that: no [queries, keys] mask is made of padding, causality or a sliding window. What
tfuse does not serve (scores as a result, several attention axes) gets Keras's mask and Keras's own computation.
"""

import collections
import functools
import inspect

import keras
import tensorflow as tf

from tfuse._core import _explain
from tfuse._core._layer import made_of
from tfuse._core._op import FLOATS
from tfuse.attention.attention import attention

_METHODS = ["call", "_compute_attention_mask", "_compute_attention", "_masked_softmax"]

_Masks = collections.namedtuple("_Masks", "query value key attention causal keras_own")


class Served:
    """What takes the place of two methods and one number of an attention layer's class, `home`: that of Keras, or one made
    of it here. Each is given the method of Keras that it replaces."""

    def __init__(self, home):
        self.home, self._name = home, home.__name__
        self._says_scores = "return_attention_scores" in inspect.signature(home._compute_attention).parameters
        self.num_repeats = property(self._get_repeats, self._set_repeats)

    def mask(self, keras_own, layer, query, value, query_mask=None, value_mask=None, key_mask=None, attention_mask=None,
             use_causal_mask=False, **unknown):
        own = functools.partial(keras_own, layer, query, value, query_mask=query_mask, value_mask=value_mask,
                                key_mask=key_mask, attention_mask=attention_mask, use_causal_mask=use_causal_mask, **unknown)
        if unknown or not self._is_home(layer):
            return own()
        return _Masks(query_mask, value_mask, key_mask, attention_mask, use_causal_mask, own)

    def attend(self, keras_own, layer, query, key, value, attention_mask=None, training=None, return_attention_scores=None,
               use_causal_mask=False, **unknown):
        masks = attention_mask
        if not isinstance(masks, _Masks):
            masks = _Masks(None, None, None, attention_mask, use_causal_mask, None)
        why = self._why_not(layer, query, key, value, return_attention_scores, unknown)
        if not why:
            return _attend(layer, query, key, value, masks, training), None
        _explain.note(self._name, "Keras's own code", why, [query], "called")
        told = {"return_attention_scores": return_attention_scores, "use_causal_mask": use_causal_mask or None, **unknown}
        if key.shape[-2] != query.shape[-2]:
            key, value = (keras.ops.repeat(x, query.shape[-2] // x.shape[-2], axis=-2) for x in (key, value))
        return keras_own(layer, query, key, value, masks.keras_own() if masks.keras_own else attention_mask, training,
                         **{name: value for name, value in told.items() if value is not None})

    def _is_home(self, layer):
        """Not where a class made of it has a method of its own that may know Keras's masks only."""
        return all(getattr(type(layer), name) is getattr(self.home, name) for name in _METHODS)

    @_explain.reason
    def _why_not(self, layer, query, key, value, return_attention_scores, unknown):
        yield unknown and "tfuse does not know %s" % ", ".join(unknown)
        if not self._says_scores:
            return_attention_scores = getattr(layer, "_return_attention_scores", None)
            silent = return_attention_scores is None
            yield silent and "this Keras computes attention without saying whether the scores are wanted; 3.7 says it"
        yield return_attention_scores and "return_attention_scores"
        several = any(len(x.shape) != 4 for x in (query, key, value)) or tuple(getattr(layer, "_attention_axes", (1,))) != (1,)
        yield several and "attention_axes are not the one before the last"
        of = lambda cls: (cls._masked_softmax, getattr(cls, "_build_attention", None))
        other = of(type(layer)) != of(self.home) or not isinstance(layer._softmax, keras.layers.Softmax)
        yield other and "%s has a softmax of its own" % type(layer).__name__
        yield layer.dropout >= 1 and "dropout leaves nothing"
        served = tf.as_dtype(query.dtype) in FLOATS
        yield not served and "tfuse takes float32, float16, bfloat16 and float64, got %s" % query.dtype

    # Keras repeats the heads of key and value this often before it attends. The number stays with the layer.
    def _get_repeats(self, layer):
        if "num_repeats" not in vars(layer):  # Keras asks while it sets
            raise AttributeError("num_repeats")
        return 1 if self._is_home(layer) else vars(layer)["num_repeats"]

    def _set_repeats(self, layer, value):
        vars(layer)["num_repeats"] = value


def _attend(layer, query, key, value, masks, training):
    mask = None
    for part, axis in (masks.value, -2), (masks.key, -2), (masks.attention, -3):
        if part is not None:
            part = keras.ops.cast(part, "bool")
            while len(part.shape) < 4:  # [batch, keys] and [queries, keys] or [batch, queries, keys], to all four
                part = keras.ops.expand_dims(part, axis)
            mask = part if mask is None else tf.logical_and(mask, part)
    window = getattr(layer, "_sliding_window", getattr(layer, "sliding_window", None)) if masks.keras_own else None
    drops = {"dropout": layer.dropout, "seed": layer._dropout_layer.seed_generator} if training and layer.dropout else {}
    scale = getattr(layer, "_inverse_sqrt_key_dim", getattr(layer, "_inverse_sqrt_head_dim", None))
    output = attention(query, key, value, mask=mask, scale=scale, is_causal=bool(masks.causal),
                       window=None if window is None else window - 1, **drops)
    if masks.query is None:
        return output
    # A query that is masked attends to nothing: the same as a row of the mask, without the [queries, keys] of it.
    return tf.where(keras.ops.cast(masks.query, "bool")[:, :, None, None], output, tf.zeros([], output.dtype))


def _layer(stock, doc, *properties):
    served = Served(stock)
    served.home = made_of(stock, {"_compute_attention_mask": served.mask, "_compute_attention": served.attend}, doc, __name__,
                          **{name: getattr(served, name) for name in properties})
    return served.home


MultiHeadAttention = _layer(
    keras.layers.MultiHeadAttention, """keras.layers.MultiHeadAttention by tfuse.attention: same arguments, weights and results.

    Memory is linear in the sequence length, with dropout too. Queries that attend to nothing give 0 before the output
    projection. With return_attention_scores, or attention axes other than the one, all is as in Keras.

    Example:
      x = tf.random.normal([2, 16, 64])
      y = tfuse.MultiHeadAttention(num_heads=4, key_dim=16)(x, x, use_causal_mask=True)
    """)
GroupedQueryAttention = _layer(
    keras.layers.GroupQueryAttention, """keras.layers.GroupQueryAttention by tfuse.attention: same arguments, weights and results.

    As tfuse.MultiHeadAttention; and the heads of key and value are not repeated.

    Example:
      x = tf.random.normal([2, 16, 64])
      y = tfuse.GroupedQueryAttention(head_dim=16, num_query_heads=4, num_key_value_heads=2)(x, x)
    """, "num_repeats")
