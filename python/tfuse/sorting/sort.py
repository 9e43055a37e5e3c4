"""Rows in order: their values, and the indices of these, with gradients."""

import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite

_DIRECTIONS = ("ASCENDING", "DESCENDING")


def _plain_unsort(dy, indices, values):
    rows, n, k = tf.size(indices) // tf.maximum(tf.shape(indices)[-1], 1), tf.shape(values)[-1], tf.shape(indices)[-1]
    flat = tf.reshape(indices, [rows, k]) + n * tf.range(rows)[:, None]
    dx = tf.scatter_nd(tf.reshape(flat, [-1, 1]), tf.reshape(dy, [-1]), [tf.size(values)])
    return tf.reshape(dx, tf.shape(values))


AXES = {"k": "kz", "dy": "abdefghk", "indices": "abdefghk", **dict.fromkeys(["values", "input"], "abdefghc")}
_unsort = FusedOp("Unsort", plain=_plain_unsort, axes=AXES)
_argsort = FusedOp("Argsort", gradient=lambda node, dy: [None], plain=lambda values, descending=False: (
    tf.argsort(values, direction=_DIRECTIONS[descending], stable=True)))
_sort = FusedOp("Sort", plain=lambda values, descending=False: tf.sort(values, direction=_DIRECTIONS[descending]),
                gradient=lambda node, dy: _unsort(
                    dy, _argsort(*node.inputs, descending=node.attr("descending")), *node.inputs))


def _over(op, values, axis, direction, fused):
    if direction not in _DIRECTIONS:
        raise ValueError("%s: direction must be 'ASCENDING' or 'DESCENDING', got %r" % (op, direction))
    values = _rows.tensor(values)
    rows = _rows.Rows(op, values, axis)
    return rows.give_back(fused(rows.take(values), descending=direction == "DESCENDING"))


@composite
def sort(values, axis=-1, direction="ASCENDING", name=None):
    """Returns the values along an axis in order, as tf.sort. NaN is greater than all others.

    The gradient goes back to the places that the values came from; of equal ones, the first gets the first.

    Args:
      values: float, int32 or int64 tensor.
      axis: an integer. Another axis than the last is first moved there, at the price of a copy.
      direction: "ASCENDING" or "DESCENDING".
      name: not used.

    Example:
      y = tfuse.sort(tf.constant([3.0, 1.0, 2.0]), direction="DESCENDING")
    """
    return _over("sort", values, axis, direction, _sort)


@composite
def argsort(values, axis=-1, direction="ASCENDING", stable=True, name=None):
    """Returns the indices of the values along an axis, in the order of the values, as int32, as tf.argsort.

    Args:
      values, axis, direction, name: as in tfuse.sort.
      stable: not used: of equal values, -0.0 and 0.0 among them, the lower index always comes first.

    Example:
      order = tfuse.argsort(tf.constant([3, 1, 2]))
    """
    return _over("argsort", values, axis, direction, _argsort)
