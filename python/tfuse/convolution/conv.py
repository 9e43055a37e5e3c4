"""act(x convolved with kernel + bias + residual) for one to three spatial axes, transposed convolution, and their gradients."""

import functools
import numbers

import tensorflow as tf

from tfuse._core import _explain, _library, _made, _rows, _windows
from tfuse._core._op import FusedOp, composite, given, registry, sized, vjp
from tfuse.convolution.channels_first import by_last
from tfuse.convolution.depthwise_conv import fused as depthwise
from tfuse.elementwise.scale_bias_act import activation_name, scale_bias_act
from tfuse.reductions.reduce import reduce_sum

_MOST_AXES = 3  # TFU_CONV_AXES of the library
_FORMATS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_PADDINGS = ("valid", "same", "causal")
_tf32 = tf.config.experimental.tensor_float_32_execution_enabled


# ---- numbers per spatial axis, as attributes ----


def _each(op, name, value, axes, least):
    """A number for every axis. Where the axes are not known, one for all of them."""
    values = (value,) * (axes or 1) if isinstance(value, numbers.Integral) else tuple(value)
    if len(values) != (axes or 1) or not all(
            isinstance(v, numbers.Integral) and least <= v < 1 << _windows.BITS for v in values):
        raise ValueError("%s: %s must be an integer from %d to %d, or one for each of %s spatial axes, got %r" % (
            op, name, least, (1 << _windows.BITS) - 1, axes or "the", value))
    return tuple(map(int, values))


# ---- sizes ----


def _spatial(x, first, axes):
    """The sizes of x's spatial axes, the first of which is `first`; where their number is not known, all of them as one
    tensor."""
    if axes:
        return [_rows.size(x, first + i) for i in range(axes)]
    return [tf.shape(x)[first:first - 2]]


def _sized(sizes):
    """An input without elements that says sizes: [*sizes, 0]."""
    if all(isinstance(size, numbers.Integral) for size in sizes):
        return sized(*sizes)
    whole = tf.concat(sizes, 0) if any(getattr(size, "shape", None) and size.shape.rank for size in sizes) else tf.stack(sizes)
    return tf.zeros(tf.concat([whole, [0]], 0), tf.bool)


def _shape_of(x, first=0):
    """All sizes of x from an axis on, as _sized."""
    if x.shape.rank is None:
        return _sized([tf.shape(x)[first:]])
    return _sized(_rows.sizes(x, first))


def _most(a, b):
    return max(a, b) if isinstance(a, int) else tf.maximum(a, b)


def _results(op, n, k, window):
    """Of a convolution, as _sized. A size below 0 that is known when it runs alone is refused by TensorFlow, as no tensor has it."""
    return _sized(_windows.results(op, n, k, window.strides, window.dilation, window.pairs))


def _spread_size(n, k, stride, dilation, padding, more):
    """Along an axis, of a transposed convolution, by Keras's rules; more is what comes after it, or None."""
    reach = (k - 1) * dilation + 1
    if padding == "same":
        return n * stride if more is None else _most((n - 1) * stride + reach % 2 + more, 0)
    return _most((n - 1) * stride + reach + (_most(stride - reach, 0) if more is None else more), 0)


# ---- plain TensorFlow ----


def _padded(x, kernel, sizes, padding, strides, dilation, before):
    """x with the zeros around it that a result of these sizes reads."""
    pairs = [_windows.pads(_rows.size(x, 1 + i), _rows.size(sizes, i), _rows.size(kernel, i), s, d, b if padding == "before" else padding)
             for i, (s, d, b) in enumerate(zip(strides, dilation, before))]
    return tf.pad(x, [(0, 0), *pairs, (0, 0)]) if any(isinstance(p, tf.Tensor) or p for pair in pairs for p in pair) else x


def _convolve(x, kernel, strides, dilation):
    """By TensorFlow's own op, without padding. It takes no strides where there is dilation, but what they leave out can be
    left out after it."""
    axes = len(strides)
    both = max(strides) > 1 and max(dilation) > 1
    if kernel.shape[-2] == 0:  # sums of nothing, which TensorFlow refuses on a GPU: of a channel of zeros
        x = tf.pad(x, [[0, 0]] * (axes + 1) + [[0, 1]])
        kernel = tf.pad(kernel, [[0, 0]] * axes + [[0, 1], [0, 0]])
    y = tf.nn.convolution(x, kernel, 1 if both else strides, "VALID", data_format=_FORMATS[axes], dilations=dilation)
    return y[(slice(None), *(slice(None, None, s) for s in strides))] if both else y


