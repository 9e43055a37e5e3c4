"""softmax(x * scale + mask) and its logarithm in one pass over memory, and the Keras layer."""

import keras
import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._layer import layer_of
from tfuse._core._op import FLOATS, FusedOp, composite, given, real, registry


def _plain(x, mask, scale=1.0, log=False):
    z = tf.cast(x, real(x.dtype)) * scale
    keeps = given(mask) and mask.dtype == tf.bool
    if keeps:  # the lowest number and not minus infinity: a row of which nothing is kept would be NaN, also its gradient
        z = tf.where(mask, z, z.dtype.min)
    elif given(mask):
        z = z + tf.cast(mask, z.dtype)
    y = tf.nn.log_softmax(z) if log else tf.nn.softmax(z)
    if keeps:
        y = tf.where(mask, y, tf.cast(float("-inf") if log else 0, y.dtype))
    return tf.cast(y, x.dtype)


def _plain_grad(dy, y, scale=1.0, log=False):
    g, p = tf.cast(dy, real(y.dtype)), tf.cast(y, real(y.dtype))
    if log:
        dx = tf.where(tf.math.is_inf(p), tf.zeros([], p.dtype), g - tf.exp(p) * tf.reduce_sum(g, -1, keepdims=True))
    else:
        dx = p * (g - tf.reduce_sum(g * p, -1, keepdims=True))
    return tf.cast(scale * dx, y.dtype)


def _gradient(node, dy):
    (_, mask), (y,) = node.inputs, node.outputs
    scale, log = node.attr("scale"), node.attr("log")
    dx = _grad(dy, y, scale=scale, log=log)
    if mask.dtype == tf.bool or not given(mask) or not node.wanted(1):
        return [dx, None]
    dmask = dx if scale == 1 else _grad(dy, y, scale=1.0, log=log)  # dx / scale would be what rounding left of dx
    return [dx, _sum_to(mask, dmask)]


def _sum_to(mask, d):
    """d, summed over the axes along which the mask was stretched."""
    if mask.shape.is_fully_defined() and d.shape.rank:
        if mask.shape == d.shape:
            return d
        own = mask.shape.as_list()
        while own[:1] == [1]:
            own = own[1:]
        if own and d.shape.as_list()[-len(own):] == own:  # rows added up: the gradient of a bias, in one pass
            columns = mask.shape.num_elements()
            rows = tf.reshape(d, [_rows.product(_rows.sizes(d, 0, -len(own))), columns])
            total = registry["ScaleBiasActGrad"](rows, rows, None, tf.zeros([columns], d.dtype), activation="linear")[2]
            return tf.reshape(total, mask.shape)
    stretched = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(mask), s1=tf.shape(d)).r0
    total = tf.reduce_sum(tf.cast(d, real(d.dtype)), stretched)  # many terms: not in 16 bits
    return tf.cast(tf.reshape(total, tf.shape(mask)), d.dtype)


_grad = FusedOp("SoftmaxGrad", plain=_plain_grad)
_softmax = FusedOp("Softmax", plain=_plain, gradient=_gradient, axes=dict.fromkeys(["x", "mask"], "abcdefgh"),
                   stretched="abcdefgh", stretching=["mask"])


def _over(op, x, axis, mask, scale, log):
    x = _rows.tensor(x)
    rows = _rows.Rows(op, x, axis)
    if mask is not None:
        mask = rows.take_broadcast(_rows.tensor(mask))
    return rows.give_back(_softmax(rows.take(x), mask, scale=float(scale), log=log))


@composite
def softmax(x, axis=-1, mask=None, scale=1.0):
    """Returns softmax(x * scale + mask), computed in float32, or in float64 for float64.

    Args:
      x: float tensor.
      axis: one axis or several, over which all values sum to one.
      mask: broadcasts to x. A boolean one keeps what is True: the rest is zero and plays no part; where nothing is kept,
        all is zero. One of x's dtype is added. None: none.
      scale: a number.

    Example:
      scores = tf.random.normal([4, 16, 16])
      causal = tf.linalg.band_part(tf.ones([16, 16], tf.bool), -1, 0)
      p = tfuse.softmax(scores, mask=causal, scale=0.125)
    """
    return _over("softmax", x, axis, mask, scale, False)


@composite
def log_softmax(x, axis=-1, mask=None, scale=1.0):
    """Returns log(softmax(x * scale + mask)); arguments as of tfuse.softmax. What a boolean mask drops is -infinity.

    Example:
      logp = tfuse.log_softmax(tf.random.normal([4, 1000]))
    """
    return _over("log_softmax", x, axis, mask, scale, True)


def kept(mask):
    """A mask of Keras's as booleans: of numbers, what is more than 0.5 is kept."""
    if mask is None or keras.backend.standardize_dtype(mask.dtype) == "bool":
        return mask
    return keras.ops.greater(mask, keras.ops.cast(0.5, mask.dtype))


Softmax = layer_of(
    "Softmax", lambda layer, inputs: tf.as_dtype(inputs.dtype) not in FLOATS,
    lambda layer, inputs, mask=None: softmax(inputs, layer.axis, kept(mask)),
    "in one pass.\n\n    Where the mask is False the result is exactly zero, whatever the input; Keras adds a large negative\n"
    "    number.", "")
