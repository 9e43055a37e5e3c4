"""Running sums, products, maxima and logarithms of sums of exponentials along any axis, in one pass over memory."""

import numbers
import operator

import numpy as np
import tensorflow as tf

from tfuse._core._op import FLOATS, FusedOp, composite, real


def _before(v, n, axis, fill):
    """v, n positions further along an axis, with `fill` where that leaves nothing."""
    rank = tf.rank(v) if v.shape.rank is None else v.shape.rank
    positions = tf.tensor_scatter_nd_update(tf.ones([rank], tf.int32), [[axis % rank]], [-1])
    index = tf.reshape(tf.range(tf.shape(v)[axis]), positions if v.shape.rank is None else tf.ensure_shape(positions, [rank]))
    return tf.where(index < n, tf.cast(fill, v.dtype), tf.roll(v, n, axis))


def _steps(v, axis):
    """1, 2, 4 and so on, as long as an axis is longer, or may be."""
    length = None if v.shape.rank is None else v.shape[axis]
    return [1 << k for k in range(31 if length is None else max(length - 1, 0).bit_length())]


def _plain_max(x, axis, exclusive, reverse):
    """By doubling: after a step of s positions each maximum is over 2 * s of them."""
    y = tf.reverse(x, [axis]) if reverse else x
    if exclusive:
        y = _before(y, 1, axis, _lowest(x.dtype))
    for s in _steps(x, axis):
        other = _before(y, s, axis, _lowest(x.dtype))
        y = tf.where(tf.math.logical_or(other >= y, other != other), other, y)
    return tf.reverse(y, [axis]) if reverse else y


def _lowest(dtype):
    return float("-inf") if dtype.is_floating else dtype.min


def _plain(x, kind="sum", axis=0, exclusive=False, reverse=False):
    f = {"sum": tf.cumsum, "prod": tf.math.cumprod, "max": _plain_max, "logsumexp": tf.math.cumulative_logsumexp}[kind]
    wide = tf.cast(x, real(x.dtype)) if x.dtype.is_floating else x
    return tf.cast(f(wide, axis=axis, exclusive=exclusive, reverse=reverse), x.dtype)


def _plain_recurrence(x, factor, axis=0, exclusive=False, reverse=False):
    """By doubling: factor and x of 2 * s positions at a time."""
    b, a = (tf.reverse(v, [axis]) if reverse else v for v in (tf.cast(x, real(x.dtype)), tf.cast(factor, real(x.dtype))))
    for s in _steps(x, axis):
        a, b = a * _before(a, s, axis, 1), a * _before(b, s, axis, 0) + b
    y = _before(b, 1, axis, 0) if exclusive else b
    return tf.cast(tf.reverse(y, [axis]) if reverse else y, x.dtype)


def _gradient(node, dy):
    (x,), kind = node.inputs, node.attr("kind")
    along = {"axis": node.attr("axis"), "exclusive": node.attr("exclusive")}
    reverse = node.attr("reverse")
    back = {**along, "reverse": not reverse}
    if kind == "sum":
        return _scan(dy, kind="sum", **back)
    wide, g = tf.cast(x, real(x.dtype)), tf.cast(dy, real(x.dtype))
    if kind == "prod":
        # Of dx_i = prod_{k<i} x_k * sum_{j>=i} dy_j prod_{i<k<=j} x_k the first is a scan, the second a recurrence.
        dx = _scan(wide, kind="prod", axis=along["axis"], exclusive=True, reverse=reverse) * _following(wide, g, **back)
    elif kind == "max":
        # Each goes to the last place at which the maximum grew, or to which it came anew.
        top = _scan(wide, kind="max", axis=along["axis"], exclusive=True, reverse=reverse)
        grown = tf.logical_or(tf.logical_not(wide <= top), tf.equal(top, _lowest(wide.dtype)))
        kept = tf.cast(tf.logical_not(grown), g.dtype)
        dx = tf.where(grown, _following(kept, g, **back), tf.zeros([], g.dtype))
    else:
        # As of stock TensorFlow: of both signs apart, so that logarithms can be taken. Results go through an exponential, and
        # 16 bits would be too few.
        y = node.outputs[0] if x.dtype == g.dtype else _scan(wide, kind=kind, **along, reverse=reverse)
        log = lambda g: tf.where(g > 0, tf.math.log(g), g.dtype.min)
        part = lambda g: tf.exp(_scan(log(g) - y, kind="logsumexp", **back) + wide)
        dx = part(g) - part(-g)
    return tf.cast(dx, x.dtype)


