"""What tfuse.enable() replaces of Keras's activations, softmax, losses, norms, linear layers, dropout and attention, as a table.

Relu, tanh, sigmoid and their like are not in it: as one kernel each, TensorFlow's own are as fast, and XLA merges them with
their neighbours.
"""

import numbers
import operator
import sys

import keras
import tensorflow as tf

from tfuse._core import _sizes
from tfuse._core._explain import reason
from tfuse._keras import _look_back, _look_back_attention
from tfuse._keras._replaced import (Row, are_axes, backend_module, by_name, listed, not_taken, on_a_gpu, or_own, shape_of,
                                    stretches)
from tfuse.attention import multi_head_attention as layers
from tfuse.attention.attention import attention
from tfuse.elementwise.scale_bias_act import gelu, hard_swish, mish, silu, softplus
from tfuse.products.einsum_dense import einsum_dense, why_not_einsum_dense
from tfuse.products.linear import dense, why_not_dense
from tfuse.rows.cross_entropy import sparse_cross_entropy, stock_cross_entropy
from tfuse.rows.group_norm import group_norm
from tfuse.rows.norm import layer_norm, rms_norm
from tfuse.rows.softmax import kept, log_softmax, softmax

# ---- activations, softmax, cross entropy: keras.ops calls these of the backend ----


def _one_taken(x):
    return not_taken(x)


def _activation(name, alone):
    """What serves an activation: with the product before it, or alone."""
    return or_own(lambda x: _look_back.activation(x, name), alone)


def _gelu(own, x, approximate=True):
    return _activation("gelu_tanh" if approximate else "gelu", lambda x: gelu(x, approximate))(own, x)


def _probabilities(own, x, axis=-1):
    y = softmax(x, operator.index(axis))
    y._keras_logits = x  # where Keras's losses look for what a softmax was made from
    return y


@reason
def _softmax_guard(x, axis=-1):
    yield not_taken(x)
    yield axis is None and "softmax over all axes at once"
    yield not are_axes(x, [operator.index(axis)]) and "x has no axis %s" % axis


def _softmax_layer(own, layer, inputs, mask=None):
    axes = listed(layer.axis)
    if mask is None and len(axes) == 1:
        return own(layer, inputs)  # that comes by way of the backend's softmax
    for axis in range(0 if mask is None else -len(shape_of(mask)), 0):
        inputs = _sizes.stretched(inputs, axis, mask)
    return softmax(inputs, axes, kept(mask))


@reason
def _softmax_layer_guard(layer, inputs, mask=None):
    yield not_taken(inputs)
    yield layer.axis is None and "softmax over all axes at once"
    yield not are_axes(inputs, listed(layer.axis)) and "the inputs have not the axes %s" % (layer.axis,)
    known = shape_of(mask) if hasattr(mask, "shape") else None
    fits = mask is None or known is not None and stretches(known, shape_of(inputs))
    yield not fits and "the mask does not broadcast to the inputs"


def _cross_entropy_guard(sparse):
    @reason
    def guard(target, output, from_logits=False, axis=-1):
        yield not_taken(output)
        made_by = "" if tf.executing_eagerly() or not hasattr(output, "op") else output.op.type
        logits_known = from_logits or hasattr(output, "_keras_logits") or made_by == "Softmax"
        yield not logits_known and "the output is probabilities, not logits"
        labels, logits = shape_of(tf.convert_to_tensor(target)), shape_of(output)
        yield (not logits or logits[-1] == 0) and "there are no classes"
        if sparse and labels and len(labels) == len(logits) and labels[-1] == 1:
            labels = labels[:-1]
        wanted = logits[:-1] if sparse else logits
        fits = labels is not None and stretches(labels, wanted) and stretches(wanted, labels)
        yield not fits and "the target's shape does not match the output's"
        yield operator.index(axis) not in (-1, len(logits) - 1) and "the classes are not the last axis"

    return guard


def _logits(output, from_logits, name):
    """By Keras's own rule, with its warning: what the output was made from by a softmax, or the output."""
    output, _ = sys.modules[_NN]._get_logits(output, from_logits, "Softmax", name)
    return tf.convert_to_tensor(output)


def _sparse_categorical(own, target, output, from_logits=False, axis=-1):
    logits = _logits(output, from_logits, "sparse_categorical_crossentropy")
    labels = tf.cast(target, tf.int64)
    if labels.shape.rank == logits.shape.rank:
        labels = tf.squeeze(labels, -1)
    return tf.cast(sparse_cross_entropy(_look_back.logits_before(logits), labels), logits.dtype)


def _categorical(own, target, output, from_logits=False, axis=-1):
    logits = _logits(output, from_logits, "categorical_crossentropy")
    targets = tf.cast(target, logits.dtype)
    for axis in range(len(shape_of(logits))):
        logits, targets = _sizes.stretched(logits, axis, targets), _sizes.stretched(targets, axis, logits)
    return tf.cast(stock_cross_entropy(logits, targets), logits.dtype)


# ---- normalisation ----


