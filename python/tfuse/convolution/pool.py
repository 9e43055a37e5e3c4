"""Pooling over 1, 2 or 3 axes, channels last: the greatest or the average of each window, and Keras's layers by it."""

import math

import keras
import tensorflow as tf

from tfuse._core import _rows, _windows
from tfuse._core._explain import reason
from tfuse._core._layer import layer_of
from tfuse._core._op import FLOATS, FusedOp, composite, given, mark, may_record, real, sized, vjp
from tfuse.convolution.channels_first import by_last
from tfuse.reductions.reduce import reduce_mean

_NAMES = [kind + axis for kind in ("window_", "stride_") for axis in "dhw"]
_ATTRIBUTES = ["padding", *_NAMES, "before", "after"]
_PADDINGS = ("valid", "same")
MOST_ELEMENTS = 256  # positions of a window that a byte can tell apart
_SHIFTS = [8 * i for i in range(8)]  # of the channels' bytes in a word


# ---- plain TensorFlow ----


def _seen(x, out, padding, options, outside):
    """For each position of the window, in order, what of x it sees; `outside` where that is outside of x."""
    windows, strides = ([options[kind + axis] for axis in "dhw"] for kind in ("window_", "stride_"))
    by_numbers = padding in ("pairs", "zeros")
    paddings = _windows.numbers_of(options["before"], 3) if by_numbers else [padding] * 3
    missing = [_windows.pads(_rows.size(x, 1 + i), out[i], windows[i], strides[i], 1, paddings[i]) for i in range(3)]
    padded = tf.pad(x, [(0, 0), *missing, (0, 0)], constant_values=outside)
    ends = [tf.maximum((out[i] - 1) * strides[i] + 1, 0) for i in range(3)]
    return [padded[:, d:d + ends[0]:strides[0], h:h + ends[1]:strides[1], w:w + ends[2]:strides[2]]
            for d in range(windows[0]) for h in range(windows[1]) for w in range(windows[2])]


