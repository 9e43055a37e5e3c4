"""act(x . kernel + bias) + residual with a kernel of 8 or 4 bits, in the formats of Keras's quantised layers and in float8; and
the order of such a kernel that GPUs read fastest."""

import numbers

import tensorflow as tf

from tfuse._core._op import FusedOp, composite, given, real
from tfuse.elementwise.scale_bias_act import PLAIN, SLOPE_FROM_RESULT, activation_name, plain_behind
from tfuse.products import float8_linear
from tfuse.products.linear import _matrix

TILE_ROWS, TILE_COLUMNS = 16, 64  # of the order "tiles"
EPSILON = 1e-7  # what Keras adds to a row's largest number

# ---- codes: numbers of 8 or 4 bits ----


def _upper(codes):
    return tf.bitwise.right_shift(codes, 4) & 15


def _unpacked(codes, outputs, axis):
    """Half bytes along an axis as bytes of their own, the lower half first."""
    wide = tf.cast(codes, tf.int32)
    low, high = wide & 15, _upper(wide)
    if codes.dtype == tf.int8:
        low, high = (low ^ 8) - 8, (high ^ 8) - 8
    both = tf.stack([low, high], axis + 1)
    shape = tf.shape(codes)
    flat = tf.reshape(both, [2 * shape[0], shape[1]] if axis == 0 else [shape[0], 2 * shape[1]])
    return flat[:outputs] if axis == 0 else flat[:, :outputs]


# Axes of a tile, whose letters kernels/products/quantized_kernel.h explains, as it lies in memory, and as rows and columns.
# Of 4 bits h is the half of a byte.
_TILE = {8: ("JIpgtceh", dict(p=2, g=8, t=4, c=4, e=2, h=2), "IhteJpcg"),
         4: ("JIgtcebh", dict(g=8, t=4, c=4, e=2, b=2, h=2), "IhteJcbg")}


def _permuted(x, from_axes, to_axes):
    return tf.transpose(x, [from_axes.index(axis) for axis in to_axes])


def _from_tiles(tiles, outputs, bits):
    """Codes of [inputs, outputs] as int32: 0 to 15, or -128 to 127."""
    axes, sizes, matrix = _TILE[bits]
    wide, shape = tf.cast(tiles, tf.int32), tf.shape(tiles)
    if bits == 4:
        wide = tf.stack([wide & 15, _upper(wide)], -1)
    else:
        wide = ((wide & 255) ^ 128) - 128
    apart = tf.reshape(wide, [shape[0], shape[1], *sizes.values()])
    return tf.reshape(_permuted(apart, axes, matrix), [TILE_ROWS * shape[1], TILE_COLUMNS * shape[0]])[:, :outputs]


