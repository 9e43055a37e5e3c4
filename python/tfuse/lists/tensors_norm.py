"""Norms, clipping and the finite check over lists of tensors: tfuse.global_norm, clip_by_global_norm, all_finite."""

import tensorflow as tf

from tfuse._core._list_op import ListOp
from tfuse._core._op import FLOATS, function, real, vjp


def _plain_norm(x):
    """Sums in float64: XLA's own, in float32, are some roundings off."""
    wide = [tf.cast(t, tf.float64) for t in x]
    squares = [tf.reduce_sum(tf.square(t)) for t in wide]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(t)) for t in x])
    return [*(tf.cast(tf.sqrt(s), real(x[0].dtype)) for s in (tf.add_n(squares), tf.stack(squares))), finite]


def _norm_gradient(arguments, outputs, dy):
    """x / norm; of a norm that is zero, zero."""
    (x,), (norm, norms, _) = arguments, outputs
    over = tf.zeros_like(norms)
    if dy[0] is not None:
        over += tf.math.divide_no_nan(dy[0], norm)
    if dy[1] is not None:
        over += tf.math.divide_no_nan(dy[1], norms)
    return [tf.cast(tf.cast(t, real(t.dtype)) * d, t.dtype) for t, d in zip(x, tf.unstack(over, len(x)))]


def _plain_clip(x, norm, clip):
    scale = clip * tf.minimum(1 / norm, 1 / clip) + (norm - norm)
    return [[tf.cast(tf.cast(t, scale.dtype) * scale, t.dtype) for t in x]]


def _clip_gradient(arguments, outputs, dy):
    x, norm, clip = arguments
    flat = lambda *inputs: _plain_clip(inputs[:-2], *inputs[-2:])[0]
    return vjp(flat)([tf.zeros_like(t) if d is None else d for t, d in zip(x, dy[0])], *x, norm, clip)


_norm = ListOp("TensorsNorm", _plain_norm, gradient=_norm_gradient, outputs=lambda x: [
    (real(x[0].dtype), []), (real(x[0].dtype), [len(x)]), (tf.bool, [])])
_clip = ListOp("ClipByTensorsNorm", _plain_clip, gradient=_clip_gradient, outputs=lambda x, *_: list(range(len(x))))


def _dense(name, tensors):
    """The values of all that are there: None is left out, IndexedSlices count by their values."""
    if isinstance(tensors, (tf.Tensor, tf.Variable)) or not isinstance(tensors, (list, tuple)):
        raise ValueError("%s: wants a list of tensors, got %s" % (name, type(tensors).__name__))
    return [tf.convert_to_tensor(t.values if isinstance(t, tf.IndexedSlices) else t) for t in tensors if t is not None]


def _by_dtype(name, tensors, skip_integers=False):
    groups = {}
    for i, t in enumerate(tensors):
        if t.dtype not in FLOATS:
            if skip_integers and (t.dtype.is_integer or t.dtype.is_bool):
                continue
            raise ValueError("%s: tensor %d must be float32, float16, bfloat16 or float64, got %s" % (name, i, t.dtype.name))
        groups.setdefault(t.dtype, []).append(i)
    return groups


def norms(tensors):
    """Of tensors of one dtype: the norm of all, the norm of each as a vector, and whether all values are finite."""
    return _norm(tensors)


@function
def global_norm(tensors, name=None):
    """The norm of a list of tensors: the square root of the sum of all their squares, in one pass over all of them.

    Args:
      tensors: a list of float32, float16, bfloat16 or float64 tensors of any shapes; None entries are left out, of
        `tf.IndexedSlices` the values count.
      name: as in `tf.linalg.global_norm`; unused.

    Returns:
      A scalar, float64 if any tensor is, else float32: float16 and bfloat16 are summed in float32. 0 for an empty list.
      Repeats bit for bit. Differentiable.

    Raises:
      ValueError: for a tensor of another dtype, which is named.

    Example:
      norm = tfuse.global_norm([tf.ones([3]), tf.ones([2, 5])])
    """
    tensors = _dense("global_norm", tensors)
    groups = _by_dtype("global_norm", tensors)
    each = [_norm([tensors[i] for i in members])[0] for members in groups.values()]
    if len(each) == 1:
        return each[0]
    wide = tf.float64 if any(n.dtype == tf.float64 for n in each) else tf.float32
    return norms([tf.cast(n, wide) for n in each])[0] if each else tf.zeros([], tf.float32)


@function
def clip_by_global_norm(t_list, clip_norm, use_norm=None, name=None):
    """Scales a list of tensors so that its global norm is at most `clip_norm`; arguments as `tf.clip_by_global_norm`.

    Args:
      t_list: a list of float tensors, None, or `tf.IndexedSlices`.
      clip_norm: the largest norm that stays as it is; a number or a scalar tensor.
      use_norm: the global norm, if it is known already.
      name: unused.

    Returns:
      The clipped list, and the global norm before. Where the norm is not finite, all tensors are NaN, as in TensorFlow.

    Raises:
      ValueError: for a tensor that is not of a float dtype, or an argument that is no list.

    Example:
      clipped, norm = tfuse.clip_by_global_norm([tf.ones([3]), tf.ones([2, 5])], 1.0)
    """
    tensors = _dense("clip_by_global_norm", t_list)
    groups = _by_dtype("clip_by_global_norm", tensors)
    norm = global_norm(tensors) if use_norm is None else tf.convert_to_tensor(use_norm)
    clipped = [None] * len(tensors)
    for dtype, members in groups.items():
        scalars = [tf.cast(value, real(dtype)) for value in (norm, clip_norm)]
        for i, t in zip(members, _clip([tensors[i] for i in members], *scalars)[0]):
            t.set_shape(tensors[i].shape)
            clipped[i] = t
    clipped = iter(clipped)
    return [t if t is None else tf.IndexedSlices(next(clipped), t.indices, t.dense_shape)
            if isinstance(t, tf.IndexedSlices) else next(clipped) for t in t_list], norm


@function
def all_finite(tensors):
    """Whether no value of a list of tensors is NaN or infinite, in one pass over all of them.

    Args:
      tensors: a list of tensors; None entries and integers are left out.

    Returns:
      A bool scalar; True for an empty list.

    Raises:
      ValueError: for a tensor of a dtype that is not served, such as complex64.

    Example:
      fine = tfuse.all_finite([tf.ones([3]), tf.constant([float("inf")])])  # False
    """
    tensors = _dense("all_finite", tensors)
    groups = _by_dtype("all_finite", tensors, skip_integers=True)
    each = [_norm([tensors[i] for i in members])[2] for members in groups.values()]
    return each[0] if len(each) == 1 else tf.reduce_all(each) if each else tf.constant(True)