def _following(factor, x, axis, exclusive, reverse):
    """The sum of x_i, factor_{i+1} x_{i+1}, factor_{i+1} factor_{i+2} x_{i+2} and so on, in the order that is said;
    exclusive: without x_i, and with no factor before x_{i+1}."""
    if exclusive:
        return _recurrence(x, factor, axis=axis, exclusive=True, reverse=reverse)
    return x + _recurrence(factor * x, factor, axis=axis, exclusive=True, reverse=reverse)


def _recurrence_gradient(node, dy):
    (x, factor), axis, reverse = node.inputs, node.attr("axis"), node.attr("reverse")
    g = _following(factor, dy, axis, node.attr("exclusive"), not reverse)
    return [g, g * _recurrence(x, factor, axis=axis, exclusive=True, reverse=reverse)]


_scan = FusedOp("Scan", plain=_plain, gradient=_gradient)
_recurrence = FusedOp("ScanRecurrence", plain=_plain_recurrence, gradient=_recurrence_gradient)


def _over(op, kind, x, axis, exclusive, reverse):
    x = tf.convert_to_tensor(x)
    if x.dtype not in _scan.first_dtypes:
        raise ValueError("%s: x must be float32, float16, bfloat16, float64, int32 or int64, got %s" % (op, x.dtype.name))
    number, rank = tf.get_static_value(axis) if isinstance(axis, tf.Tensor) else axis, x.shape.rank
    if not isinstance(number, numbers.Integral) and not (isinstance(number, np.ndarray) and number.shape == ()):
        raise ValueError("%s: axis must be a number that is known while a function is traced, got %s" % (op, axis))
    axis = operator.index(number)
    if rank is not None and not -rank <= axis < rank:
        raise ValueError("%s: axis must be one of x %s, got %d" % (op, x.shape.as_list(), axis))
    if rank is not None and x.shape[axis] == 1 and not exclusive:
        return tf.identity(x)
    return _scan(x, kind=kind, axis=axis, exclusive=bool(exclusive), reverse=bool(reverse))


@composite
def cumsum(x, axis=0, exclusive=False, reverse=False, name=None):
    """Returns running sums of x along an axis, as tf.cumsum does. Those of 16-bit floats are made in float32.

    Args:
      x: tensor of float32, float16, bfloat16, float64, int32 or int64.
      axis: a number.
      exclusive: whether each sum is of what comes before its position, without that position's own value.
      reverse: whether sums begin at the end.
      name: of no effect.

    Example:
      y = tfuse.cumsum(tf.constant([1.0, 2.0, 3.0]), exclusive=True)     # [0, 1, 3]
    """
    return _over("cumsum", "sum", x, axis, exclusive, reverse)


@composite
def cumprod(x, axis=0, exclusive=False, reverse=False, name=None):
    """Returns running products of x along an axis; arguments as of tfuse.cumsum. Gradients are right where x is 0, too.

    Example:
      y = tfuse.cumprod(tf.constant([1.0, 2.0, 3.0]), reverse=True)     # [6, 6, 3]
    """
    return _over("cumprod", "prod", x, axis, exclusive, reverse)


@composite
def cummax(x, axis=0, exclusive=False, reverse=False, name=None):
    """Returns running maxima of x along an axis; arguments as of tfuse.cumsum. From a NaN on, all are NaN.

    The first exclusive maximum is minus infinity, of integers the lowest there is. A gradient goes to the position where the
    maximum first was what it is.

    Example:
      y = tfuse.cummax(tf.constant([1.0, 3.0, 2.0]))     # [1, 3, 3]
    """
    return _over("cummax", "max", x, axis, exclusive, reverse)


@composite
def cumulative_logsumexp(x, axis=0, exclusive=False, reverse=False, name=None):
    """Returns running log(sum(exp(x))) along an axis, as tf.math.cumulative_logsumexp does; arguments as of tfuse.cumsum,
    but x is a float tensor. The first exclusive one is minus infinity.

    Example:
      y = tfuse.cumulative_logsumexp(tf.zeros([3]))     # log of 1, 2 and 3
    """
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_floating:
        raise ValueError("cumulative_logsumexp: x must be float32, float16, bfloat16 or float64, got %s" % x.dtype.name)
    return _over("cumulative_logsumexp", "logsumexp", x, axis, exclusive, reverse)


@composite
def cumlogsumexp(x, axis=0, exclusive=False, reverse=False, name=None):
    """Returns tfuse.cumulative_logsumexp of the same arguments.

    Example:
      y = tfuse.cumlogsumexp(tf.zeros([2, 3]), axis=1)
    """
    return cumulative_logsumexp(x, axis, exclusive, reverse)


for _function in (cumulative_logsumexp, cumlogsumexp):
    _function.dtypes = FLOATS  # of those that the op takes, for docs/ops.md
