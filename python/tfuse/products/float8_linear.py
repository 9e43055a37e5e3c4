"""act(x . kernel + bias) + residual with factors in float8: with a kernel that is kept in it, and in training, where scales
follow the largest numbers of the steps before (delayed scaling).

A kernel in float8 is kept as bytes: TensorFlow has no variables of float8 on GPUs, and does not let its bits be read."""

import tensorflow as tf

from tfuse._core._op import FLOATS, FusedOp, given, mark, may_record, real
from tfuse.elementwise.scale_bias_act import PLAIN, SLOPE_FROM_RESULT, activation_name, plain_behind
from tfuse.products.linear import _matrix

E4M3, E5M2 = tf.dtypes.experimental.float8_e4m3fn, tf.dtypes.experimental.float8_e5m2
LARGEST = {E4M3: 448.0, E5M2: 57344.0}

# ---- codes of E4M3 ----
#
# A float16 that is 2^8 less has the same exponent and fraction as the number in E4M3, from the seventh bit on.


def codes_of(v):
    """The bytes of numbers in E4M3."""
    exact = tf.cast(v, tf.float16)
    bits = tf.cast(tf.bitcast(exact * 2.0**-8, tf.uint16), tf.int32)
    codes = tf.bitwise.right_shift(bits, 8) & 128 | tf.bitwise.right_shift(bits, 7) & 127
    return tf.cast(tf.where(tf.math.is_nan(exact), 127, codes), tf.uint8)


def values_of(codes, dtype):
    """The numbers that bytes are."""
    wide = tf.cast(codes, tf.int32)
    bits = tf.cast((wide & 128) * 256 + (wide & 127) * 128, tf.uint16)
    values = tf.cast(tf.bitcast(bits, tf.float16), dtype) * 2.0**8
    return tf.where(wide & 127 == 127, tf.constant(float("nan"), dtype), values)


# ---- plain TensorFlow ----


def nearest(v, to):
    """v rounded to float8, in its dtype, float32 or float64. It is no cast: XLA's goes by way of float16, and rounds twice."""
    fraction, least = {E4M3: (3, -6), E5M2: (2, -14)}[to]
    whole, digits = (tf.int32, 23) if v.dtype == tf.float32 else (tf.int64, 52)
    a, cut = tf.minimum(tf.abs(v), LARGEST[to]), digits - fraction
    bits = tf.bitcast(a, whole)
    up = bits + (2**(cut - 1) - 1) + (tf.bitwise.right_shift(bits, tf.constant(cut, whole)) & 1)
    step = 2.0**(least - fraction)
    r = tf.where(a < 2.0**least, tf.round(a / step) * step, tf.bitcast(up & -2**cut, v.dtype))
    return tf.where(tf.math.is_nan(v), v, tf.where(v < 0, -r, r))


def rounded(v, scale, to):
    """What v is in float8, by a scale that broadcasts, in v's dtype; the slope is 1."""
    wide = tf.cast(v, real(v.dtype))
    scale = tf.cast(scale, wide.dtype)
    return tf.stop_gradient(tf.cast(nearest(wide / scale, to) * scale, v.dtype)) + (v - tf.stop_gradient(v))


def row_scales(x):
    """Of each row, so that its largest number becomes that of E4M3. XLA would make a product of a quotient: so it is one."""
    scale = tf.reduce_max(tf.abs(tf.cast(x, real(x.dtype))), -1, keepdims=True) * (1 / LARGEST[E4M3])
    return tf.stop_gradient(tf.where((scale > 0) & tf.math.is_finite(scale), scale, 1))


def _factors(x, kernel, x_scale, kernel_scale, order, dtype):
    """x and the kernel, in the order of rows, as they are multiplied; an empty one stays."""
    if given(x):
        x = rounded(x, x_scale if given(x_scale) else row_scales(x), E4M3)
    if given(kernel):
        columns = order == "columns" and kernel_scale.shape.rank == 1
        kernel_scale = kernel_scale[:, None] if columns else kernel_scale
        if kernel.dtype == dtype:
            kernel = rounded(kernel, kernel_scale, E4M3)
        else:
            wide = real(dtype)
            kernel = tf.cast(values_of(kernel, wide) * tf.cast(kernel_scale, wide), dtype)
        kernel = tf.transpose(kernel) if order == "columns" else kernel
    return x, kernel


def _plain(x, kernel, x_scale, kernel_scale, bias, residual, keep, activation="linear", tf32=False, order="rows"):
    nothing = tf.zeros([0], x.dtype)
    pre = tf.tensordot(*_factors(x, kernel, x_scale, kernel_scale, order, x.dtype), 1)
    pre = pre + bias if given(bias) else pre
    y = PLAIN[activation](pre)
    return y + residual if given(residual) else y, pre if given(keep) else nothing


def _next(v, scale, history, to):
    """The scale and the history that come next, which have no slope."""
    if not given(history):
        return tf.zeros([0]), history
    v, scale, history = map(tf.stop_gradient, (v, scale, history))
    top, before = tf.cast(tf.reduce_max(tf.abs(v)), tf.float32), tf.reduce_max(history)
    known = (before > 0) & tf.math.is_finite(before)
    factor = tf.where(known, LARGEST[to] / before, 1 / scale)
    return 1 / factor, tf.tensor_scatter_nd_update(tf.roll(history, -1, 0), [[0]], [top])