def _plain_linear(x, kernel, sizes, padding, strides, dilation, before):
    axes, kernel = x.shape.rank - 2, tf.cast(kernel, x.dtype)
    strides, dilation, before = (_windows.numbers_of(word, axes) for word in (strides, dilation, before))
    y = _convolve(_padded(x, kernel, sizes, padding, strides, dilation, before), kernel, strides, dilation)
    return y[(slice(None), *(slice(_rows.size(sizes, i)) for i in range(axes)))]


def _plain(x, kernel, bias, residual, sizes, tf32=False, relu=False, **options):
    y = _plain_linear(x, kernel, sizes, **options)
    y = y + residual if given(residual) else y
    y = y + bias if given(bias) else y
    return tf.nn.relu(y) if relu else y


def _plain_data(y, kernel, sizes, tf32=False, **options):
    """The gradient with respect to x, wherever that is."""
    axes = y.shape.rank - 2
    x = tf.zeros([_rows.size(y, 0), *_rows.sizes(sizes, 0, axes + 1)], y.dtype)
    return vjp(lambda x: _plain_linear(x, kernel, _of_image(y), **options))(y, x)


def _plain_filter(x, y, sizes, tf32=False, K=None, **options):
    kernel = tf.zeros(_rows.sizes(sizes, 0, x.shape.rank), x.dtype)
    return tf.cast(vjp(lambda kernel: _plain_linear(x, kernel, _of_image(y), **options))(y, kernel), K or x.dtype)


# ---- the ops ----

_OPTIONS = ("tf32", "padding", "strides", "dilation", "before")


def _gradient(node, dy):
    x, kernel, bias, residual, _ = node.inputs
    g, dbias, wants_bias = dy, bias, given(bias) and node.wanted(2)
    if node.attr("relu"):  # its slope is that of the result
        zeros = tf.zeros_like(bias) if wants_bias else None
        g, _, sums = registry["ScaleBiasActGrad"](dy, node.outputs[0], None, zeros, activation="relu")
        dbias = sums if wants_bias else bias
    elif wants_bias:
        dbias = reduce_sum(tf.reshape(dy, [-1, _rows.size(kernel, -1)]), 0)
    dx = _data(g, kernel, _shape_of(x, 1), **node.attrs(*_OPTIONS)) if node.wanted(0) else None
    dkernel = _filter_like(kernel, x, g, node) if node.wanted(1) else None
    return dx, dkernel, dbias, g if given(residual) else None, None


def _filter_like(kernel, x, y, node):
    """The kernel's gradient, in its dtype."""
    return _filter(x, y, _shape_of(kernel), K=kernel.dtype, **node.attrs(*_OPTIONS))


def _of_image(y):
    """The spatial sizes of y, as _sized."""
    return _sized(_spatial(y, 1, y.shape.rank and y.shape.rank - 2))


def _data_gradient(node, dx):
    y, kernel, _ = node.inputs
    dy = _conv(dx, kernel, None, None, _of_image(y), **node.attrs(*_OPTIONS)) if node.wanted(0) else None
    return dy, _filter_like(kernel, dx, y, node) if node.wanted(1) else None, None


def _filter_gradient(node, dkernel):
    x, y, _ = node.inputs
    dx = _data(y, dkernel, _shape_of(x, 1), **node.attrs(*_OPTIONS)) if node.wanted(0) else None
    return dx, _conv(x, dkernel, None, None, _of_image(y), **node.attrs(*_OPTIONS)) if node.wanted(1) else None, None


def _axes(inputs):
    """By letters: n batch; abc, uvw and rst the spatial axes of x, y and kernel; i channels, those of a group j; o outputs."""
    count = inputs[0].shape.rank - 2
    x, y, kernel = "n%si" % "abc"[:count], "n%so" % "uvw"[:count], "rst"[:count] + "jo"
    sizes = {2: y[1:-1], 1: x[1:], 0: kernel}[2 + count + 1 - inputs[-1].shape.rank] + "z"
    return {"x": x, "y": y, "kernel": kernel, "bias": "o", "residual": y, "sizes": sizes}


