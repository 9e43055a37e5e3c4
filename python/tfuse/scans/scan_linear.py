"""Linear recurrences, h_i = a_i h_{i-1} + b_i, along any axis: what state-space models, minGRU and RG-LRU are made of."""

import numbers

import tensorflow as tf

from tfuse._core._op import FusedOp, composite, given, has_dtype, real
from tfuse.scans.scan import _before, _steps


def _plain(a, b, initial, axis=0, reverse=False):
    """By doubling: what 2 * s positions at a time take a state to."""
    dtype = a.dtype
    p, s = (tf.reverse(v, [axis]) if reverse else v for v in (tf.cast(v, real(dtype)) for v in (a, b)))
    for n in _steps(a, axis):
        p, s = p * _before(p, n, axis, 1), p * _before(s, n, axis, 0) + s
    y = s + p * tf.cast(initial, real(dtype)) if given(initial) else s
    return tf.cast(tf.reverse(y, [axis]) if reverse else y, dtype)


def _plain_grad(dy, a, y, initial, axis=0, reverse=False):
    """The same the other way: s_i = a_i g_i, and g_i = dy_i + s_{i+1}; with the conjugates of complex factors."""
    dtype = dy.dtype
    dy, a, y, initial = (tf.cast(t, real(dtype)) for t in (dy, a, y, initial))
    a, y, initial = map(tf.math.conj, (a, y, initial))
    dy, a, y = (tf.reverse(t, [axis]) if reverse else t for t in (dy, a, y))
    s = _plain(a, a * dy, tf.zeros([0], a.dtype), axis, True)
    end = tf.zeros_like(tf.reduce_sum(a, axis, keepdims=True))
    first = initial if given(initial) else end
    both = [tf.concat([s, end], axis), tf.concat([first, y], axis)]  # with what lies beyond an end
    rest = lambda t: tf.gather(t, tf.range(1, tf.shape(t)[axis]), axis=axis)
    but_last = lambda t: tf.gather(t, tf.range(tf.shape(t)[axis] - 1), axis=axis)
    g = dy + rest(both[0])
    da, db = (tf.cast(tf.reverse(t, [axis]) if reverse else t, dtype) for t in (g * but_last(both[1]), g))
    dinitial = tf.gather(both[0], [0], axis=axis)
    return da, db, tf.cast(dinitial, dtype) if given(initial) else tf.zeros([0], dtype)


def _gradient(node, dy):
    (a, _, initial), y = node.inputs, node.outputs[0]
    da, db, dinitial = _grad(dy, a, y, initial, **node.attrs("axis", "reverse"))
    return [da, db, dinitial if given(initial) else None]


_grad = FusedOp("ScanLinearGrad", _plain_grad)
_scan = FusedOp("ScanLinear", _plain, _gradient)


@composite
def scan_linear(a, b, initial=None, axis=1, reverse=False):
    """Returns h_i = a_i h_{i-1} + b_i along an axis: forward one pass over memory, and one backward.

    Args:
      a: tensor of floats, or of complex numbers.
      b: tensor of a's shape.
      initial: h before the first step, of a's shape without the axis; None for zeros.
      axis: a number.
      reverse: whether the last position comes first.

    Returns:
      All h, of a's shape. Products and sums are in float32; those of float64 and complex128 are in float64.

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or no such axis.

    Example:
      a, b = tf.random.uniform([2, 100, 16]), tf.random.normal([2, 100, 16])
      h = tfuse.scan_linear(a, b)
    """
    a = tf.convert_to_tensor(a)
    if not isinstance(axis, numbers.Integral):
        raise ValueError("scan_linear: axis must be a number, got %r" % (axis,))
    if has_dtype(b) and not a.shape.is_compatible_with(b.shape):
        raise ValueError("scan_linear: b must have the shape of a, %s, got %s; tf.broadcast_to makes one as large as the other" % (
            a.shape.as_list(), tf.TensorShape(b.shape).as_list()))
    if a.shape.rank is not None and not -a.shape.rank <= axis < a.shape.rank:
        raise ValueError("scan_linear: axis must be one of a %s, got %d" % (a.shape.as_list(), axis))
    if initial is not None:
        initial = _scan.tensors(a, None, initial)[2]
        wanted = None if a.shape.rank is None else a.shape[:axis % a.shape.rank].concatenate(a.shape[axis % a.shape.rank + 1:])
        if wanted is not None and not initial.shape.is_compatible_with(wanted):
            raise ValueError("scan_linear: initial must have the shape of a without the axis, %s, got %s" % (
                wanted.as_list(), initial.shape))
        initial = tf.expand_dims(initial, axis)
    return _scan(a, b, initial, axis=int(axis), reverse=bool(reverse))
