"""Sums, means, extremes, products, logsumexp, variances and norms over any axes, in one pass over memory."""

import tensorflow as tf

from tfuse._core import _library, _rows
from tfuse._core._op import FLOATS, MOST_AXES, FusedOp, composite, inside_xla, real, sized, vjp

_FROM_END, _ALL = 8, 1 << 16  # bits of the op's attribute axes, as in ops/reductions/axes.h
_MANY = 1 << 16  # elements from which on a broadcast is worth some more ops; by reasoning, not measured
_REAL = ("logsumexp", "variance", "std", "l2")  # kinds that integers do not have


def _mask(op, x, axis):
    """The attribute axes of an op."""
    if axis is None:
        return _ALL
    axes, rank = _rows.axes_of(op, axis), x.shape.rank
    most = _FROM_END if rank is None else rank
    if any(not -most <= a < most for a in axes) or len({a % rank if rank else a for a in axes}) < len(axes):
        raise ValueError("%s: axis must be one or several axes of x %s, got %s" % (
            op, "of unknown rank" if rank is None else x.shape.as_list(), axes if isinstance(axis, tf.Tensor) else axis))
    return sum(1 << (a if a >= 0 else _FROM_END - 1 - a) for a in axes)


def _named(axes):
    """The axes that the attribute names; negative ones count from the end."""
    return [a if a < _FROM_END else _FROM_END - 1 - a for a in range(2 * _FROM_END) if axes >> a & 1]


def reduced_axes(rank, axes):
    """The same of a tensor, in order, from 0 on."""
    return list(range(rank)) if axes & _ALL else sorted(a % rank for a in _named(axes))


def _plain(x, kind="sum", axes=_ALL, keepdims=False):
    axis = None if axes & _ALL else _named(axes)
    v = x if x.dtype.is_integer else tf.cast(x, real(x.dtype))
    if kind == "l2":
        y = tf.sqrt(tf.reduce_sum(tf.square(v), axis, keepdims))
    else:
        y = getattr(tf.math, "reduce_" + kind)(v, axis, keepdims)
    return tf.cast(y, x.dtype)


def _spread(node, dy):
    """dy of a sum or mean, for each value that was added."""
    x = node.inputs[0]
    axes, count = node.attr("axes"), None
    if x.shape.rank is not None:
        gone = reduced_axes(x.shape.rank, axes)
        sizes = _rows.sizes(x)
        shape, kept = sizes, [1 if a in gone else size for a, size in enumerate(sizes)]
        count = _rows.product([sizes[a] for a in gone])
    else:
        shape, rank = tf.shape(x), tf.rank(x)
        gone = tf.range(rank) if axes & _ALL else tf.math.floormod(tf.constant(_named(axes), tf.int32), rank)
        kept = tf.tensor_scatter_nd_update(shape, gone[:, None], tf.ones_like(gone))
        count = tf.reduce_prod(tf.gather(shape, gone))
    if node.attr("kind") == "mean":
        dy = tf.cast(tf.cast(dy, real(dy.dtype)) / tf.cast(count, real(dy.dtype)), dy.dtype)
    elements = x.shape.num_elements()
    if _in_the_middle(x.shape, gone) and (elements is None or elements >= _MANY) and not (
            inside_xla() or _library.without_gpu()):
        return _grad(dy, None, None, sized(*shape), **node.attrs("axes", "keepdims"))
    return _broadcast(tf.reshape(dy, kept), shape, x.shape)


def _in_the_middle(shape, gone):
    """Whether axes that are reduced lie side by side, between others: there TensorFlow's broadcast takes 1.7 times a copy's
    time on an H200, elsewhere 1.0 to 1.25 times. Axes of size 1 count."""
    return shape.rank is not None and 0 < len(gone) < shape.rank < MOST_AXES and (
        gone[-1] - gone[0] + 1 == len(gone) and 0 < gone[0] and gone[-1] < shape.rank - 1)


