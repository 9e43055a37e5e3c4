"""Sums of rows that have the same id, always in the same order."""

import tensorflow as tf

from tfuse._core import _library, _rows
from tfuse._core._op import FusedOp, composite, inside_xla, registry, sized


def _gradient(node, dy):
    if not node.inputs[0].dtype.is_floating:
        return [None] * 4
    ids = tf.cast(node.inputs[1], tf.int64)  # TensorFlow computes with int32 in the host's memory
    if node.attr("sorted"):
        return [tf.gather(dy, tf.maximum(ids, 0)), None, None, None]
    rank = tf.rank(dy) if dy.shape.rank is None else dy.shape.rank
    with_none = tf.pad(dy, tf.pad([[1, 0]], [[0, rank - 1], [0, 0]]))  # a row of zeros for what was dropped
    return [tf.gather(with_none, tf.maximum(ids, -1) + 1), None, None, None]


def _axes(inputs):
    """Rows are the first axis of data; an order that is not given, [0], has none."""
    order = "o" if inputs[2].shape.as_list() == [0] else "n"
    return {"data": "nabcdefg"[:inputs[0].shape.rank], "segment_ids": "n", "order": order, "room": "sz"}


_segments = FusedOp("SegmentSum", gradient=_gradient, axes=_axes, plain=lambda data, segment_ids, order, room, sorted=True: (
    tf.math.unsorted_segment_sum(data, segment_ids, tf.shape(room)[0])))


def _last_and_one(segment_ids):
    """The number of segments that sorted ids have: a number, or a tensor where it is not known yet."""
    if segment_ids.shape.rank not in (None, 1):
        return 0  # the op refuses it
    if tf.executing_eagerly():
        return max(int(segment_ids[-1]) + 1, 0) if len(segment_ids) else 0
    known = tf.get_static_value(segment_ids)
    if known is not None:
        return max(int(known[-1]) + 1, 0) if len(known) else 0
    if inside_xla():
        raise ValueError("segment_sum: num_segments must be given inside jit_compile=True, where sizes are fixed")
    return tf.reduce_max(tf.concat([tf.constant([-1], segment_ids.dtype), segment_ids[-1:]], 0)) + 1


def _none_on_device(like):
    """An int32 tensor without elements on the device. A constant of that dtype is kept in the host's memory, and to bring it
    over in every call holds up all that comes after: on an H200 0.45 ms became 0.14 without."""
    none = tf.cast(tf.reshape(like, [-1])[:0], tf.int32)
    none.set_shape([0])
    return none


def _sum(op, data, segment_ids, num_segments, sorted):
    data, segment_ids = _rows.tensor(data), _rows.tensor(segment_ids)
    if segment_ids.dtype not in (tf.int32, tf.int64):
        raise ValueError("%s: segment_ids must be int32 or int64, got %s" % (op, segment_ids.dtype.name))
    rank = segment_ids.shape.rank
    if not sorted and rank not in (None, 1):  # of an unknown rank it is taken for a vector
        if data.shape.rank is None:
            raise ValueError("%s: data must have a known number of dimensions where segment_ids has %d" % (op, rank))
        if not data.shape[:rank].is_compatible_with(segment_ids.shape):
            raise ValueError("%s: data %s must begin with the shape of segment_ids, %s" % (
                op, data.shape.as_list(), segment_ids.shape.as_list()))
        rest = _rows.sizes(data, rank)
        count = _rows.product(_rows.sizes(segment_ids))
        data, segment_ids = tf.reshape(data, [count, *rest]), _rows.flat(segment_ids)
    known = tf.get_static_value(_rows.count(op, "num_segments", num_segments))
    if known is not None and int(known) < 0:
        raise ValueError("%s: num_segments must not be negative, got %d" % (op, int(known)))
    room = sized(num_segments if known is None else int(known))
    # Only a GPU needs the order. Equal ids keep theirs.
    order = None if sorted or _library.without_gpu() else registry["Argsort"](segment_ids)
    if sorted and not (_library.without_gpu() or tf.executing_eagerly() or inside_xla()):
        order = _none_on_device(data)
    return _segments(data, segment_ids, order, room, sorted=sorted)


@composite
def segment_sum(data, segment_ids, name=None, num_segments=None):
    """Returns y with y[s] = the sum of data[i] over all i with segment_ids[i] = s, as tf.math.segment_sum does.

    On a GPU nothing is said about ids that are not sorted; they are never read or written out of bounds.

    Args:
      data: float tensor, or int32 or int64. 16-bit floats are rounded once.
      segment_ids: int32 or int64, one for each row of data, sorted.
      name: not used.
      num_segments: how many segments there are; None: the last id, and one. Inside jit_compile=True it must be given.

    Example:
      y = tfuse.segment_sum(tf.ones([4, 8]), tf.constant([0, 0, 2, 2]))
    """
    segment_ids = _rows.tensor(segment_ids)
    if num_segments is None:
        num_segments = _last_and_one(segment_ids)
    return _sum("segment_sum", data, segment_ids, num_segments, True)


@composite
def unsorted_segment_sum(data, segment_ids, num_segments, name=None):
    """Returns y with y[s] = the sum of data[i] over all i with segment_ids[i] = s, as tf.math.unsorted_segment_sum does.

    Rows are added in their order, so that sums repeat bit for bit; on a GPU the ids are sorted for it.

    Args:
      data: float tensor, or int32 or int64, whose shape begins with that of segment_ids.
      segment_ids: int32 or int64. What has a negative id is dropped.
      num_segments: how many segments there are. Ids must be below it; on a GPU others are dropped.
      name: not used.

    Example:
      y = tfuse.unsorted_segment_sum(tf.ones([4, 8]), tf.constant([2, 0, -1, 2]), 3)
    """
    return _sum("unsorted_segment_sum", data, segment_ids, num_segments, False)
