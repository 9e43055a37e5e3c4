"""Resizing of images, lines and volumes, channels last: one gather both ways, with Keras's layers of upsampling by it."""

import numbers

import numpy as np
import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._op import FusedOp, composite, real, sized, vjp

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos3", "lanczos5")
CONVENTIONS = ("half_pixel", "align_corners", "asymmetric")
MOST = 1 << 24  # positions of an axis
_ATTRIBUTES = ["interpolation", "convention", "antialias"]


# ---- plain TensorFlow: a product with the weights of each axis, [out, in] ----


def _cubic(x, a):
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return tf.where(x < 1, near, tf.where(x < 2, far, 0))


def _lanczos(x, radius):
    pi, safe = 3.14159265358979323846, tf.maximum(x, 1e-3)
    y = radius * tf.sin(pi * safe) * tf.sin(pi * safe / radius) / (pi * pi * safe * safe)
    return tf.where(x > radius, 0, tf.where(x <= 1e-3, 1, y))


def _scaled(weights):
    return weights / tf.reduce_sum(weights, 1, keepdims=True)


def _weights(n, size, dtype, interpolation, convention, antialias):
    """Positions are computed in float32, as TensorFlow's own kernels do: they decide what is read."""
    count = lambda k: tf.cast(k, tf.float32)
    n, size = tf.convert_to_tensor(n), tf.convert_to_tensor(size)
    half, o, i = convention == "half_pixel", count(tf.range(size)), tf.range(n)
    scale = count(n) / count(size)
    if convention == "align_corners":
        scale = tf.where(size > 1, count(n - 1) / count(tf.maximum(size, 2) - 1), scale)
    inside = lambda at: tf.clip_by_value(tf.cast(at, tf.int32), 0, n - 1)
    at = lambda place: tf.one_hot(inside(place), n, dtype=dtype)
    wide = lambda t: tf.cast(t, dtype)[:, None]
    spans = antialias and interpolation != "nearest" or interpolation.startswith("lanczos")
    if spans:
        scale = tf.cast(1 / tf.cast(count(size) / count(n), tf.float64), tf.float32)
    s = (o + 0.5 if half else o) * scale
    p = s - 0.5 if half else s
    if interpolation == "nearest":
        return at(tf.floor(s + 0.5) if convention == "align_corners" else tf.floor(s))
    if spans:
        radius = {"bilinear": 1, "bicubic": 2, "lanczos3": 3, "lanczos5": 5}[interpolation]
        widened = tf.maximum(scale, 1.0) if antialias else tf.constant(1.0)
        first, last = inside(tf.math.ceil(s - radius * widened - 0.5)), inside(tf.floor(s + radius * widened - 0.5))
        x = tf.abs(tf.cast(i, dtype) + 0.5 - wide(s)) * tf.cast(1 / widened, dtype)
        raw = (tf.maximum(1 - x, 0) if interpolation == "bilinear" else _cubic(x, -0.5) if interpolation == "bicubic" else
               _lanczos(x, radius))
        weights = _scaled(tf.where((i >= first[:, None]) & (i <= last[:, None]), raw, 0))
        return tf.where(n == size, tf.eye(size, n, dtype=dtype), weights)
    lerp = p - tf.floor(p)
    if interpolation == "bilinear":
        return at(tf.floor(p)) * (1 - wide(lerp)) + at(tf.math.ceil(p)) * wide(lerp)
    lerp = wide(tf.round(lerp * 1024) / 1024)  # TensorFlow's kernel has a table of so many places
    floor = tf.cast(tf.floor(p), tf.int32)
    if half:
        outside = lambda k: wide((floor + k == inside(floor + k)))
        return _scaled(sum(outside(k) * _cubic(tf.abs(k - lerp), -0.5) * at(floor + k) for k in range(-1, 3)))
    return sum(_cubic(tf.abs(k - lerp), -0.75) * at(floor + k) for k in range(-1, 3))


def _plain(x, size, interpolation="bilinear", convention="half_pixel", antialias=False):
    y = tf.cast(x, real(x.dtype))
    for axis, equation in (1, "bdhwc,od->bohwc"), (2, "bdhwc,oh->bdowc"), (3, "bdhwc,ow->bdhoc"):
        n, out = _rows.size(x, axis), _rows.size(size, axis - 1)
        if not (isinstance(n, int) and n == out):
            y = tf.einsum(equation, y, _weights(n, out, y.dtype, interpolation, convention, antialias))
    return tf.cast(y, x.dtype)


def _plain_grad(dy, size, **options):
    x = tf.zeros([_rows.size(dy, 0), *_rows.sizes(size, 0, 3), _rows.size(dy, 4)], real(dy.dtype))
    own = sized(*_rows.sizes(dy, 1, 4))
    return tf.cast(vjp(lambda x: _plain(x, own, **options))(tf.cast(dy, x.dtype), x), dy.dtype)


# ---- the ops ----


