"""What attention finds by looking back (_look_back.py): heads of key and value that were repeated for the query's, which it
shares by itself; and a mask that is causal, or causal and another one, of which it needs the other one alone.

A mask counts as causal by its values, however it was written: where they are constants, they are known while a function is
traced.
"""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfuse._core import _made
from tfuse._keras import _look_back

MOST = 2**24  # elements of a mask whose values are looked at: they are computed for that
_BOTH = "LogicalAnd", "Minimum", "Mul", "BitwiseAnd"  # of two masks, be they numbers: where both are true


def repeat(own, x, repeats, axis=None):
    """keras.ops.repeat, which remembers what was repeated."""
    y = own(x, repeats, axis)
    if isinstance(repeats, int) and isinstance(axis, int) and isinstance(x, tf.Tensor):
        _made.keep(y, _made.Repeated(x, repeats, axis % len(x.shape) if x.shape.rank else axis))
    return y


def shared_heads(key, value):
    """Key and value, [batch, time, heads, head_dim], before their heads were repeated."""
    made = [_look_back.on and _look_back.in_graph(x) and _made.of(x, _made.Repeated) for x in (key, value)]
    if not all(made) or {(m.count, m.axis) for m in made} != {(made[0].count, 2)}:
        return key, value
    _look_back.note("Attention", "heads that were repeated are shared", key)
    return [m.x for m in made]


def without_causal(mask, query, key):
    """(whether the mask lets query i see keys up to i only, what else it says or None): both together are the mask, for query
    and key as keras.ops.dot_product_attention takes them. Else (False, mask)."""
    steps = [query.shape[1], key.shape[1]]
    if not (_look_back.on and _look_back.in_graph(mask) and mask.shape.rank and mask.shape.rank >= 2):
        return False, mask
    expanded, both = [], mask  # the axes that were put in behind the place where two masks became one
    while _casts(both) or _expanded(both) is not None:
        if not _casts(both):
            expanded.append(_expanded(both))
        both = both.op.inputs[0]
    rank, both = both.shape.rank, _before_broadcast(both)
    if _is_causal(mask, steps) or _is_causal(both, steps):
        _look_back.note("Attention", "the mask is causal", mask)
        return True, None
    for one, other in [both.op.inputs, both.op.inputs[::-1]] if both.op.type in _BOTH else []:
        other = _before_broadcast(other)
        if _is_causal(_before_broadcast(one), steps) and other.shape.rank is not None:
            _look_back.note("Attention", "the mask is causal, and another", mask)
            for axis in [0] * (rank - other.shape.rank) + expanded[::-1]:
                other = tf.expand_dims(other, axis)
            return True, tf.cast(other, tf.bool)
    return False, mask


def _before_broadcast(mask):
    """A mask before it was broadcast along axes, and before it was cast."""
    while _casts(mask) or mask.op.type == "BroadcastTo" and mask.op.inputs[0].shape.rank:
        mask = mask.op.inputs[0]
    return mask


def _expanded(mask):
    """The axis that was put in before those of queries and keys; or None."""
    axis = tf.get_static_value(mask.op.inputs[1]) if mask.op.type == "ExpandDims" else None
    return None if axis is None or axis % mask.shape.rank > mask.shape.rank - 3 else int(axis) % mask.shape.rank


def _casts(mask):
    """Whether it is cast such that what is 0 stays 0, and nothing else becomes 0."""
    if mask.op.type != "Cast" or mask.op.inputs[0].shape.rank is None:
        return False
    return mask.dtype == tf.bool or mask.op.inputs[0].dtype in (tf.bool, tf.int32, tf.int64)


def _is_causal(mask, steps):
    """Whether a mask is one for all sequences and heads, and query i sees keys up to i by it. steps: how many queries and keys
    there are; where that is not known, or not what the mask has, one of them is stretched."""
    shape = mask.shape.as_list() if mask.shape.rank else [None]
    if None in shape or shape[-2:] != steps or np.prod(shape) > MOST or np.prod(shape) != np.prod(steps) or steps[0] < 2:
        return False
    known = _made.of(mask, _made.Causal)
    if known is None:
        value = tensor_util.constant_value(mask)
        if value is None:
            value = tensor_util.try_evaluate_constant(mask)
        causal = value is not None and np.array_equal(value.reshape(shape[-2:]) != 0, np.tri(*shape[-2:], dtype=bool))
        known = _made.Causal(mask, causal)
        _made.keep(mask, known)
    return known.answer
