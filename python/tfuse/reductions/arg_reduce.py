"""The indices of the greatest and least values along an axis."""

import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite


_op = FusedOp("ArgReduce", gradient=lambda node, dy: None, plain=lambda x, kind="max", axis=0, I=tf.int64: (
    (tf.argmax if kind == "max" else tf.argmin)(x, axis, I)))


def _index(kind, x, axis, output_type):
    op, x = "arg" + kind, _rows.tensor(x)
    axis, *others = _rows.axes_of(op, 0 if axis is None else axis)
    if others:
        raise ValueError("%s: axis must be one integer, got %s" % (op, [axis, *others]))
    output_type, rank = tf.as_dtype(output_type), x.shape.rank
    if output_type not in (tf.int32, tf.int64):
        raise ValueError("%s: output_type must be int32 or int64, got %s" % (op, output_type.name))
    if rank is not None and not -rank <= axis < rank:
        raise ValueError("%s: axis must be an axis of x %s, got %d" % (op, x.shape.as_list(), axis))
    return _op(x, kind=kind, axis=axis, I=output_type)


@composite
def argmax(input, axis=None, output_type=tf.int64, name=None):
    """Returns the first index along an axis where the greatest value stands, as tf.argmax does. NaN plays no part.

    Args:
      input: float tensor, or int32 or int64.
      axis: an integer; None is 0, as in TensorFlow.
      output_type: int32 or int64.
      name: not used.

    Example:
      best = tfuse.argmax(tf.random.normal([8, 1000]), axis=-1)
    """
    return _index("max", input, axis, output_type)


@composite
def argmin(input, axis=None, output_type=tf.int64, name=None):
    """Returns the first index along an axis where the least value stands; arguments as of tfuse.argmax.

    Example:
      nearest = tfuse.argmin(tf.random.uniform([8, 1000]), axis=-1, output_type=tf.int32)
    """
    return _index("min", input, axis, output_type)
