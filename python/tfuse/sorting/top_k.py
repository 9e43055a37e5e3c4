"""The k greatest of each row, with their gradient."""

import collections
import numbers

import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite, registry, sized
from tfuse.sorting.sort import AXES

TopK = collections.namedtuple("TopK", ["values", "indices"])


_top_k = FusedOp("TopK", plain=lambda input, k: list(tf.math.top_k(input, _rows.size(k, 0))), axes=AXES,
                 gradient=lambda node, dvalues, dindices: [
                     registry["Unsort"](dvalues, node.outputs[1], node.inputs[0]), None])


@composite
def top_k(input, k=1, sorted=True, index_type=tf.int32, name=None):
    """Returns the k greatest values of the last axis and their indices, as tf.math.top_k. NaN is greater than all others.

    Args:
      input: float, int32 or int64 tensor.
      k: an integer, or a tensor of one; from 0 up to the size of the last axis.
      sorted: not used: the greatest always comes first, and of equal values the one with the lower index.
      index_type: dtype of the indices.
      name: not used.

    Returns:
      (values, indices), a named tuple.

    Example:
      values, indices = tfuse.top_k(tf.random.normal([4, 1000]), 5)
    """
    if isinstance(k, (list, tuple)) or _rows.count("top_k", "k", k) is None:
        raise ValueError("top_k: k must be one integer, got %s" % (k,))
    if isinstance(k, numbers.Integral) and k < 0:
        raise ValueError("top_k: k must not be less than 0, got %d" % k)
    index_type = _rows.integers("top_k", "index_type", index_type)
    values, indices = _top_k(_rows.tensor(input), sized(k))
    return TopK(values, indices if index_type == tf.int32 else tf.cast(indices, index_type))
