"""How many values fall into each of several bins of one width."""

import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite, sized
from tfuse.sorting.bincount import plain_counts


def _plain(values, range, bins):
    values, (low, high) = tf.reshape(tf.cast(values, tf.float64), [-1]), tf.unstack(tf.cast(range, tf.float64))
    last = tf.cast(tf.shape(bins)[0] - 1, tf.float64)
    index = tf.minimum((tf.maximum(values, low) - low) / ((high - low) / (last + 1)), last)
    return plain_counts(tf.where(tf.math.is_nan(values), -1, tf.cast(index, tf.int32)), bins)


_histogram = FusedOp("Histogram", plain=_plain, axes={"bins": "sz", "values": "abcdefgh", "range": "t"},
                     gradient=lambda node, dy: [None] * 3)


def _counts(op, values, value_range, nbins, dtype):
    static = tf.get_static_value(value_range) if tf.is_tensor(value_range) else value_range
    if static is not None and len(static) == 2 and not any(map(tf.is_symbolic_tensor, static)) and not static[0] < static[1]:
        raise ValueError("%s: value_range must be a value and a greater one, got %s" % (op, list(static)))
    _rows.count(op, "nbins", nbins)
    if tf.get_static_value(nbins) is not None and tf.get_static_value(nbins) < 1:
        raise ValueError("%s: nbins must be at least 1, got %s" % (op, nbins))
    values = _rows.tensor(values)
    value_range = tf.cast(value_range, values.dtype) if tf.is_tensor(value_range) else value_range
    return tf.cast(_histogram(values, value_range, sized(nbins)), _rows.integers(op, "dtype", dtype))


@composite
def histogram_fixed_width(values, value_range, nbins=100, dtype=tf.int32, name=None):
    """Returns how many values fall into each of some bins of one width, as tf.histogram_fixed_width.

    Args:
      values: float, int32 or int64 tensor. NaN is in no bin.
      value_range: two values, the second the greater. What is less than the first is in the first bin, and what is not less
        than the second in the last.
      nbins: how many bins there are.
      dtype: of the counts.
      name: not used.

    Example:
      counts = tfuse.histogram_fixed_width(tf.random.normal([1000]), [-3.0, 3.0], nbins=10)
    """
    return _counts("histogram_fixed_width", values, value_range, nbins, dtype)


@composite
def histogram(values, value_range, nbins=100, dtype=tf.int32, name=None):
    """Is tfuse.histogram_fixed_width by a shorter name."""
    return _counts("histogram", values, value_range, nbins, dtype)
