"""The distinct values of a vector, in the order in which they first come."""

import collections

import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite, inside_xla

UniqueWithCounts = collections.namedtuple("UniqueWithCounts", ["y", "idx", "count"])


def _plain(x):
    order, n = tf.argsort(x, stable=True), tf.shape(x)[0]
    by_value = tf.gather(x, order)
    heads = tf.concat([tf.ones([tf.minimum(n, 1)], tf.bool), by_value[1:] != by_value[:-1]], 0)
    of_value = tf.cumsum(tf.cast(heads, tf.int32)) - 1  # which of the distinct values, in their order, each is
    first = tf.math.unsorted_segment_min(order, of_value, n)
    rank = tf.cumsum(tf.scatter_nd(order[:, None], tf.cast(heads, tf.int32), [n])) - 1  # of places that are the first
    of_each = tf.gather(rank, tf.gather(first, of_value))
    indices = tf.where(heads, of_each, n)  # after the last: left out
    y = tf.scatter_nd(indices[:, None], by_value, [n + 1])[:n]
    count = tf.math.unsorted_segment_sum(tf.ones_like(of_each), of_each, n)
    return [y, tf.scatter_nd(order[:, None], of_each, [n]), count, tf.reduce_sum(tf.cast(heads, tf.int32))]


_unique = FusedOp("Unique", plain=_plain, gradient=lambda node, *dy: [None])


def _with_counts(op, x, out_idx, padded):
    y, idx, count, number = _unique(_rows.tensor(x))
    if not padded:
        if inside_xla():
            raise ValueError("%s: how many distinct values there are is not known inside jit_compile=True, where sizes have "
                             "to be: padded=True gives results of x's length" % op)
        y, count = y[:number], count[:number]
    return UniqueWithCounts(y, *(t if out_idx == tf.int32 else tf.cast(t, out_idx) for t in (idx, count)))


@composite
def unique_with_counts(x, out_idx=tf.int32, name=None, padded=False):
    """Returns the distinct values of a vector in the order in which they first come, as tf.unique_with_counts.

    -0.0 and 0.0 are equal; each NaN is a value of its own. On a GPU, the host waits for the number of distinct values.

    Args:
      x: float, int32 or int64 vector.
      out_idx: dtype of idx and count.
      name: not used.
      padded: y and count have as many entries as x, zeros after the last. Inside jit_compile=True this has to be, and on
        a GPU nothing waits.

    Returns:
      (y, idx, count), a named tuple: x[i] is y[idx[i]], and y[j] comes count[j] times.

    Example:
      y, idx, count = tfuse.unique_with_counts(tf.constant([7, 2, 7, 7]))
    """
    return _with_counts("unique_with_counts", x, out_idx, padded)


@composite
def unique_counts(x, out_idx=tf.int32, name=None, padded=False):
    """Is tfuse.unique_with_counts by a shorter name."""
    return _with_counts("unique_counts", x, out_idx, padded)