def _plain_grad(dy, x, kernel, x_scale, kernel_scale, dy_scale, x_history, kernel_history, dy_history, bias, pre,
                activation="linear", tf32=False, order="rows"):
    dpre, nothing = plain_behind(dy, pre, activation), tf.zeros([0], dy.dtype)
    g = rounded(dpre, dy_scale, E5M2) if given(dy_scale) else dpre
    left, right = _factors(x, kernel, x_scale, kernel_scale, order, dy.dtype)
    news = [_next(v, scale, history, to) for v, scale, history, to in (
        (x, x_scale, x_history, E4M3), (kernel, kernel_scale, kernel_history, E4M3), (dpre, dy_scale, dy_history, E5M2))]
    return (tf.tensordot(g, right, [[-1], [1]]) if given(kernel) else nothing,
            tf.matmul(_matrix(left), _matrix(g), transpose_a=True) if given(x) else nothing,
            tf.reduce_sum(_matrix(dpre), 0) if given(bias) else nothing, *(n[0] for n in news), *(n[1] for n in news))


# ---- the ops ----


def _gradient(node, dy, dpre):
    """Of x, kernel, bias and residual; dy is not rounded. Of a kernel in float8 there is none."""
    x, kernel, x_scale, kernel_scale, bias, residual, _ = node.inputs
    activation, how = node.attr("activation"), node.attrs("tf32", "order")
    kept = kernel.dtype != x.dtype
    pre = None
    if activation in SLOPE_FROM_RESULT and not given(residual):
        pre = node.outputs[0]
    elif activation != "linear":
        pre = _float8_linear(x, kernel, x_scale, kernel_scale, bias, None, None, **how)[0]
    needed = None if kept else x, kernel, x_scale, kernel_scale, None, None, None, None, bias
    dx, dkernel, dbias = _grad(dy, *needed, pre, activation=activation, **how)[:3]
    if dpre is not None:
        more = _grad(dpre, *needed, None, **how)
        dx, dkernel, dbias = (a + b for a, b in zip((dx, dkernel, dbias), more))
    return [dx, None if kept else dkernel, None, None, dbias, dy if given(residual) else None, None]


# Axes by letters: i inputs, o outputs, and those before them. A kernel may lie either way.
_AXES = {**dict.fromkeys(["dy", "residual", "pre"], "abcdefgo"), "x": "abcdefgi", "kernel": "uv", "bias": "o", "keep": "yz",
         "x_scale": "s", "kernel_scale": "o", "dy_scale": "s", "x_history": "h", "kernel_history": "k", "dy_history": "l"}

_grad = FusedOp("Float8LinearGrad", _plain_grad, axes=_AXES)
_float8_linear = FusedOp("Float8Linear", _plain, _gradient, axes=_AXES)


def _tf32():
    return tf.config.experimental.tensor_float_32_execution_enabled()


def with_kernel(x, kernel, scale, x_scale=None, bias=None, activation=None, residual=None, order="rows"):
    """quantized_linear with a kernel in float8. x is rounded to E4M3 by x_scale, or row by row."""
    kernel = codes_of(kernel) if kernel.dtype == E4M3 else kernel
    return _float8_linear(x, kernel, x_scale, scale, bias, residual, None, activation=activation_name(activation),
                          tf32=_tf32(), order=order)[0]


def delayed(x, kernel, scales, histories, bias=None, activation="linear", training=None):
    """act(x . kernel + bias) where x, kernel and the gradient of what act is taken of are rounded by scales, in this order,
    and the gradients of scales and histories, of which some may be None, are the values that come next."""
    empty = tf.zeros([0], tf.float32)
    state = [*scales, *(empty if h is None else h for h in histories)]

    @tf.custom_gradient
    def run(x, kernel, bias, *state):
        keeps = activation != "linear" and activation not in SLOPE_FROM_RESULT and may_record(training)
        y, pre = _float8_linear(x, kernel, *state[:2], bias, None, mark(x.dtype) if keeps else None, activation=activation,
                                tf32=_tf32())

        def gradient(dy):
            before = None if activation == "linear" else y if activation in SLOPE_FROM_RESULT else pre
            if before is not None and not given(before):  # it was not kept
                before = _float8_linear(x, kernel, *state[:2], bias, None, None, tf32=_tf32())[0]
            dx, dkernel, dbias, *news = _grad(dy, x, kernel, *state, bias, before, activation=activation, tf32=_tf32())
            return [dx, dkernel, dbias, *(new if given(h) else None for new, h in zip(news, 2 * state[3:]))]
        return y, gradient
    return run(x, kernel, tf.zeros([0], x.dtype) if bias is None else bias, *state)


def float8_kernel(kernel, per_output=True):
    """A kernel in float8, E4M3: (kernel, scale) for tfuse.quantized_linear with float8=True and order="columns".

    It is made once, and kept instead of the kernel, as bytes: TensorFlow has no variables of float8 on GPUs. What scales are
    chosen for is that the largest number becomes 448, that of E4M3.

    Args:
      kernel: [inputs, outputs], of floats.
      per_output: whether each output has a scale of its own; if not, all have one.

    Returns:
      kernel of shape [outputs, inputs], uint8, and scale of shape [outputs], or a scalar, float32.

    Raises:
      ValueError: a kernel that is no matrix of floats.

    Example:
      codes, scale = tfuse.float8_kernel(tf.random.normal([64, 128]))
      y = tfuse.quantized_linear(tf.random.normal([8, 64]), codes, scale, float8=True, order="columns", quantize_rows=True)
    """
    kernel = tf.convert_to_tensor(kernel)
    if kernel.shape.rank != 2 or kernel.dtype not in FLOATS:
        raise ValueError("float8_kernel: kernel must be a matrix of floats, got %s of shape %s" % (
            kernel.dtype.name, kernel.shape))
    columns = tf.cast(tf.transpose(kernel), tf.float32)
    scale = row_scales(columns if per_output else tf.reshape(columns, [1, -1]))
    return codes_of(nearest(columns / scale, E4M3)), tf.reshape(scale, [-1] if per_output else [])
