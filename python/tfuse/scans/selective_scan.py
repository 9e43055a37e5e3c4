"""Mamba's selective scan: a linear recurrence of some states for each channel, whose factors depend on the input."""

import numpy as np
import tensorflow as tf

from tfuse._core._op import FusedOp, composite, given, has_dtype, real, vjp
from tfuse.elementwise.gated import gated
from tfuse.scans.scan_linear import _plain as scan_plain


def _plain(x, delta, a, b, c, skip, initial):
    """With all states of all steps in memory."""
    dtype = x.dtype
    x, delta, b, c = (tf.cast(t, a.dtype) for t in (x, delta, b, c))
    shape, (groups, states) = tf.shape(x), tf.unstack(tf.shape(b)[2:])
    by_group = lambda t, *more: tf.reshape(t, [shape[0], shape[1], groups, shape[2] // groups, *more])
    inputs = tf.reshape(by_group(delta * x, 1) * b[:, :, :, None], [*tf.unstack(shape), states])
    h = scan_plain(tf.exp(delta[..., None] * a), inputs, initial[:, None] if given(initial) else initial, axis=1)
    y = tf.reshape(tf.reduce_sum(by_group(h, states) * c[:, :, :, None], 4), shape)
    first = initial if given(initial) else tf.zeros([shape[0], shape[2], states], a.dtype)
    last = tf.concat([first[:, None], h], 1)[:, -1]
    return tf.cast(y + x * skip if given(skip) else y, dtype), last


def _plain_grad(dy, dlast, *inputs):
    return vjp(_plain)([dy, dlast if given(dlast) else None], *inputs)


def _gradient(node, dy, dlast):
    gradients = _grad(dy, dlast, *node.inputs)
    return [g if given(i) else None for g, i in zip(gradients, node.inputs)]


# Axes by letters: batch, time, channels, groups of them, states.
_AXES = {"a": "cs", "skip": "c", **dict.fromkeys(["x", "delta", "dy"], "btc"), **dict.fromkeys(["b", "c"], "btgs"),
         **dict.fromkeys(["initial", "dlast"], "bcs")}

_grad = FusedOp("SelectiveScanGrad", _plain_grad, axes=_AXES)
_scan = FusedOp("SelectiveScan", _plain, _gradient, axes=_AXES)


@composite
def selective_scan(x, delta, a, b, c, skip=None, z=None, initial=None):
    """Returns y_t = c_t . h_t + skip x_t of the states h_t = exp(delta_t a) h_{t-1} + delta_t x_t b_t, and the last h: Mamba's
    selective scan. No states but the last are written to memory, and the gradient computes them again.

    Args:
      x: float tensor, [batch, length, channels].
      delta: of x's shape: the step sizes, after softplus.
      a: [channels, states], negative where states shall fade; up to 16 states. It is used in float32, or float64.
      b, c: [batch, length, states], the same for all channels; or [batch, length, groups, states], for as many groups of
        channels, one after the other.
      skip: [channels], or None for zeros; in float32, or float64.
      z: of x's shape, or None: y is multiplied by silu(z).
      initial: h before the first step, [batch, channels, states], or None for zeros; in float32, or float64.

    Returns:
      y: of x's shape and dtype.
      h: [batch, channels, states], that after the last step, in float32, or float64.

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or more than 16 states.

    Example:
      x, delta = tf.random.normal([2, 100, 32]), tf.nn.softplus(tf.random.normal([2, 100, 32]))
      b, c = tf.random.normal([2, 100, 16]), tf.random.normal([2, 100, 16])
      y, h = tfuse.selective_scan(x, delta, -tf.random.uniform([32, 16]), b, c)
    """
    x = tf.convert_to_tensor(x)
    for name, t in (("a", a), ("skip", skip), ("initial", initial)):
        if t is not None and tf.as_dtype(t.dtype if has_dtype(t) else np.asarray(t).dtype).is_complex:
            raise ValueError("selective_scan: %s must be real, got complex numbers; tfuse.scan_linear takes these" % name)
    wide = lambda t: t if t is None else tf.cast(t, real(x.dtype))
    b, c = (tf.convert_to_tensor(t, None if has_dtype(t) else x.dtype) for t in (b, c))
    b, c = (t[:, :, None] if t.shape.rank == 3 else t for t in (b, c))
    y, last = _scan(x, delta, wide(a), b, c, wide(skip), wide(initial))
    return y if z is None else gated(z, y, activation="silu"), last