def _axes(x, axis):
    """The axes counted from 0, in the order given, which must be that of x; None where they are not such axes."""
    given = sorted(listed(axis))
    axes = [a % len(shape_of(x)) for a in given] if are_axes(x, given) else None
    return axes if axes == sorted(axes or []) else None


@reason
def norm_guard(x, weights, axis, epsilon, trailing=False):
    """trailing: weights are not moved to their axes, but broadcast."""
    yield not_taken(x, *weights)
    yield not isinstance(axis, (int, list, tuple)) and "the axis is a %s" % type(axis).__name__
    axes = _axes(x, axis)
    yield not axes and "the axes %s are not those of x, in order" % (axis,)
    shape = [shape_of(x)[a] for a in axes]
    odd = [w for w in weights if w is not None and (shape_of(w) != shape or None in shape)]
    yield odd and "weights are not of the axes' shape %s" % shape
    first = len(shape_of(x)) - len(axes)
    yield trailing and axes != list(range(first, first + len(axes))) and "the axes %s are not the last" % (axis,)
    yield not isinstance(epsilon, (numbers.Real, type(None))) and "epsilon is not a number"


def _given_epsilon(epsilon):
    return keras.backend.epsilon() if epsilon is None else float(epsilon)


def with_the_sum_before(norm, x, *weights, axes, epsilon):
    """A norm, joined with the addition that made x."""
    whole = lambda x, residual=None, **dropout: norm(x, *weights, axes, epsilon, residual=residual, **dropout)
    return _look_back.norm(x, whole) if axes == [len(shape_of(x)) - 1] else whole(x)


def _layer_norm(own, x, gamma=None, beta=None, axis=-1, epsilon=None, rms_scaling=False):
    return with_the_sum_before(layer_norm, x, gamma, beta, axes=_axes(x, axis), epsilon=_given_epsilon(epsilon))


def _layer_norm_guard(x, gamma=None, beta=None, axis=-1, epsilon=None, rms_scaling=False):
    return "rms_scaling divides by the deviation" if rms_scaling else norm_guard(x, [gamma, beta], axis, epsilon)


def _layer_norm_layer(own, layer, inputs):
    y = with_the_sum_before(layer_norm, inputs, layer.gamma, layer.beta, axes=_axes(inputs, layer.axis), epsilon=layer.epsilon)
    return keras.ops.cast(y, layer.compute_dtype)


def _layer_norm_layer_guard(layer, inputs):
    rms_scaling = getattr(layer, "rms_scaling", False)
    return _layer_norm_guard(inputs, layer.gamma, layer.beta, layer.axis, layer.epsilon, rms_scaling)


def _no_scale(scale):
    """Keras 3.9 writes 1 for none."""
    return scale is None or isinstance(scale, numbers.Real) and scale == 1


def _rms_norm(own, x, scale=None, axis=-1, epsilon=None):
    scale = None if _no_scale(scale) else scale
    return with_the_sum_before(rms_norm, x, scale, axes=_axes(x, axis), epsilon=_given_epsilon(epsilon))


def _rms_norm_guard(x, scale=None, axis=-1, epsilon=None):
    return norm_guard(x, [None if _no_scale(scale) else scale], axis, epsilon, trailing=True)


def _group_norm_layer(own, layer, inputs):
    y = group_norm(inputs, layer.gamma, layer.beta, layer.groups, operator.index(layer.axis), layer.epsilon)
    return keras.ops.cast(y, layer.compute_dtype)


@reason
def _group_norm_layer_guard(layer, inputs):
    yield not_taken(inputs)
    yield operator.index(layer.axis) % len(shape_of(inputs)) == 0 and "the channels are the axis of the samples"


# ---- linear layers ----


def _linear_row(module, name, serve, why_not):
    return Row(_LAYERS + module, name + ".call", lambda own, layer, inputs, training=None: serve(
        layer, _look_back.gate_before(inputs), training), on_a_gpu(
            lambda layer, inputs, training=None: why_not(layer, inputs), "product"))


# ---- dropout ----


def _dropout(own, layer, inputs, training=False):
    """What drops something else than single elements comes by way of the backend's dropout."""
    if not training or layer.noise_shape is not None or not 0 < layer.rate < 1:
        return own(layer, inputs, training)
    return _look_back.dropped(inputs, layer.rate, layer.seed_generator)


# ---- attention ----


def _attention(own, query, key, value, bias=None, mask=None, scale=None, is_causal=False, flash_attention=None,
               attn_logits_soft_cap=None):
    dtype = keras.backend.result_type(*(keras.backend.standardize_dtype(x.dtype) for x in (query, key, value)))
    key, value = _look_back_attention.shared_heads(key, value)
    causal, mask = _look_back_attention.without_causal(mask, query, key)
    for scores in (bias, mask):
        if scores is not None and len(scores.shape) > 1:
            query = _sizes.stretched(query, 1, scores, -2)
    query, key, value = (keras.ops.cast(x, dtype) for x in (query, key, value))
    if bias is not None:
        bias = keras.ops.cast(bias, dtype)
    return attention(query, key, value, bias=bias, mask=mask, scale=None if scale is None else float(scale),
                     is_causal=bool(is_causal) or causal, soft_cap=attn_logits_soft_cap)