_data = FusedOp("ConvData", _plain_data, _data_gradient, axes=_axes)
_filter = FusedOp("ConvFilter", _plain_filter, _filter_gradient, axes=_axes)
_conv = FusedOp("Conv", _plain, _gradient, axes=_axes)


# ---- what is called ----


class Window:
    """What strides, padding and dilation say, for tensors of a number of spatial axes, or 0 where that is not known."""

    def __init__(self, op, axes, strides, padding, dilation):
        self.axes = axes
        self.strides, self.dilation = _each(op, "strides", strides, axes, 1), _each(op, "dilation", dilation, axes, 1)
        self.padding = padding if padding in ("same", "causal") else "before"
        pairs = [(0, 0)] * (axes or 1) if padding in _PADDINGS else _windows.check_pairs(op, padding, axes, _PADDINGS)
        self.pairs = pairs if self.padding == "before" else [self.padding] * len(pairs)
        every = lambda values: values if axes else values * _MOST_AXES
        numbers_ = {"strides": every(self.strides), "dilation": every(self.dilation), "before": [before for before, _ in pairs]}
        self.options = {"padding": self.padding, **{name: _windows.word(values) for name, values in numbers_.items()}}


_window = functools.lru_cache(1024)(Window)


def _window_of(op, x, kernel, strides, padding, dilation):
    """The Window of a call."""
    axes = _axes_of(op, x, kernel, strides, padding, dilation)
    hashable = lambda value: value if isinstance(value, (str, numbers.Integral)) else tuple(
        tuple(v) if isinstance(v, (list, tuple)) else v for v in value) if isinstance(value, (list, tuple)) else value
    return _window(op, axes, hashable(strides), hashable(padding), hashable(dilation))


def _axes_of(op, x, kernel, *numbers_):
    """How many spatial axes there are; 0: not known."""
    for name, t in [("x", x), ("kernel", kernel)]:
        if t.shape.rank is not None and not 3 <= t.shape.rank <= 2 + _MOST_AXES:
            wanted = "[batch, spatial axes, channels]" if name == "x" else "[spatial axes, channels of a group, outputs]"
            raise ValueError("%s: %s must be %s with one to three spatial axes, got shape %s" % (op, name, wanted, t.shape))
    ranks = {t.shape.rank for t in (x, kernel)} - {None}
    if len(ranks) > 1:
        raise ValueError("%s: x and kernel must have the same number of dimensions, got shapes %s and %s" % (
            op, x.shape, kernel.shape))
    lengths = [len(value) for value in numbers_ if isinstance(value, (list, tuple))]
    return ranks.pop() - 2 if ranks else lengths[0] if lengths else 0


def _finish(y, bias, activation):
    return scale_bias_act(y, bias=bias, activation=activation) if given(bias) or activation != "linear" else y


def _result_sizes(op, x, kernel, window):
    """Of the convolution, as _sized."""
    return _results(op, *(_spatial(t, first, window.axes) for t, first in ((x, 1), (kernel, 0))), window)


def fused(x, kernel, bias, residual, window, activation):
    """tfuse.conv by the ops, wherever they run: relu is a part of the convolution, any other activation a pass after it,
    which then has the bias, too."""
    sizes = _result_sizes("conv", x, kernel, window)
    inside = activation in ("linear", "relu")
    y = _conv(x, kernel, bias if inside else None, residual, sizes, tf32=_tf32(), relu=activation == "relu", **window.options)
    if activation == "linear" and (residual is None or not given(residual)):
        again = lambda activation, residual: fused(x, kernel, bias, residual, window, activation)
        _made.keep(y, _made.Unfinished(x, "Conv", "a convolution", True, again))
        _made.keep(y, _made.Convolved(x, kernel, bias, lambda kernel, bias: fused(x, kernel, bias, None, window, "linear")))
    return y if inside else _finish(y, bias, activation)