def _to_tiles(codes, bits):
    """Of int32 codes of [inputs, outputs], 0 to 15 or -128 to 127, as bytes."""
    axes, sizes, matrix = _TILE[bits]
    inputs, outputs = codes.shape
    down, across = inputs // TILE_ROWS, -(-outputs // TILE_COLUMNS)
    codes = tf.pad(codes, [[0, 0], [0, across * TILE_COLUMNS - outputs]])
    apart = tf.reshape(codes, [{**sizes, "I": down, "J": across}[axis] for axis in matrix])
    apart = _permuted(apart, matrix, axes)
    if bits == 4:
        apart = apart[..., 0] | apart[..., 1] * 16
    return tf.reshape(tf.cast(apart & 255, tf.uint8), [across, down, TILE_ROWS * TILE_COLUMNS * bits // 8])


# ---- plain TensorFlow ----


def _table(t, order):
    """scale or zero as [groups, outputs]."""
    if t.shape.rank == 1:
        return t[None]
    columns = order == "columns"
    if t.shape.rank is None:
        t = tf.reshape(t, [tf.shape(t)[0], -1] if columns else [-1, tf.shape(t)[-1]])
    return tf.transpose(t) if columns else t


def _per_row(table, groups, group, inputs):
    """Of a [groups, ...] table, what each row of the kernel has."""
    if given(groups):
        rows = tf.clip_by_value(tf.cast(groups, tf.int32), 0, tf.shape(table)[0] - 1)
    else:
        rows = tf.range(inputs) // (group or tf.maximum(inputs, 1))
    return tf.gather(table, rows)


def dequantized(dtype, kernel, scale, zero, input_scale, groups, bits=8, group=0, order="rows", divide=False):
    """The kernel [inputs, outputs], computed in float32 or float64, and rounded to dtype."""
    scale, input_scale = tf.cast(scale, real(dtype)), tf.cast(input_scale, real(dtype))
    if order == "tiles":
        outputs = tf.shape(scale)[2]
        codes = tf.cast(_from_tiles(kernel, outputs, bits), scale.dtype)
        table = _per_row(scale, groups, group, tf.shape(codes)[0])
        w = (codes - table[:, 1]) * table[:, 0]
    else:
        outputs = tf.shape(scale)[0] if order == "columns" else tf.shape(scale)[-1]
        codes = _unpacked(kernel, outputs, 1 if order == "rows" else 0) if bits == 4 else tf.cast(kernel, tf.int32)
        codes = tf.transpose(codes) if order == "columns" else codes
        table, inputs = lambda t: _table(t, order), tf.shape(codes)[0]
        if given(zero):
            codes = codes - _per_row(table(tf.cast(zero, tf.int32)), groups, group, inputs)
        by = _per_row(table(scale), groups, group, inputs)
        codes = tf.cast(codes, scale.dtype)
        w = codes / by if divide else codes * by
    return tf.cast(w / input_scale[:, None] if given(input_scale) else w, dtype)


def _plain(x, kernel, scale, zero, input_scale, groups, bias, residual, activation="linear", tf32=False, quantize_rows=False,
           **how):
    dtype, by = x.dtype, None
    if quantize_rows:
        wide = tf.cast(x, real(dtype))
        by = tf.stop_gradient(127 / (tf.reduce_max(tf.abs(wide), -1, keepdims=True) + EPSILON))
        x = wide * by
        x = x + tf.stop_gradient(tf.round(x) - x)
    w = dequantized(x.dtype, kernel, scale, zero, input_scale, groups, **how)
    pre = tf.tensordot(x, w, 1)
    pre = tf.cast(pre / by, dtype) if quantize_rows else pre
    y = PLAIN[activation](pre + bias if given(bias) else pre)
    return y + residual if given(residual) else y


def _plain_grad(dy, kernel, scale, zero, input_scale, groups, bias, pre, activation="linear", tf32=False, quantize_rows=False,
                **how):
    w, dpre = dequantized(dy.dtype, kernel, scale, zero, input_scale, groups, **how), plain_behind(dy, pre, activation)
    return tf.tensordot(dpre, w, [[-1], [1]]), tf.reduce_sum(_matrix(dpre), 0) if given(bias) else bias


# ---- the ops ----

_HOW = "bits", "group", "order", "divide", "quantize_rows", "tf32"


def _gradient(node, dy):
    """Of x, bias and residual."""
    x, kernel, scale, zero, input_scale, groups, bias, residual = node.inputs
    activation, how = node.attr("activation"), node.attrs(*_HOW)
    weights = kernel, scale, zero, input_scale, groups
    pre = None
    if activation in SLOPE_FROM_RESULT and not given(residual):
        pre = node.outputs[0]
    elif activation != "linear":
        pre = _quantized_linear(x, *weights, bias, None, **how)
    dx, dbias = _grad(dy, *weights, bias, pre, activation=activation, **how)
    return [dx, None, None, None, None, None, dbias, dy if given(residual) else None]


_AXES = {**dict.fromkeys(["x"], "abcdefgi"), **dict.fromkeys(["dy", "pre", "residual"], "abcdefgo"), "bias": "o",
         "input_scale": "i", "groups": "i", "kernel": "uvw", "scale": "rst", "zero": "st"}

_grad = FusedOp("QuantizedLinearGrad", _plain_grad, axes=_AXES)
_quantized_linear = FusedOp("QuantizedLinear", _plain, _gradient, axes=_AXES)


@composite
def quantized_linear(x, kernel, scale, zero=None, bias=None, activation=None, residual=None, *, bits=8, group=None,
                     order="rows", divide=False, quantize_rows=False, groups=None, input_scale=None, float8=False,
                     x_scale=None):
    """Returns act(x . w + bias) + residual, where the kernel w is kept in 8 or 4 bits.

    w[i, o] = (kernel[i, o] - zero[g, o]) * scale[g, o] / input_scale[i], where g = i // group is the group of row i, or
    groups[i] where these are given. Sums are float32. The gradient is that of x, bias and residual; rounding has none.

    Keras's formats: int8 is divide=True with quantize_rows=True; int4 without blocks is bits=4, divide=True; int4 with blocks
    is bits=4 and group; gptq and awq are bits=4, order="columns" and group, the latter with input_scale=awq_scales.

    With float8 the kernel's bytes are numbers in E4M3, as tfuse.float8_kernel gives them, and x is rounded to E4M3 too: by
    x_scale, or row by row where quantize_rows. GPUs of compute capability 8.9 and later multiply them as they are, where inputs
    and outputs are multiples of 16; elsewhere they are multiplied as what they stand for.

    Args:
      x: float tensor, [..., inputs], with two axes or more.
      kernel: int8 or, for unsigned numbers, uint8. [inputs, outputs] in the order "rows", [outputs, inputs] in "columns"; of
        4 bits, two neighbouring outputs share a byte, the lower half being the first. In the order "tiles", what
        tfuse.pack_kernel returns, which GPUs read fastest. Of float8, uint8 or float8_e4m3fn.
      scale: [outputs], or [groups, outputs], in "columns" [outputs, groups]. float32, or of x's dtype. Of float8 a scalar or
        [outputs].
      zero: as scale, in kernel's dtype, or None.
      bias: [outputs], or None.
      activation: as in tfuse.scale_bias_act.
      residual: tensor of the result's shape, or None; is added last.
      bits: 8 or 4.
      group: rows of the kernel that share a scale, or None: all do.
      order: "rows", "columns" or "tiles".
      divide: whether numbers are divided by scale, not multiplied.
      quantize_rows: whether each row of x is rounded to 8 bits, too: round(x * s), s = 127 / (max(|x|) + 1e-7). Of float8,
        s = 448 / max(|x|).
      groups: the group of each row, [inputs] of float32, where that is not i // group.
      input_scale: [inputs], or None.
      float8: whether the kernel is in float8; one of dtype float8_e4m3fn is.
      x_scale: a number, or None: x is rounded to float8 as x / x_scale.

    Returns:
      [..., outputs].

    Raises:
      ValueError or InvalidArgumentError: shapes, dtypes or numbers that do not belong together.

    Example:
      kernel = tf.cast(tf.random.uniform([64, 128], -127, 128, tf.int32), tf.int8)
      y = tfuse.quantized_linear(tf.random.normal([8, 64]), kernel, tf.fill([128], 100.0), divide=True)
    """
    tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
    x, kernel = tf.convert_to_tensor(x), tf.convert_to_tensor(kernel)
    if float8 or kernel.dtype == float8_linear.E4M3:
        _check_float8(kernel, zero, bits, group, order, groups, input_scale, quantize_rows, x_scale)
        scale = 1 / tf.cast(scale, tf.float32) if divide else tf.cast(scale, tf.float32)
        return float8_linear.with_kernel(x, kernel, scale, x_scale, bias, activation, residual, order)
    if x_scale is not None:
        raise ValueError("quantized_linear: x_scale is for a kernel in float8, got one of %s" % kernel.dtype.name)
    zero = tf.zeros([0], kernel.dtype) if zero is None else zero  # both are of one type
    scale = tf.convert_to_tensor(scale)
    scale = scale if scale.dtype == x.dtype else tf.cast(scale, real(x.dtype))
    input_scale = None if input_scale is None else tf.cast(input_scale, x.dtype)
    return _quantized_linear(x, kernel, scale, zero, input_scale, groups, bias, residual, tf32=tf32,
                             activation=activation_name(activation), bits=bits, group=group or 0, order=order,
                             divide=divide, quantize_rows=quantize_rows)


def _check_float8(kernel, zero, bits, group, order, groups, input_scale, quantize_rows, x_scale):
    if kernel.dtype not in (tf.uint8, float8_linear.E4M3):
        raise ValueError("quantized_linear: kernel must be uint8 or float8_e4m3fn where float8 is true, got %s; "
                         "tfuse.float8_kernel makes one" % kernel.dtype.name)
    for name, value in dict(zero=zero, group=group, groups=groups, input_scale=input_scale).items():
        if value is not None:
            raise ValueError("quantized_linear: a kernel in float8 has no %s, got %s" % (name, value))
    if bits != 8 or order == "tiles":
        raise ValueError("quantized_linear: a kernel in float8 is of 8 bits, in the order 'rows' or 'columns', got bits=%r, "
                         "order=%r" % (bits, order))
    if isinstance(x_scale, numbers.Real) and not x_scale > 0:
        raise ValueError("quantized_linear: x_scale must be positive, got %r" % (x_scale,))
    if quantize_rows == (x_scale is not None):
        raise ValueError("quantized_linear: beside a kernel in float8, x is rounded either by x_scale or with "
                         "quantize_rows=True, got x_scale=%s, quantize_rows=%s" % (x_scale, quantize_rows))


def pack_kernel(kernel, scale, zero=None, *, bits=8, group=None, order="rows", divide=False):
    """A quantised kernel in the order that GPUs read fastest: (kernel, scale) for tfuse.quantized_linear with order="tiles".

    It is made once, and kept instead of the kernel, of whose size it is; bits and group stay the same, and there is neither
    zero nor divide any more. scale may be cast to x's dtype, which halves what is read of it: the second numbers in it stay
    exact. It takes no part in a graph.

    Args:
      kernel, scale, zero, bits, group, order, divide: as in tfuse.quantized_linear; inputs must be a multiple of 16.

    Returns:
      kernel of shape [tiles across, tiles down, bytes], uint8, and scale of shape [groups, 2, outputs].

    Raises:
      ValueError: inputs that are no multiple of 16, or an order that is not "rows" or "columns".

    Example:
      kernel = tf.cast(tf.random.uniform([64, 128], -127, 128, tf.int32), tf.int8)
      tiles, scales = tfuse.pack_kernel(kernel, tf.fill([128], 100.0), divide=True)
      y = tfuse.quantized_linear(tf.random.normal([8, 64]), tiles, scales, order="tiles")
    """
    if order not in ("rows", "columns"):
        raise ValueError("pack_kernel: order must be 'rows' or 'columns', got %r" % (order,))
    kernel, scale = tf.convert_to_tensor(kernel), tf.convert_to_tensor(scale)
    scale = tf.cast(scale, real(scale.dtype))
    inputs = kernel.shape[0 if order == "rows" else 1]
    if inputs % TILE_ROWS:
        raise ValueError("pack_kernel: the kernel's inputs must be a multiple of %d, got shape %s" % (TILE_ROWS, kernel.shape))
    # Checked as a call of no rows would be.
    how = dict(bits=bits, group=group, order=order, divide=divide)
    quantized_linear(tf.zeros([0, inputs], scale.dtype), kernel, scale, zero, **how)
    outputs = scale.shape[0 if order == "columns" else -1]
    with tf.device("CPU"):  # integers that GPUs have no kernels for
        codes = _unpacked(kernel, outputs, 1 if order == "rows" else 0) if bits == 4 else tf.cast(kernel, tf.int32)
        codes = tf.transpose(codes) if order == "columns" else codes
        signed = kernel.dtype == tf.int8
        shift = 8 * signed if bits == 4 else -128 * (not signed)  # codes become 0 to 15, or -128 to 127
        tiles = _to_tiles(codes + shift, bits)
        by = 1 / _table(scale, order) if divide else _table(scale, order)
        zeros = tf.cast(tf.zeros_like(by) if zero is None else _table(tf.cast(zero, tf.int32), order), scale.dtype)
    return tf.identity(tiles), tf.stack([by, zeros + shift], 1)
