"""Depthwise convolution with bias and activation in one op, and separable convolution."""

import tensorflow as tf
from tensorflow.python.eager import context, record

from tfuse._core import _made, _rows, _windows
from tfuse._core._op import FusedOp, composite, given, mark, may_record, real, sized, vjp
from tfuse.elementwise.scale_bias_act import PLAIN, SLOPE_FROM_RESULT, activation_name, plain_behind
from tfuse.products import linear as products

# ---- plain TensorFlow ----


def _convolved(x, kernel, size, padding="valid", stride_h=1, stride_w=1, dilation_h=1, dilation_w=1):
    """The sums alone, in the arithmetic type: x, shifted, times each position of the kernel."""
    strides, dilations = (stride_h, stride_w), (dilation_h, dilation_w)
    x, kernel = (tf.cast(t, real(t.dtype)) for t in (x, kernel))
    windows = kernel.shape[:2].as_list()
    if None in windows:
        raise ValueError("depthwise_conv: the height and width of kernel must be known here, got shape %s" % kernel.shape)
    missing = [_windows.pads(_rows.size(x, 1 + axis), size[axis], windows[axis], strides[axis], dilations[axis], padding)
               for axis in range(2)]
    x, total = tf.expand_dims(tf.pad(x, [(0, 0), *missing, (0, 0)]), -1), 0
    ends = [tf.maximum((size[axis] - 1) * strides[axis] + 1, 0) for axis in range(2)]
    for r, row in enumerate(tf.unstack(kernel, windows[0])):
        for s, one in enumerate(tf.unstack(row, windows[1])):
            top, left = r * dilations[0], s * dilations[1]
            total += x[:, top:top + ends[0]:strides[0], left:left + ends[1]:strides[1]] * one
    return tf.reshape(total, [_rows.size(x, 0), *size, _rows.product(_rows.sizes(kernel, 2))])


def _plain(x, kernel, bias, size, keep, activation="linear", **geometry):
    pre = _convolved(x, kernel, _rows.sizes(size, 0, 2), **geometry)
    pre = pre + tf.cast(bias, pre.dtype) if given(bias) else pre
    y = tf.cast(PLAIN[activation](pre), x.dtype)
    return y, tf.cast(pre, x.dtype) if given(keep) else tf.zeros([0], x.dtype)


def _plain_grad(dy, x, kernel, bias, pre, want_dx, want_dkernel, activation="linear", **geometry):
    dpre, nothing = plain_behind(dy, pre, activation), tf.zeros([0], dy.dtype)
    wide = tf.cast(dpre, real(dpre.dtype))
    dx, dkernel = vjp(lambda x, kernel: _convolved(x, kernel, _rows.sizes(dy, 1, 3), **geometry))(wide, x, kernel)
    dbias = tf.cast(tf.reduce_sum(wide, [0, 1, 2]), dy.dtype)
    return dx if given(want_dx) else nothing, dkernel if given(want_dkernel) else nothing, dbias if given(bias) else nothing


# ---- the ops ----

_GEOMETRY = ("padding", "stride_h", "stride_w", "dilation_h", "dilation_w")


def _gradient(node, dy, dpre):
    """dpre is that of what was kept, which only the gradient of this gradient asks for; as in tfuse.linear."""
    x, kernel, bias, size, _ = node.inputs
    y, pre = node.outputs
    activation, geometry = node.attr("activation"), node.attrs(*_GEOMETRY)
    eager = context.executing_eagerly()
    if activation == "linear":
        pre = None
    elif activation in SLOPE_FROM_RESULT:
        pre = y
    elif not given(pre) or eager and record.could_possibly_record():
        pre = _conv(x, kernel, bias, size, None, **geometry)[0]
    wanted = [node.wanted(i) for i in range(3)]
    yes = lambda is_so: mark(tf.bool) if is_so else None
    needed = x, kernel, bias if wanted[2] else None
    gradients = _grad(dy, *needed, pre, yes(wanted[0]), yes(wanted[1]), activation=activation, **geometry)
    if dpre is not None and not eager:
        more = _grad(dpre, *needed, None, yes(wanted[0]), yes(wanted[1]), **geometry)
        gradients = [a + b for a, b in zip(gradients, more)]
    return [*(g if w else None for g, w in zip(gradients, wanted)), None, None]


# Axes by letters: n batch; h, w and p, q sizes of the input and the result; r, s the window; c, m channels; o those of the result.
_AXES = {**dict.fromkeys(["dy", "pre"], "npqo"), "x": "nhwc", "kernel": "rscm", "bias": "o", "size": "pqz", "keep": "kl",
         **dict.fromkeys(["want_dx", "want_dkernel"], "kl")}
_grad = FusedOp("DepthwiseConvGrad", _plain_grad, axes=_AXES)
_conv = FusedOp("DepthwiseConv", _plain, _gradient, axes=_AXES)


def _spatial(op, x, kernel, *options):
    """The number of axes that windows move along. Where no rank is known, the options say it, or else it is 2."""
    ranks = [x.shape.rank and x.shape.rank - 2, kernel.shape.rank and kernel.shape.rank - 2,
             *(len(value) for value in options if isinstance(value, (list, tuple)))]
    axes = next((rank for rank in ranks if rank is not None), 2)
    if axes not in (1, 2) or any(rank not in (None, axes) for rank in ranks[:2]):
        raise ValueError(
            "%s: x must be [batch, height, width, channels] and kernel [height, width, channels, multiplier], or both without "
            "their height, got shapes %s and %s" % (op, x.shape, kernel.shape))
    return axes