def composed(x, kernel, bias, residual, window, activation):
    """The same by TensorFlow's own convolution and tfuse.scale_bias_act, which is faster on a CPU."""
    kernel = tf.cast(kernel, x.dtype)
    if window.padding == "causal":
        x = tf.pad(x, [(0, 0), *(((k - 1) * d, 0) for k, d in zip(kernel.shape, window.dilation)), (0, 0)])
    elif window.padding == "before" and max(map(max, window.pairs)):
        x = tf.pad(x, [(0, 0), *window.pairs, (0, 0)])
    if window.padding == "same":
        y = tf.nn.convolution(x, kernel, window.strides, "SAME", data_format=_FORMATS[window.axes], dilations=window.dilation)
    else:
        y = _convolve(x, kernel, window.strides, window.dilation)
    return _finish(y if residual is None or not given(residual) else y + residual, bias, activation)


def _why_composed(x, kernel, bias, residual, window):
    """Why TensorFlow's own convolution is called, or nothing: it has none of groups on a CPU, nor of strides with dilation and
    padding by their sizes; and it says less clearly what is wrong."""
    if not _library.without_gpu() or not window.axes or x.shape[-1] is None or x.shape[-1] != kernel.shape[-2]:
        return ""
    if window.padding == "same" and max(window.strides) > 1 and max(window.dilation) > 1:
        return ""
    if not kernel.shape.is_fully_defined() or 0 in kernel.shape or None in x.shape[1:] or 0 in x.shape:
        return ""
    n = list(map(_windows.result, x.shape[1:-1], kernel.shape, window.strides, window.dilation, window.pairs))
    if min(n) <= 0 or given(bias) and bias.shape != kernel.shape[-1:] or (
            given(residual) and not residual.shape.is_compatible_with([x.shape[0], *n, kernel.shape[-1]])):
        return ""
    return "there is no GPU, and TensorFlow's own convolution is faster on the CPU"


def _check_channels(op, x, kernel, groups):
    channels, own = x.shape[-1] if x.shape.rank else None, kernel.shape[-2] if kernel.shape.rank else None
    if not isinstance(groups, numbers.Integral) or groups < 1:
        raise ValueError("%s: groups must be an integer from 1 on, got %r" % (op, groups))
    if channels is not None and own is not None and channels != own * groups:
        raise ValueError("%s: the channels of x must be groups times those of kernel, got %d channels, %d group%s and kernel %s" % (
            op, channels, groups, "s" * (groups > 1), kernel.shape))


def _is_by_depth(x, kernel, window, groups):
    """Whether each channel is a group, and the kernels of tfuse.depthwise_conv for certain windows serve it."""
    shape = kernel.shape
    return (window.axes == 2 and groups > 1 and groups == x.shape[-1] == shape[-1] and groups % 8 == 0 and
            shape[0] == shape[1] and shape[0] in (3, 5, 7) and window.strides in ((1, 1), (2, 2)) and
            window.dilation == (1, 1) and window.pairs in ([(0, 0)] * 2, ["same"] * 2) and x.dtype != tf.float64)


@composite
def conv(x, kernel, bias=None, activation=None, residual=None, strides=1, padding="valid", dilation=1, groups=1,
         data_format="channels_last"):
    """Returns act(x convolved with kernel + bias + residual), for one to three spatial axes.

    Products are summed in float32, in float64 for float64. float32 is rounded to TF32 before it is multiplied only where
    tf.config.experimental.enable_tensor_float_32_execution() allows that, as it does by default, and the GPU has it. Where
    there is no GPU, TensorFlow's own convolution is used, and tfuse.scale_bias_act.

    Args:
      x: float tensor, [batch, spatial axes, channels].
      kernel: [spatial axes, channels / groups, outputs], as in Keras. Beside an x of 16 bits it may be float32, and is rounded
        to x's dtype on its way; its gradient is float32 then.
      bias: [outputs], or None.
      activation: as in tfuse.scale_bias_act.
      residual: tensor of the result's shape, or None; is added before the activation.
      strides, dilation: an integer, or one for each spatial axis.
      padding: "valid", none; "same", so that the result has the size of x divided by the stride, as TensorFlow pads;
        "causal", all of it before x, so that no result sees what comes later; or (before, after) for each spatial axis.
      groups: into how many the channels and the outputs are divided, each group of outputs seeing one of channels. With as many
        groups as channels, common windows are computed as tfuse.depthwise_conv does.
      data_format: "channels_last", or "channels_first", for x, residual and the result: those are transposed then.

    Returns:
      [batch, spatial axes, outputs].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or an unknown word.

    Example:
      x, kernel, bias = tf.random.normal([8, 32, 32, 16]), tf.random.normal([3, 3, 16, 64]), tf.zeros([64])
      y = tfuse.conv(x, kernel, bias, "relu", padding="same")
    """
    last = lambda x, residual: _conv_last(x, kernel, bias, activation, residual, strides, padding, dilation, groups)
    return by_last("conv", last, data_format, x, residual)