@reason
def _why_not_attention(a):
    yield not_taken(a.query, a.key, a.value)
    shapes = [shape_of(x) for x in (a.query, a.key, a.value)]
    yield any(len(shape) != 4 for shape in shapes) and "query, key and value are not all [batch, time, heads, head_dim]"
    (batch, queries, heads, _), (_, keys, shared, _), _ = shapes
    yield heads and shared and heads % shared and "%d heads of the query cannot share %d of the key" % (heads, shared)
    for name, x in ("bias", a.bias), ("mask", a.mask):
        fits = x is None or hasattr(x, "shape") and stretches(shape_of(x) or [], [batch, heads, queries, keys])
        yield not fits and "the %s does not broadcast to [batch, heads, queries, keys]" % name
    yield a.mask is not None and keras.backend.standardize_dtype(a.mask.dtype) != "bool" and "the mask is not boolean"
    yield not isinstance(a.attn_logits_soft_cap, (numbers.Real, type(None))) and "the soft cap is a tensor"
    yield not isinstance(a.scale, (numbers.Real, type(None))) and "the scale is a tensor"


_attention_guard = by_name(_attention, _why_not_attention)


def _capped_attention(own, query, key, value, *others, attn_logits_soft_cap=None, **options):
    """keras.ops.dot_product_attention. On TensorFlow, Keras refuses a soft cap before it asks the backend."""
    if attn_logits_soft_cap is None:
        return own(query, key, value, *others, **options)  # that comes by way of the backend's
    query, key, value = (keras.ops.convert_to_tensor(x) for x in (query, key, value))
    return _attention(own, query, key, value, *others, attn_logits_soft_cap=attn_logits_soft_cap, **options)


@reason
def _capped_attention_guard(query, key, value, *others, attn_logits_soft_cap=None, **options):
    if attn_logits_soft_cap is not None:
        symbolic = any(isinstance(x, keras.KerasTensor) for x in (query, key, value))
        yield symbolic and "of symbolic tensors, Keras would forget the soft cap where tfuse is not enabled"
        query, key, value = (keras.ops.convert_to_tensor(x) for x in (query, key, value))
        yield _attention_guard(query, key, value, *others, attn_logits_soft_cap=attn_logits_soft_cap, **options)


# ---- the table ----

_NN = backend_module("nn")
_LAYERS = "keras.src.layers."
_NORMS = _LAYERS + "normalization."
_MHA, _GQA = _LAYERS + "attention.multi_head_attention", _LAYERS + "attention.grouped_query_attention"
_MULTI_HEAD, _GROUPED = (layers.Served(c) for c in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention))

TABLE = [
    Row(_NN, "gelu", _gelu, by_name(_gelu, lambda a: not_taken(a.x))),
    Row(_NN, "silu", _activation("silu", silu), _one_taken),
    Row(_NN, "softplus", _activation("softplus", softplus), _one_taken),
    Row(_NN, "hard_silu", _activation("hard_swish", hard_swish), _one_taken),
    Row("keras.src.activations.activations", "Mish.static_call", _activation("mish", mish), _one_taken),
    Row(_NN, "softmax", _probabilities, _softmax_guard),
    Row(_NN, "log_softmax", lambda own, x, axis=-1: log_softmax(x, operator.index(axis)), _softmax_guard),
    Row(_LAYERS + "activations.softmax", "Softmax.call", _softmax_layer, _softmax_layer_guard),
    Row(_NN, "sparse_categorical_crossentropy", _sparse_categorical, _cross_entropy_guard(sparse=True)),
    Row(_NN, "categorical_crossentropy", _categorical, _cross_entropy_guard(sparse=False)),
    Row("keras.src.ops.nn", "_layer_normalization", _layer_norm, _layer_norm_guard),
    Row("keras.src.ops.nn", "_rms_normalization", _rms_norm, _rms_norm_guard),
    Row(_NORMS + "layer_normalization", "LayerNormalization.call", _layer_norm_layer, _layer_norm_layer_guard),
    Row(_NORMS + "group_normalization", "GroupNormalization.call", _group_norm_layer, _group_norm_layer_guard),
    _linear_row("core.dense", "Dense", dense, why_not_dense),
    _linear_row("core.einsum_dense", "EinsumDense", einsum_dense, why_not_einsum_dense),
    Row(_LAYERS + "regularization.dropout", "Dropout.call", _dropout, by_name(_dropout, lambda a: not_taken(a.inputs))),
    Row(_NN, "dot_product_attention", _attention, _attention_guard),
    Row("keras.ops", "dot_product_attention", _capped_attention, _capped_attention_guard),
    Row(_MHA, "MultiHeadAttention._compute_attention_mask", _MULTI_HEAD.mask),
    Row(_MHA, "MultiHeadAttention._compute_attention", _MULTI_HEAD.attend),
    Row(_GQA, "GroupedQueryAttention._compute_attention_mask", _GROUPED.mask),
    Row(_GQA, "GroupedQueryAttention._compute_attention", _GROUPED.attend),
    Row(_GQA, "GroupedQueryAttention.num_repeats", _GROUPED.num_repeats),
]
