"""How often ids come, and sums of what comes with them."""

import tensorflow as tf
from tensorflow.python.eager import context

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite, inside_xla, real, sized
from tfuse.reductions.reduce import reduce_max


def _rows_and_bins(ids, bins):
    """ids as a matrix that tells the bins of its rows apart: -1 is none; how many a row has; and the shape of the result."""
    size = _rows.size(bins, 0)
    flat = tf.reshape(ids, [-1, tf.shape(ids)[-1]]) if ids.shape.rank != 1 else ids[None]
    inside = (flat >= 0) & (flat < tf.cast(size, flat.dtype))
    row = tf.range(tf.shape(flat)[0])[:, None]
    return tf.where(inside, tf.cast(flat, tf.int32) + row * size, -1), size, tf.concat([tf.shape(ids)[:-1], [size]], 0)


def _plain_sums(weights, ids, bins):
    ids, size, shape = _rows_and_bins(ids, bins)
    weights = tf.cast(weights, real(weights.dtype)) if weights.dtype.is_floating else weights
    weights = tf.reshape(weights, tf.shape(ids))
    return tf.reshape(tf.math.unsorted_segment_sum(weights, ids, tf.shape(ids)[0] * size), shape)


def plain_counts(ids, bins, binary=False):
    counts = _plain_sums(tf.ones_like(ids, tf.int64), ids, bins)
    return tf.cast(counts > 0, tf.int64) if binary else counts


def _plain_weights(dsums, ids):
    size, ids = tf.cast(_rows.size(dsums, -1), tf.int64), tf.cast(ids, tf.int64)
    columns = tf.maximum(tf.shape(ids, tf.int64)[-1], 1)
    row = tf.reshape(tf.range(tf.size(ids, tf.int64)) // columns, tf.shape(ids)) if ids.shape.rank != 1 else 0
    inside = (ids >= 0) & (ids < size)
    taken = tf.gather(tf.reshape(dsums, [-1]), tf.where(inside, row * size + ids, 0))
    return tf.where(inside, taken, tf.zeros([], dsums.dtype))


_AXES = {"bins": "sz", "ids": "abcdefgn", "weights": "abcdefgn", "dsums": "abcdefgs"}
_bincount = FusedOp("Bincount", plain=plain_counts, axes=_AXES, gradient=lambda node, dy: [None, None])
_weights = FusedOp("WeightedBincountGrad", plain=_plain_weights, axes=_AXES, gradient=lambda node, d: [
    _weighted(d, node.inputs[1], sized(_rows.size(node.inputs[0], -1))), None])
_weighted = FusedOp("WeightedBincount", axes=_AXES,
                    plain=lambda weights, ids, bins: tf.cast(_plain_sums(weights, ids, bins), weights.dtype),
                    gradient=lambda node, dsums: [_weights(dsums, node.inputs[1]), None, None])


def _size(ids, minlength, maxlength):
    """As many bins as tf.math.bincount has: up to the greatest id, within the two lengths."""
    least, most = (length if length is None else tf.get_static_value(length) for length in (minlength, maxlength))
    if least is not None and most is not None and least >= most:
        return int(most)
    if not context.executing_eagerly() and inside_xla():
        raise ValueError("bincount: inside jit_compile=True, where sizes have to be known, minlength and maxlength must be "
                         "given and the same, got %s and %s" % (minlength, maxlength))
    # Of no ids the greatest is the least number of all. TensorFlow would look for it in the host's memory.
    size = tf.maximum(reduce_max(ids) + 1, tf.cast(0 if minlength is None else minlength, ids.dtype))
    return size if maxlength is None else tf.minimum(size, tf.cast(maxlength, ids.dtype))


@composite
def bincount(arr, weights=None, minlength=None, maxlength=None, dtype=tf.int32, name=None, axis=None, binary_output=False):
    """Returns how often each number from 0 on comes, or the sums of weights, as tf.math.bincount; bit for bit repeatable.

    Args:
      arr: int32 or int64 tensor; others are made one. A number less than 0 is an error on the CPU, and passed over on the
        GPU.
      weights: None, or a tensor of arr's shape: what comes with a number is added up instead of 1. Weights have a gradient.
      minlength, maxlength: how many bins there are at least and at most. Without them the greatest number says it, and on a
        GPU the host waits for that; where both are the same, nothing is asked. Inside jit_compile=True this has to be so.
      dtype: of the counts, where there are no weights.
      name: not used.
      axis: None and 0 count in all of arr; -1 in each row along the last axis.
      binary_output: 1 where a number comes at all.

    Example:
      counts = tfuse.bincount(tf.constant([1, 1, 3]), minlength=5, maxlength=5)
    """
    if axis not in (None, 0, -1):
        raise ValueError("bincount: axis must be None, 0 or -1, got %r" % (axis,))
    if weights is not None and binary_output:
        raise ValueError("bincount: binary_output must be False where weights are given, got True")
    for name, length in (("minlength", minlength), ("maxlength", maxlength)):
        _rows.count("bincount", name, length)
    ids = _rows.tensor(arr)
    if ids.dtype not in (tf.int32, tf.int64):
        ids = tf.cast(ids, tf.int64 if ids.dtype in (tf.uint32, tf.uint64) else tf.int32)
    weights = None if weights is None else _rows.tensor(weights)
    if axis != -1:
        if weights is not None and not ids.shape.is_compatible_with(weights.shape):
            raise ValueError("bincount: weights must have the shape of arr, %s, got %s" % (ids.shape, weights.shape))
        ids, weights = _rows.flat(ids), weights if weights is None else _rows.flat(weights)
    bins = sized(_size(ids, minlength, maxlength))
    if weights is not None:
        return _weighted(weights, ids, bins)
    return tf.cast(_bincount(ids, bins, binary=bool(binary_output)), dtype)
