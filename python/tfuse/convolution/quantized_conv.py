"""A convolution of int8 by int8, as floats or as int8 for the next one: what a calibrated network is made of."""

import tensorflow as tf

from tfuse._core._op import FusedOp, composite, given
from tfuse.convolution import conv as _conv
from tfuse.elementwise.scale_bias_act import activation_name, scale_bias_act

DTYPES = (tf.float32, tf.float16, tf.bfloat16)


def _plain(x, kernel, scale, bias, residual, sizes, relu=False, residual_scale=1.0, y_scale=1.0, Y=tf.int8, **options):
    """Sums are exact in float64, too."""
    axes = x.shape.rank - 2
    kernel = tf.transpose(tf.cast(kernel, tf.float64), [*range(1, axes + 2), 0])
    v = tf.cast(_conv._plain_linear(tf.cast(x, tf.float64), kernel, sizes, **options), tf.float32) * scale
    v = v + bias if given(bias) else v
    if given(residual):
        v = v + tf.cast(residual, tf.float32) * (residual_scale if residual.dtype == tf.int8 else 1.0)
    v = tf.nn.relu(v) if relu else v
    return tf.cast(tf.clip_by_value(tf.round(v * y_scale), -127, 127) if Y == tf.int8 else v, Y)


def _no_gradient(node, dy):
    raise ValueError("quantized_conv: int8 has no gradient; train in floats, and calibrate after it")


def _axes(inputs):
    """By letters, as those of tfuse.conv; the kernel's outputs come first."""
    count = inputs[0].shape.rank - 2
    y = "n%so" % "uvw"[:count]
    return {"x": "n%si" % "abc"[:count], "kernel": "o%sj" % "rst"[:count], "scale": "o", "bias": "o", "residual": y,
            "sizes": y[1:-1] + "z"}


_quantized_conv = FusedOp("QuantizedConv", _plain, _no_gradient, axes=_axes)


def _sizes(x, kernel, window):
    """Of the result; kernel's spatial axes come after its outputs."""
    n, k = _conv._spatial(x, 1, window.axes), _conv._spatial(kernel, 1, window.axes)
    return _conv._results("quantized_conv", n, k, window)


@composite
def quantized_conv(x, kernel, scale, bias=None, activation=None, residual=None, strides=1, padding="valid", dilation=1, *,
                   residual_scale=1.0, y_scale=None, dtype="float32"):
    """Returns act(x convolved with kernel * scale + bias + residual), with x and kernel in int8.

    Sums are exact, in int32. Results are floats, or int8 for the next convolution: round(y * y_scale), clipped to -127 … 127.
    So scale is, output by output, the product of what a step of x and one of the kernel stand for, and residual_scale what a
    step of the residual does. On a GPU, tensor cores serve channels and outputs of a group in multiples of 16, along one or two
    spatial axes. There is no gradient.

    Args:
      x: int8 tensor, [batch, spatial axes, channels].
      kernel: int8, [outputs, spatial axes, channels of a group]: outputs come first, where tfuse.conv has them last. How many
        groups there are follows from the channels of both.
      scale: float32, [outputs].
      bias: float32, [outputs], or None.
      activation: as in tfuse.scale_bias_act; None or "relu" where results are int8.
      residual: tensor of the result's shape, int8 or of the result's dtype, or None; is added before the activation.
      strides, padding, dilation: as in tfuse.conv.
      residual_scale: what a residual of int8 is multiplied with.
      y_scale: None for floats, or what results are multiplied with before they are rounded to int8.
      dtype: of floats: float32, float16 or bfloat16.

    Returns:
      [batch, spatial axes, outputs].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or an activation that int8 does not
        have.

    Example:
      x = tf.cast(tf.random.uniform([8, 32, 32, 16], -127, 128, tf.int32), tf.int8)
      kernel = tf.cast(tf.random.uniform([64, 3, 3, 16], -127, 128, tf.int32), tf.int8)
      y = tfuse.quantized_conv(x, kernel, tf.fill([64], 1e-4), activation="relu", padding="same", y_scale=20.0)
    """
    name, narrow = activation_name(activation), y_scale is not None
    result = tf.int8 if narrow else tf.as_dtype(dtype)
    if not narrow and result not in DTYPES:
        raise ValueError("quantized_conv: dtype must be one of %s, got %s; y_scale makes int8" % (
            ", ".join(t.name for t in DTYPES), result.name))
    if narrow and name not in ("linear", "relu"):
        raise ValueError("quantized_conv: with y_scale activation must be None or 'relu', got %r" % (activation,))
    x, kernel, scale, bias, residual, _ = _quantized_conv.tensors(x, kernel, scale, bias, residual, None)
    if given(residual) and residual.dtype not in (tf.int8, result):
        raise ValueError("quantized_conv: residual must be int8, or %s like the result, got %s" % (
            result.name, residual.dtype.name))
    window = _conv._window_of("quantized_conv", x, kernel, strides, padding, dilation)
    sizes = _sizes(x, kernel, window)
    y = _quantized_conv(x, kernel, scale, bias, residual, sizes, relu=name == "relu", residual_scale=float(residual_scale),
                        y_scale=float(y_scale) if narrow else 1.0, Y=result, **window.options)
    return y if name in ("linear", "relu") else scale_bias_act(y, activation=name)
