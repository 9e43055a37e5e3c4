"""Tensors one after the other along an axis: concat; and its gradient, a tensor in parts."""

import tensorflow as tf
from tensorflow.python.eager import context

from tfuse._core import _explain, _row, _rows
from tfuse._core._list_op import ListOp
from tfuse._core._op import FLOATS, MOST_AXES, composite, sized

_DTYPES = (*FLOATS, tf.int32, tf.int64, tf.bool)
_FUSED = "XLA makes its own concatenation part of the kernels around it"


def _gradient(arguments, results, dy, axis):
    """Of sizes that are known, no input is kept for the backward pass."""
    (values,), (dy,) = arguments, dy
    return split_as(tf.convert_to_tensor(dy), values, axis)


def _split_gradient(arguments, results, dy, axis):
    (parts,), (dy,) = results, dy
    return [_joined([tf.zeros_like(p) if d is None else tf.convert_to_tensor(d) for p, d in zip(parts, dy)], axis),
            *(None for _ in parts)]


_concat = ListOp("Concat", plain=lambda x, axis: [tf.concat(x, axis)], gradient=_gradient, not_in_xla=_FUSED)
_split = ListOp("ConcatSplit", gradient=_split_gradient, not_in_xla=_FUSED, plain=lambda x, sizes, axis: [
    tf.split(x, [tf.shape(size)[0] for size in sizes], axis, len(sizes))])  # sizes are those of empty tensors [size, 0]


def _shape(values, axis):
    """The shape of the result, as far as it is known. Raises ValueError for what the op would refuse."""
    return _row.shapes("concat", values, {"axis": axis, "N": len(values)}, 1)[0]


def _joined(values, axis, shape=None):
    y, = _concat(values, axis=axis)
    if not context.executing_eagerly():
        y.set_shape(shape or _shape(values, axis))
    return y


def _are_views(shape, sizes, axis, dtype):
    """Whether TensorFlow gives parts of the first axis without copying: each begins where memory is aligned."""
    if shape.rank is None or axis not in (0, -shape.rank) or not all(isinstance(size, int) for size in sizes):
        return False
    return shape[1:].is_fully_defined() and shape[1:].num_elements() * dtype.size % 64 == 0


def split_as(x, like, axis):
    """x in parts along an axis, which are as large as the tensors of a list; what these hold is not read."""
    sizes = [_rows.size(v, axis) for v in like]
    if _are_views(like[0].shape, sizes, axis, x.dtype):
        return tf.split(x, sizes, 0)
    parts, = _split(x, [sized(size) for size in sizes], axis=axis)
    if not context.executing_eagerly():
        for part, v in zip(parts, like):
            part.set_shape(v.shape)
    return parts


def _tensors(values):
    """Tensors of one dtype: that of the first which has one, for numbers and arrays."""
    if not isinstance(values, (list, tuple)):
        values = [values]
    if not values:
        raise ValueError("concat: values must have at least one tensor, got an empty list")
    leaves = tf.nest.flatten(values)
    dtype = next((tf.as_dtype(v.dtype) for v in leaves if hasattr(v, "dtype")), None)
    dtype = dtype or tf.convert_to_tensor(leaves).dtype  # of numbers alone: what holds all of them
    tensors = []
    for i, v in enumerate(values):
        if isinstance(v, (tf.RaggedTensor, tf.SparseTensor)):
            raise ValueError("concat: values[%d] must be a dense tensor, got a %s" % (i, type(v).__name__))
        v = tf.convert_to_tensor(v, None if hasattr(v, "dtype") else dtype)
        if tensors and v.dtype != tensors[0].dtype:
            raise ValueError("concat: values[%d] must be %s like values[0], got %s; cast one of them" % (
                i, tensors[0].dtype.name, v.dtype.name))
        tensors.append(v)
    return tensors


@composite
def concat(values, axis, name=None):
    """Returns tensors one after the other along an axis, as tf.concat does.

    Inside jit_compile=True it is tf.concat, which XLA makes part of the kernels around it.

    Args:
      values: list of tensors of one dtype: float32, float16, bfloat16, float64, int32, int64 or bool; others are left to
        TensorFlow. Their sizes are the same but along the axis, where any may be 0.
      axis: the axis; a negative one counts from the end.
      name: of no effect.

    Example:
      y = tfuse.concat([tf.zeros([2, 3]), tf.ones([2, 5])], 1)    # [2, 8]
    """
    values = _tensors(values)
    number = tf.get_static_value(tf.convert_to_tensor(axis))
    axes = max(v.shape.rank or 0 for v in values)
    if number is None:
        return _left(values, axis, "the axis is known when the function runs, and not before")
    if number.shape != () or number.dtype.kind not in "iu":
        raise ValueError("concat: axis must be an integer, got %s" % (axis,))
    if values[0].dtype not in _DTYPES:
        return _left(values, axis, "tfuse has no kernels for %s" % values[0].dtype.name)
    if axes > MOST_AXES:
        return _left(values, axis, "tfuse takes up to %d axes, got %d" % (MOST_AXES, axes))
    try:
        if context.executing_eagerly() and len(values) > 1:  # asking the rule before the op does would cost a fifth of a call
            return _joined(values, int(number))
    except tf.errors.InvalidArgumentError:
        pass
    shape = _shape(values, int(number))  # raises what the op would
    return _joined(values, int(number), shape) if len(values) > 1 else tf.identity(values[0])


def _left(values, axis, why):
    _explain.note("Concat", "plain TensorFlow", why, values, "called")
    return tf.concat(values, axis)