def _conv_last(x, kernel, bias, activation, residual, strides, padding, dilation, groups):
    activation = activation_name(activation)
    x, kernel, bias, residual, _ = _conv.tensors(x, kernel, bias, residual, None)
    window = _window_of("conv", x, kernel, strides, padding, dilation)
    _check_channels("conv", x, kernel, groups)
    if not given(residual) and _is_by_depth(x, kernel, window, groups):
        bias, shape = bias if given(bias) else None, kernel.shape
        kernel = tf.cast(tf.reshape(kernel, [shape[0], shape[1], shape[3], 1]), x.dtype)
        return depthwise(x, kernel, bias, activation, window.strides,
                         "same" if window.padding == "same" else "valid")
    why = _why_composed(x, kernel, bias, residual, window)
    if why:
        _explain.note("Conv", "plain TensorFlow", why, [x], "called")
    return (composed if why else fused)(x, kernel, bias, residual, window, activation)


@composite
def conv_transpose(x, kernel, bias=None, activation=None, strides=1, padding="valid", output_padding=None, dilation=1,
                   data_format="channels_last"):
    """Returns act(x spread by kernel + bias): a convolution the other way round, from its result's sizes to its input's.

    Args:
      x: float tensor, [batch, spatial axes, channels].
      kernel: [spatial axes, outputs, channels], as in Keras. It may be float32, as in tfuse.conv.
      bias: [outputs], or None.
      activation: as in tfuse.scale_bias_act.
      strides, dilation: an integer, or one for each spatial axis.
      padding: "valid" or "same".
      output_padding: how many elements the result has after the least that there must be, an integer or one for each axis.
        None: as many as make it as large as Keras's, x's size times the stride where padding is "same".
      data_format: "channels_last", or "channels_first", for x and the result: those are transposed then.

    Returns:
      [batch, spatial axes, outputs].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or an unknown word.

    Example:
      x, kernel = tf.random.normal([8, 16, 16, 32]), tf.random.normal([3, 3, 64, 32])
      y = tfuse.conv_transpose(x, kernel, activation="relu", strides=2, padding="same")
    """
    last = lambda x: _spread(x, kernel, bias, activation, strides, padding, output_padding, dilation)
    return by_last("conv_transpose", last, data_format, x)


def _spread(x, kernel, bias, activation, strides, padding, output_padding, dilation):
    activation = activation_name(activation)
    x, kernel, bias, *_ = _conv.tensors(x, kernel, bias, None, None)
    if padding not in ("valid", "same"):
        raise ValueError("conv_transpose: padding must be valid or same, got %r" % (padding,))
    window = _window_of("conv_transpose", x, kernel, strides, padding, dilation)
    more = [None] * (window.axes or 1) if output_padding is None else _each(
        "conv_transpose", "output_padding", output_padding, window.axes, 0)
    for a, s in zip(more, window.strides):
        if a is not None and a >= s:
            raise ValueError("conv_transpose: output_padding must be less than strides, got %s and %s" % (output_padding, strides))
    n, k = (_spatial(t, first, window.axes) for t, first in ((x, 1), (kernel, 0)))
    sizes = [_spread_size(*numbers_) for numbers_ in zip(n, k, window.strides, window.dilation, [padding] * len(n), more)]
    outputs = _rows.size(kernel, -2)
    y = _data(x, kernel, _sized([*sizes, outputs] if window.axes else [*sizes, tf.reshape(outputs, [1])]), tf32=_tf32(),
              **window.options)
    z = _finish(y, bias, activation)
    if activation == "linear":
        _made.keep(z, _made.Unfinished(x, "ConvData", "a transposed convolution", False, lambda name, _: _finish(y, bias, name)))
    return z