def _broadcast(x, shape, of):
    """tf.broadcast_to, which writes an element at a time whatever its size: here 8 bytes are one, where rows allow it and
    there are many. Inside XLA it becomes part of what reads it. `of` is the shape as far as it is known."""
    elements, last = (None, None) if of.rank in (None, 0) else (of.num_elements(), of[-1])
    each = 8 // x.dtype.size
    if last is None or last % each or each == 1 or (elements is not None and elements < _MANY) or inside_xla():
        return tf.broadcast_to(x, shape)
    own = _rows.sizes(x)
    joined = tf.reshape(x, [*own[:-1], last // each, each]) if own[-1] != 1 else tf.stack([x] * each, -1)
    y = tf.broadcast_to(tf.bitcast(joined, tf.float64), [*shape[:-1], last // each])
    return tf.reshape(tf.bitcast(y, x.dtype), shape)


def _gradient(node, dy):
    x, kind = node.inputs[0], node.attr("kind")
    if not x.dtype.is_floating:
        return None
    if kind in ("sum", "mean"):
        return _spread(node, dy)
    y = node.outputs[0] if kind == "l2" else None  # others need more than y
    return _grad(dy, x, y, None, **node.attrs("kind", "axes", "keepdims"))


def _plain_gradient(dy, x, y, room, kind="sum", **attributes):
    values = tf.zeros(tf.shape(room)[:-1], x.dtype) if kind == "sum" else x
    return vjp(_plain)(dy, values, kind=kind, **attributes)


_grad = FusedOp("ReduceGrad", plain=_plain_gradient, axes=lambda inputs: {
    "dy": "ABCDEFGH", "y": "ABCDEFGH", "room": "abcdefgh"[:inputs[3].shape.rank - 1] + "z"})
_op = FusedOp("Reduce", plain=_plain, gradient=_gradient)


def _reduce(kind, x, axis, keepdims):
    op, x = "reduce_" + kind, _rows.tensor(x)
    if kind in _REAL and x.dtype not in FLOATS:
        raise ValueError("%s: input_tensor must be float32, float16, bfloat16 or float64, got %s" % (op, x.dtype.name))
    return _op(x, kind=kind, axes=_mask(op, x, axis), keepdims=bool(keepdims))


@composite
def reduce_sum(input_tensor, axis=None, keepdims=False, name=None):
    """Returns the sum over axes, as tf.reduce_sum does. Sums of integers wrap.

    Args:
      input_tensor: float tensor, or int32 or int64. 16-bit floats are added up in float32.
      axis: an integer, several, or None for all; negative ones count from the end.
      keepdims: whether the axes stay, with one element.
      name: not used.

    Example:
      y = tfuse.reduce_sum(tf.random.normal([8, 16, 32]), axis=[0, 2])
    """
    return _reduce("sum", input_tensor, axis, keepdims)


_DOC = """Returns %s

    Args:
      input_tensor: %s.
      axis, keepdims, name: as of tfuse.reduce_sum.

    Example:
      y = tfuse.reduce_%s(tf.random.normal([8, 16, 32]), axis=[0, 2])
    """


def _reduction(kind, text):
    def reduce(input_tensor, axis=None, keepdims=False, name=None):
        return _reduce(kind, input_tensor, axis, keepdims)

    reduce.__name__ = reduce.__qualname__ = "reduce_" + kind
    reduce.__doc__ = _DOC % (text, "float tensor" if kind in _REAL else "float tensor, or int32 or int64", kind)
    reduce = composite(reduce)
    reduce.dtypes = FLOATS if kind in _REAL else None  # of those that the op takes, for docs/ops.md; None: all
    return reduce


reduce_mean = _reduction(
    "mean", "the mean over axes, as tf.reduce_mean does. That of integers is their sum, which wraps, divided by their number\n"
    "    and rounded towards zero.")
reduce_max = _reduction(
    "max", "the greatest value, NaN if there is any over axes, as tf.reduce_max does. Equal ones share the gradient.")
reduce_min = _reduction(
    "min", "the least value, NaN if there is any over axes, as tf.reduce_min does. Equal ones share the gradient.")
reduce_prod = _reduction(
    "prod", "the product over axes, as tf.reduce_prod does. Nothing on the way to it is too large or too small, and its\n"
    "    gradient is right where there are zeros. Products of integers wrap.")
reduce_logsumexp = _reduction("logsumexp", "log(sum(exp(x))) over axes, as tf.reduce_logsumexp does.")
reduce_variance = _reduction(
    "variance", "the mean of squared differences from the mean over axes, as tf.math.reduce_variance does.")
reduce_std = _reduction(
    "std", "the root of the variance over axes, as tf.math.reduce_std does. Its gradient is NaN where it is 0, as in\n"
    "    TensorFlow.")
reduce_l2 = _reduction("l2", "sqrt(sum(x^2)) over axes, as tf.norm does. Its gradient is NaN where it is 0, as in TensorFlow.")