def _plain_max(x, size, keep, padding="valid", **options):
    seen = tf.stack(_seen(x, _rows.sizes(size, 0, 3), padding, options, 0 if padding == "zeros" else -float("inf")))
    inside = tf.stack(_seen(tf.ones_like(x), _rows.sizes(size, 0, 3), padding, options, int(padding == "zeros")))
    positions = tf.argmax(tf.where(inside > 0, seen, -float("inf")), 0)  # the first of equal values
    taps = tf.reshape(tf.range(seen.shape[0], dtype=tf.int64), [-1, 1, 1, 1, 1, 1])
    y = tf.reduce_sum(tf.where(taps == positions, seen, 0), 0)  # that of reduce_max would divide the gradient among equals
    if not given(keep):
        return y, tf.zeros([0], tf.int64)
    channels = _rows.size(positions, 4)
    words = -(-channels // 8)
    positions = tf.pad(positions, [(0, 0)] * 4 + [(0, words * 8 - channels)])
    positions = tf.reshape(positions, [*_rows.sizes(positions, 0, 4), words, 8])
    return y, tf.reduce_sum(tf.bitwise.left_shift(positions, tf.constant(_SHIFTS, tf.int64)), -1)


def _plain_max_grad(dy, positions, size, padding="valid", **options):
    bytes_ = tf.bitwise.bitwise_and(tf.bitwise.right_shift(positions[..., None], tf.constant(_SHIFTS, tf.int64)), 255)
    where = tf.reshape(bytes_, [*_rows.sizes(positions, 0, 4), _rows.size(positions, 4) * 8])[..., :_rows.size(dy, 4)]
    out, wide = _rows.sizes(dy, 1, 4), tf.cast(dy, real(dy.dtype))
    shares = [tf.where(where == tap, wide, 0) for tap in range(math.prod(options[name] for name in _NAMES[:3]))]
    return tf.cast(vjp(lambda x: _seen(x, out, padding, options, 0))(shares, _like_input(dy, size)), dy.dtype)


def _like_input(dy, size):
    return tf.zeros([_rows.size(dy, 0), *_rows.sizes(size, 0, 3), _rows.size(dy, 4)], real(dy.dtype))


def _averages(x, out, padding, options):
    counts = tf.add_n(_seen(tf.ones_like(x), out, padding, options, int(padding == "zeros")))
    return tf.add_n(_seen(x, out, padding, options, 0)) / counts


def _plain_average(x, size, padding="valid", **options):
    return tf.cast(_averages(tf.cast(x, real(x.dtype)), _rows.sizes(size, 0, 3), padding, options), x.dtype)


def _plain_average_grad(dy, size, padding="valid", **options):
    averages = lambda x: _averages(x, _rows.sizes(dy, 1, 4), padding, options)
    return tf.cast(vjp(averages)(tf.cast(dy, real(dy.dtype)), _like_input(dy, size)), dy.dtype)


# ---- the ops ----


def _size_of(x):
    return sized(*_rows.sizes(x, 1, 4))


def _max_gradient(node, dy, dplaces):
    x, size, _ = node.inputs
    positions, attributes = node.outputs[1], node.attrs(*_ATTRIBUTES)
    if not given(positions):
        positions = _max(x, size, mark(tf.bool), **attributes)[1]
    return [_max_grad(dy, positions, _size_of(x), **attributes), None, None]


# Axes by letters: n batch, c channels; x's sizes are d, h, w, the result's p, q, r. In gradients, size is x's.
_AXES = {"x": "ndhwc", "size": "pqrz", "keep": "kl"}
_GRAD_AXES = {"dy": "npqrc", "positions": "npqre", "size": "dhwz"}
_max_grad = FusedOp("MaxPoolGrad", _plain_max_grad, axes=_GRAD_AXES)
_average_grad = FusedOp("AveragePoolGrad", _plain_average_grad, axes=_GRAD_AXES)
_max = FusedOp("MaxPool", _plain_max, _max_gradient, axes=_AXES)
_average = FusedOp("AveragePool", _plain_average, axes=_AXES, gradient=lambda node, dy: [
    _average_grad(dy, _size_of(node.inputs[0]), **node.attrs(*_ATTRIBUTES)), None])


def _pooled(op, x, size, strides, padding, zeros, serve):
    """serve(x with three axes between batch and channels, size of the result, attributes) for x with one to three."""
    x = _rows.tensor(x)
    _max.check_dtype(x.dtype)
    axes = x.shape.rank and x.shape.rank - 2
    if axes is None:
        axes = next((len(v) for v in (size, strides) if isinstance(v, (list, tuple))), 2)
        x = tf.ensure_shape(x, [None] * (axes + 2))
    if axes not in (1, 2, 3):
        raise ValueError("%s: x must be [batch, 1 to 3 sizes, channels], got shape %s" % (op, x.shape))
    windows = _windows.per_axis(op, "size", size, axes)
    strides = windows if strides is None else _windows.per_axis(op, "strides", strides, axes)
    word = padding.lower() if isinstance(padding, str) else "zeros" if zeros else "pairs"
    padding = word if word in _PADDINGS else _windows.check_pairs(op, padding, axes, _PADDINGS)
    if zeros and word == "same":
        raise ValueError("%s: with zeros=True padding must be (before, after) for each of %d axes, got 'same'" % (op, axes))
    sizes = _rows.sizes(x)
    out = _windows.at_least_none(_windows.results(op, sizes[1:-1], windows, strides, [1] * axes,
                                                  [padding] * axes if word in _PADDINGS else padding))
    ones = [1] * (3 - axes)
    pairs = [*[(0, 0)] * len(ones), *([(0, 0)] * axes if word in _PADDINGS else padding)]
    y = serve(tf.reshape(x, [sizes[0], *ones, *sizes[1:]]) if ones else x, sized(*ones, *out),
              {"padding": word, **dict(zip(_NAMES, [*ones, *windows, *ones, *strides])),
               **dict(zip(["before", "after"], map(_windows.word, zip(*pairs))))})
    return tf.reshape(y, [sizes[0], *out, sizes[-1]]) if ones else y


@composite
def max_pool(x, size, strides=None, padding="valid", zeros=False):
    """Returns the greatest value that each window sees, channel by channel, as keras.ops.max_pool does.

    NaN is greater than all others. For the gradient the position of the greatest is kept, a byte for each value of the result;
    of equal values, the first gets it all.

    Args:
      x: float tensor [batch, 1 to 3 sizes, channels].
      size: of the window, an integer or one for each axis; at most 256 elements in all where there is a gradient.
      strides: the same; None: those of size.
      padding: "valid", none, and no results where the window is too long for x; "same", so that the result has the size of x
        divided by the stride, as TensorFlow pads; or (before, after) for each axis.
      zeros: what is around x. False: nothing, and every window must see a position of x. True: zeros, as a ZeroPadding layer
        puts them there; a window whose greatest is one of them gives no gradient.

    Example:
      y = tfuse.max_pool(tf.random.normal([8, 32, 32, 64]), 3, strides=2, padding="same")
    """
    def serve(x, out, attributes):
        keep = may_record() and math.prod(attributes[name] for name in _NAMES[:3]) <= MOST_ELEMENTS
        return _max(x, out, mark(tf.bool) if keep else None, **attributes)[0]

    return _pooled("max_pool", x, size, strides, padding, zeros, serve)


@composite
def average_pool(x, size, strides=None, padding="valid", zeros=False):
    """Returns the average of what each window sees, channel by channel, as keras.ops.average_pool does: what is outside of x
    does not count, unless zeros=True.

    Args:
      x, size, strides, padding: as in tfuse.max_pool; size may be any.
      zeros: whether positions outside of x count, as 0.

    Example:
      y = tfuse.average_pool(tf.random.normal([8, 32, 32, 64]), 2)
    """
    return _pooled("average_pool", x, size, strides, padding, zeros,
                   lambda x, out, attributes: _average(x, out, **attributes))


@composite
def global_average_pool(x, keepdims=False):
    """Returns the average over all axes but the first and the last, by tfuse.reduce_mean.

    Args:
      x: float tensor [batch, 1 to 3 sizes, channels], with a known number of axes.
      keepdims: whether these axes stay, with one position each.

    Example:
      y = tfuse.global_average_pool(tf.random.normal([8, 32, 32, 64]))       # [8, 64]
    """
    x = _rows.tensor(x)
    if x.shape.rank not in (3, 4, 5):
        raise ValueError("global_average_pool: x must be [batch, 1 to 3 sizes, channels], got shape %s" % x.shape)
    _max.check_dtype(x.dtype)
    return reduce_mean(x, list(range(1, x.shape.rank - 1)), keepdims=keepdims)


# ---- Keras ----


@reason
def why_not_pool(layer, x):
    """Why tfuse does not serve a pooling layer of Keras's, for this input."""
    yield not isinstance(x, tf.Tensor) and "a %s is not dense" % type(x).__name__
    yield x.dtype not in FLOATS and "tfuse takes float32, float16, bfloat16 and float64, got %s" % x.dtype.name
    yield x.shape.rank is None and "the number of dimensions is not known"


def pool(layer, x):
    """What a Keras pooling layer computes."""
    f = {"max": max_pool, "average": average_pool}[layer.pool_mode]
    return by_last(f.__name__, lambda x: f(x, layer.pool_size, layer.strides, layer.padding), layer.data_format, x)


def global_pool(layer, x, reduce=reduce_mean):
    """What a Keras layer of global pooling computes."""
    first = 1 if layer.data_format == "channels_last" else 2
    return reduce(x, list(range(first, first + x.shape.rank - 2)), keepdims=layer.keepdims)


_TEXT = "by tfuse.%s: same arguments and results."


def _pooling(kind, function):
    return (layer_of("%sPooling%dD" % (kind, axes), why_not_pool, lambda layer, inputs: pool(layer, inputs), _TEXT % function, "2")
            for axes in (1, 2, 3))


MaxPooling1D, MaxPooling2D, MaxPooling3D = _pooling("Max", "max_pool")
AveragePooling1D, AveragePooling2D, AveragePooling3D = _pooling("Average", "average_pool")


@keras.saving.register_keras_serializable("tfuse")
class GlobalAveragePooling1D(keras.layers.GlobalAveragePooling1D):
    """keras.layers.GlobalAveragePooling1D by tfuse.reduce_mean. With a mask, Keras's own call serves.

    Example:
      layer = tfuse.GlobalAveragePooling1D()
    """

    def call(self, inputs, mask=None):
        if mask is not None or why_not_pool(self, inputs):
            return super().call(inputs, mask=mask)
        return global_pool(self, inputs)


GlobalAveragePooling2D, GlobalAveragePooling3D = (
    layer_of("GlobalAveragePooling%dD" % axes, why_not_pool, lambda layer, inputs: global_pool(layer, inputs),
             "by tfuse.reduce_mean.", "") for axes in (2, 3))
