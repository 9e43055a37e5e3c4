"""Layer and RMS normalisation in one pass over memory, with the dropout and the residual that come before, and the Keras
layers."""

import inspect

import keras
import tensorflow as tf

from tfuse._core import _philox, _rows
from tfuse._core._layer import Layer, layer_of
from tfuse._core._op import FLOATS, FusedOp, composite, given, real, vjp


def moments(h, axes, centred=True):
    """Mean (0 unless centred) and variance around it, with axes of size 1."""
    mean = tf.reduce_mean(h, axes, keepdims=True) if centred else tf.zeros([], h.dtype)
    return mean, tf.reduce_mean(tf.square(h - mean), axes, keepdims=True)


def normalise(h, gamma, beta, epsilon, axes, centred=True):
    """What the norms mean, in plain TensorFlow: the result, mean and 1 / deviation."""
    dtype, h = h.dtype, tf.cast(h, real(h.dtype))
    mean, variance = moments(h, axes, centred)
    rstd = tf.math.rsqrt(variance + epsilon)
    y = (h - mean) * rstd
    if given(gamma):
        y = y * gamma
    if given(beta):
        y = y + beta
    return tf.cast(y, dtype), mean, rstd


def normalise_grad(dy, h, gamma, beta, rstd, axes, centred=True):
    """Its gradients for h, gamma and beta, from the 1 / deviation that it gave.

    Mean and deviation are functions of h, also to whoever differentiates this again: only epsilon is taken from rstd.
    """
    _, variance = moments(tf.cast(h, rstd.dtype), axes, centred)
    epsilon = tf.stop_gradient(1 / tf.square(rstd) - variance)
    return vjp(lambda *inputs: normalise(*inputs, epsilon, axes, centred)[0])(dy, h, gamma, beta)


def _plain(x, residual, gamma, beta, seed, kind="layer", epsilon=1e-3, rate=0.0):
    h = tf.cast(x, real(x.dtype))
    if given(seed):
        h = _philox.dropped(h, seed, rate)
    if given(residual):
        h = h + tf.cast(residual, h.dtype)
    h = tf.cast(h, x.dtype)
    y, mean, rstd = normalise(h, gamma, beta, epsilon, [-1], kind == "layer")
    stats = tf.concat([tf.broadcast_to(mean, tf.shape(rstd)), rstd], -1)
    return y, h if given(seed) or given(residual) else tf.zeros([0], x.dtype), stats


def _plain_grad(dy, dsum, x, gamma, beta, stats, seed, kind="layer", rate=0.0):
    dx, dgamma, dbeta = normalise_grad(dy, x, gamma, beta, stats[..., 1:], [-1], kind == "layer")
    dx = dx + dsum if given(dsum) else dx
    if not given(seed):
        return dx, tf.zeros([0], x.dtype), dgamma, dbeta
    return _philox.dropped(dx, seed, rate), dx, dgamma, dbeta


def _gradient(node, dy, dsum, dstats):
    """Nobody sees stats but the gradient, whose own gradient does not need them: dstats is nothing."""
    x, residual, gamma, beta, seed = node.inputs
    h = node.outputs[1] if given(residual) or given(seed) else x
    dx, dresidual, dgamma, dbeta = _grad(
        dy, dsum, h, gamma, beta, node.outputs[2], seed, **node.attrs("kind", "rate"))
    return [dx, (dresidual if given(seed) else dx) if given(residual) else None, dgamma, dbeta, None]


# Axes by letters: c channels, those before them, and one of stats.
_AXES = {**dict.fromkeys(["x", "residual", "dy", "dsum"], "abdefghc"), "gamma": "c", "beta": "c", "stats": "abdefghs"}

_grad = FusedOp("NormGrad", plain=_plain_grad, axes=_AXES)
_norm = FusedOp("Norm", plain=_plain, gradient=_gradient, axes=_AXES)


def weight(op, name, w, dtype):
    """A weight as the ops take it: one vector, in what values of `dtype` are computed in. Numbers are taken for that from
    the start; what has a dtype of its own must be floats."""
    if w is None:
        return None
    w = _rows.tensor(w) if hasattr(w, "dtype") else tf.convert_to_tensor(w, real(dtype))
    if not w.dtype.is_floating:
        raise ValueError("%s: %s must be floats, got %s; cast it" % (op, name, w.dtype.name))
    if w.dtype != real(dtype):
        w = tf.cast(w, real(dtype))
    return w if w.shape.rank in (0, 1) else tf.reshape(w, [-1])