def fused(x, kernel, bias=None, activation=None, strides=1, padding="valid", dilation=1, training=None, op="depthwise_conv"):
    """tfuse.depthwise_conv, for layers: what the activation is taken of is kept for gradients, eagerly where a tape records,
    in a graph unless training is False. Where it was not kept, the gradient computes it again."""
    activation, keep = activation_name(activation), None
    given_ = x, kernel = _rows.tensor(x), _rows.tensor(kernel)
    windows, axes = (strides, padding, dilation), _spatial(op, x, kernel, strides, dilation)
    padding = _windows.check_padding(op, padding, ("valid", "same", "causal")[:3 if axes == 1 else 2])
    strides, dilation = (_windows.per_axis(op, name, value, axes) for name, value in (("strides", strides), ("dilation", dilation)))
    x, kernel = (t if t.shape.rank is not None else tf.ensure_shape(t, [None] * (axes + 2)) for t in (x, kernel))
    if axes == 1:  # an image of one line
        x, kernel, strides, dilation = tf.expand_dims(x, 1), tf.expand_dims(kernel, 0), [1, *strides], [1, *dilation]
    _conv.check_dtype(x.dtype)
    sizes = ([_rows.size(t, axis + first) for axis in range(2)] for t, first in ((x, 1), (kernel, 0)))
    size = _windows.at_least_none(_windows.results(op, *sizes, strides, dilation, [padding] * 2))
    if activation not in ("linear", *SLOPE_FROM_RESULT) and may_record(training):
        keep = mark(x.dtype)
    y = _conv(x, kernel, bias, sized(*size), keep, activation=activation, padding=padding, stride_h=strides[0],
              stride_w=strides[1], dilation_h=dilation[0], dilation_w=dilation[1])[0]
    y = tf.squeeze(y, 1) if axes == 1 else y
    if activation == "linear":
        again = lambda name, _: fused(*given_, bias, name, *windows, training, op)
        _made.keep(y, _made.Unfinished(given_[0], "DepthwiseConv", "a depthwise convolution", False, again))
    return y


@composite
def depthwise_conv(x, kernel, bias=None, activation=None, strides=1, padding="valid", dilation=1):
    """Returns act(bias + x convolved with kernel), each channel by filters of its own, as keras.ops.depthwise_conv does.

    Products are summed in float32, in float64 for float64. Windows of 3 * 3, 5 * 5 and 7 * 7 with strides of 1 or 2, without
    dilation and with a multiplier of 1, are computed by kernels of their own; all others by one that is slower.

    Args:
      x: float tensor [batch, height, width, channels], or [batch, width, channels].
      kernel: [height, width, channels, multiplier], or without its height; of x's dtype.
      bias: [channels * multiplier], or None.
      activation: as in tfuse.scale_bias_act.
      strides, dilation: an integer, or one for each axis.
      padding: "valid", "same", or without a height "causal", which looks back alone.

    Returns:
      [batch, height, width, channels * multiplier], where channel c * multiplier + m is made from channel c of x.

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together.

    Example:
      x, kernel, bias = tf.random.normal([8, 32, 32, 64]), tf.random.normal([3, 3, 64, 1]), tf.zeros([64])
      y = tfuse.depthwise_conv(x, kernel, bias, "relu", strides=2, padding="same")
    """
    return fused(x, kernel, bias, activation, strides, padding, dilation)


@composite
def separable_conv(x, depthwise_kernel, pointwise_kernel, bias=None, activation=None, strides=1, padding="valid", dilation=1):
    """Returns act(bias + the channels of a depthwise convolution, mixed at each position), as keras.ops.separable_conv does.

    Args:
      x, depthwise_kernel, strides, padding, dilation: as in tfuse.depthwise_conv.
      pointwise_kernel: [1, 1, channels * multiplier, outputs], or without its height.
      bias: [outputs], or None.
      activation: as in tfuse.scale_bias_act.

    Example:
      x, depthwise = tf.random.normal([8, 32, 32, 16]), tf.random.normal([3, 3, 16, 1])
      y = tfuse.separable_conv(x, depthwise, tf.random.normal([1, 1, 16, 64]), tf.zeros([64]), "relu", padding="same")
    """
    return separable(x, depthwise_kernel, pointwise_kernel, bias, activation, strides, padding, dilation)


def separable(x, depthwise_kernel, pointwise_kernel, bias=None, activation=None, strides=1, padding="valid", dilation=1,
              training=None):
    pointwise_kernel = _rows.tensor(pointwise_kernel)
    known = pointwise_kernel.shape[:-2]
    if known.rank is not None and not known.is_compatible_with([1] * known.rank):
        raise ValueError("separable_conv: pointwise_kernel must be [1, 1, channels, outputs], got shape %s" % pointwise_kernel.shape)
    y = fused(x, depthwise_kernel, None, None, strides, padding, dilation, training, op="separable_conv")
    matrix = tf.reshape(pointwise_kernel, tf.shape(pointwise_kernel)[-2:] if known.rank is None else
                        [_rows.size(pointwise_kernel, axis) for axis in (-2, -1)])
    return products.apply(y, matrix, bias, activation, None, training)