def _back(op):
    """The transposed map of a node, which has x's size."""
    return lambda node, dy: [op()(dy, sized(*_rows.sizes(node.inputs[0], 1, 4)), **node.attrs(*_ATTRIBUTES)), None]


# Axes by letters: n batch, c channels; x's sizes are d, h, w, the result's p, q, r.
_grad = FusedOp("ResizeGrad", _plain_grad, _back(lambda: _resize), axes={"dy": "npqrc", "size": "dhwz"})
_resize = FusedOp("Resize", _plain, _back(lambda: _grad), axes={"x": "ndhwc", "size": "pqrz"})


@composite
def resize(images, size, interpolation="bilinear", antialias=False, convention="half_pixel", name=None):
    """Returns images, lines or volumes of another size, as tf.image.resize and keras.ops.image.resize do.

    Positions are where stock TensorFlow has them, in float32. Sums are computed in float32, or in float64 for float64, and the
    result has the dtype of images. The gradient is a gather as well, so it is the same bits every time.

    Args:
      images: float tensor [batch, 1 to 3 sizes, channels], or without the batch; sizes of at most 2^24.
      size: of the result, an integer for each of these axes; they may be tensors. One integer alone is for all of them, and
        images then have a batch.
      interpolation: "nearest", "bilinear", "bicubic", "lanczos3" or "lanczos5".
      antialias: where sizes become smaller, whether the kernel grows so that it sees all of images; not of "nearest".
      convention: which position o of the result is in images, of n positions that become m. "half_pixel": (o + 1/2) n / m -
        1/2, as in Keras. "align_corners": o (n - 1) / (m - 1). "asymmetric": o n / m. The latter two are those of
        tf.compat.v1.image.resize, without antialias and for interpolation up to "bicubic".
      name: of the operation in a graph.

    Example:
      y = tfuse.resize(tf.random.normal([8, 32, 32, 64]), [64, 64])
    """
    x = _rows.tensor(images)
    _resize.check_dtype(x.dtype)
    for argument, value, allowed in ("interpolation", interpolation, INTERPOLATIONS), ("convention", convention, CONVENTIONS):
        if value not in allowed:
            raise ValueError("resize: %s must be one of %s, got %r" % (argument, ", ".join(allowed), value))
    if convention != "half_pixel" and (antialias or interpolation.startswith("lanczos")):
        raise ValueError("resize: convention must be half_pixel with antialias=True and with interpolation lanczos3 and "
                         "lanczos5, got %s" % convention)
    size = _listed(size, (x.shape.rank or 4) - 2)
    axes = len(size)
    x = tf.ensure_shape(x, [None] * (axes + 2)) if x.shape.rank is None else x
    batched = x.shape.rank == axes + 2
    if axes not in (1, 2, 3) or x.shape.rank not in (axes + 1, axes + 2):
        raise ValueError("resize: images must be [batch, 1 to 3 sizes, channels], or without the batch, and size must have "
                         "an integer for each of them, got shape %s and size %s" % (x.shape, size))
    if any(isinstance(n, int) and not 1 <= n <= MOST for n in size):
        raise ValueError("resize: size must be 1 to 2^24 along each axis, got %s" % size)
    with tf.name_scope(name or "resize"):
        sizes, ones = _rows.sizes(x), [1] * (3 - axes)
        batch = sizes[:1] if batched else [1]
        y = _resize(tf.reshape(x, [*batch, *ones, *sizes[-axes - 1:]]) if ones or not batched else x, sized(*ones, *size),
                    interpolation=interpolation, convention=convention, antialias=bool(antialias))
        return tf.reshape(y, [*sizes[:-axes - 1], *size, sizes[-1]]) if ones or not batched else y


def _listed(size, axes):
    """A size for each axis: integers, and tensors of int32 where they are not known yet."""
    size = size.as_list() if isinstance(size, tf.TensorShape) else size
    if isinstance(size, (tf.Tensor, tf.Variable)):
        known = tf.get_static_value(size)
        vector = size.shape.rank == 1 and size.shape[0] is not None
        size = known.tolist() if known is not None else tf.unstack(size if vector else tf.broadcast_to(size, [axes]))
    size = np.ravel(size).tolist() if isinstance(size, (np.ndarray, np.generic)) and np.ndim(size) else size
    size = [size] * axes if not isinstance(size, (list, tuple)) else size
    return [_integer(n) for n in size]


def _integer(n):
    if isinstance(n, tf.Tensor) and n.dtype.is_integer:
        known = tf.get_static_value(n)
        return tf.cast(tf.clip_by_value(n, -1, MOST + 1), tf.int32) if known is None else int(known)
    if not isinstance(n, numbers.Integral):
        raise ValueError("resize: size must be integers, got %r" % (n,))
    return int(n)


def upsample(x, factors, interpolation="nearest"):
    """x [batch, 1 to 3 sizes, channels] with sizes multiplied by whole factors, as Keras's layers of upsampling do."""
    return resize(x, [n * factor for n, factor in zip(_rows.sizes(x)[1:-1], factors)], interpolation)