def _over(op, kind, x, gamma, beta, axis, epsilon, residual, dropout, seed):
    if not 0 <= dropout < 1:
        raise ValueError("%s: dropout must be at least 0 and less than 1, got %r" % (op, dropout))
    x = _rows.tensor(x)
    rows = _rows.Rows(op, x, axis)
    gamma, beta = (weight(op, name, w, x.dtype) for name, w in (("gamma", gamma), ("beta", beta)))
    y, h, _ = _norm(rows.take(x), None if residual is None else rows.take(_rows.tensor(residual)), gamma, beta,
                    _philox.seed_tensor(seed) if dropout else None, kind=kind, epsilon=float(epsilon), rate=float(dropout))
    return rows.give_back(y) if residual is None else (rows.give_back(y), rows.give_back(h))


@composite
def layer_norm(x, gamma=None, beta=None, axis=-1, epsilon=1e-3, residual=None, dropout=0.0, seed=None):
    """Returns (h - mean) / sqrt(variance + epsilon) * gamma + beta, where h = residual + dropout(x).

    Computed in float32, or in float64 for float64; mean and variance are over `axis`.

    Args:
      x: float tensor.
      gamma, beta: a value for each place along the axis (of several axes: their shape, or one vector), or None. Of any
        float dtype; float32 ones lose nothing beside a 16-bit x.
      axis: one axis or several.
      residual: like x, or None. If given, the result is (y, h).
      dropout: the probability that an element of x is 0 in h; the others are divided by 1 - dropout.
      seed: which elements those are: an integer, an int64 tensor of shape [], a keras.random.SeedGenerator, or None, which
        draws one at every call.

    Example:
      x, skip = tf.random.normal([32, 64]), tf.random.normal([32, 64])
      y = tfuse.layer_norm(x, tf.ones([64]), tf.zeros([64]))
      y, h = tfuse.layer_norm(x, tf.ones([64]), tf.zeros([64]), residual=skip, dropout=0.1)  # h = skip + dropout(x)
    """
    return _over("layer_norm", "layer", x, gamma, beta, axis, epsilon, residual, dropout, seed)


@composite
def rms_norm(x, gamma=None, axis=-1, epsilon=1e-6, residual=None, dropout=0.0, seed=None):
    """Returns h / sqrt(mean of h^2 + epsilon) * gamma, where h = residual + dropout(x); arguments as of tfuse.layer_norm.

    Example:
      y = tfuse.rms_norm(tf.random.normal([32, 64]), tf.ones([64]))
    """
    return _over("rms_norm", "rms", x, gamma, None, axis, epsilon, residual, dropout, seed)


LayerNormalization = layer_of(
    "LayerNormalization", lambda layer, inputs: getattr(layer, "rms_scaling", False) or tf.as_dtype(inputs.dtype) not in FLOATS,
    lambda layer, inputs: keras.ops.cast(layer_norm(inputs, layer.gamma, layer.beta, layer.axis, layer.epsilon),
                                         layer.compute_dtype), "in one pass: same arguments, same weights.", "")


class _RMSNormalization(Layer):
    """What Keras's layer has beside build() and call(), for releases before 3.9, which lack it."""
    ARGUMENTS = ("axis", "epsilon")

    def __init__(self, axis=-1, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.axis, self.epsilon, self.supports_masking = axis, epsilon, False


@keras.saving.register_keras_serializable("tfuse")
class RMSNormalization(getattr(keras.layers, "RMSNormalization", _RMSNormalization)):
    """keras.layers.RMSNormalization in one pass: same arguments, same weight, which stays float32 in mixed precision.

    Example:
      model = keras.Sequential([keras.layers.Dense(64), tfuse.RMSNormalization()])
    """

    def build(self, input_shape):
        self.axis = sorted(self.axis) if isinstance(self.axis, (list, tuple)) else [self.axis]
        as_is = {"autocast": False} if "autocast" in inspect.signature(self.add_weight).parameters else {}
        self.scale = self.add_weight(name="scale", shape=tuple(input_shape[a] for a in self.axis), initializer="ones",
                                     **as_is)
        self.built = True

    def call(self, x):
        return rms_norm(x, self.scale, axis=self.axis, epsilon=self.epsilon)
