"""Batch normalisation with the residual and the activation that follow it, and the Keras layer."""

import keras
import numpy as np
import tensorflow as tf

from tfuse._core import _library, _made, _rows, _sizes
from tfuse._core._op import FLOATS, FusedOp, composite, given, real, sized, vjp
from tfuse.elementwise.scale_bias_act import PLAIN, activation_name
from tfuse.rows.norm import weight

# x is [outer, channels, inner], and what is per channel a vector.


def _apply(x, gamma, beta, mean, variance, residual, activation="linear", epsilon=1e-3):
    wide = lambda v: v[:, None]
    y = (tf.cast(x, real(x.dtype)) - wide(mean)) * wide(tf.math.rsqrt(variance + epsilon))
    if given(gamma):
        y = y * wide(gamma)
    if given(beta):
        y = y + wide(beta)
    if given(residual):
        y = y + tf.cast(residual, y.dtype)
    return tf.cast(PLAIN[activation](y), x.dtype)


def _count(x):
    """Values of a channel."""
    return tf.cast(tf.shape(x)[0], real(x.dtype)) * tf.cast(tf.shape(x)[2], real(x.dtype))


def _moments(x):
    """Mean and biased variance of each channel; 0 where there are no values."""
    h, count = tf.cast(x, real(x.dtype)), tf.maximum(_count(x), 1)
    mean = tf.reduce_sum(h, [0, 2]) / count
    return mean, tf.reduce_sum(tf.square(h - mean[:, None]), [0, 2]) / count


def _plain_statistics(x, mean, variance, shift, update=0.01):
    batch_mean, batch_variance = _moments(x)
    new = tf.where(_count(x) > 0, tf.constant(update, mean.dtype), 0)
    shifted = batch_mean + tf.cast(tf.cast(shift, x.dtype), mean.dtype) if given(shift) else batch_mean
    return mean * (1 - new) + shifted * new, variance * (1 - new) + batch_variance * new, batch_mean, batch_variance


def _bits(dtype):
    """Of the elements behind a word of signs, the bit of each: a byte of the word is for 16 bytes of them."""
    pack = 16 // dtype.size
    return np.uint64([1 << 8 * byte + k for byte in range(8) for k in range(pack)]).view(np.int64)


def _words(x):
    """How many words the signs of a tensor like x have: one for every 128 bytes. The product of all sizes may be too large for
    an int32, which a tensor of sizes is: (word * a + b) * (word * c + d) / word is taken by parts."""
    word, outer, columns = 128 // x.dtype.size, _rows.size(x, 0), _rows.product([_rows.size(x, 1), _rows.size(x, 2)])
    b, c, d = outer % word, columns // word, columns % word
    return outer // word * columns + b * c + (b * d + word - 1) // word


def _signs(y):
    """Where y > 0, as BatchNorm gives it."""
    bits, words = _bits(y.dtype), _words(y)
    above = tf.reshape(y > 0, [-1])
    above = tf.reshape(tf.pad(above, [[0, words * len(bits) - tf.size(above)]]), [-1, len(bits)])
    return tf.reduce_sum(tf.where(above, bits, np.int64(0)), 1, keepdims=True)


def _from_signs(signs, x):
    """Where the y that they are made from, which is like x, is above 0."""
    above = tf.reshape(tf.bitwise.bitwise_and(signs, _bits(x.dtype)) != 0, [-1])
    return tf.reshape(above[:tf.size(x)], tf.shape(x))


def _plain(x, gamma, beta, mean, variance, residual, signs_for, activation="linear", epsilon=1e-3):
    y = _apply(x, gamma, beta, mean, variance, residual, activation, epsilon)
    return y, _signs(y) if given(signs_for) else tf.constant([], tf.int64)


def _through_kept(dy, kept, activation):
    """What is left of a gradient where `kept` is relu's result: dy, residual, activation."""
    if activation != "relu" or not given(kept):
        return dy, kept, activation
    return _through_relu(dy, kept > 0)


def _through_relu(dy, above):
    return tf.where(above, dy, tf.zeros_like(dy)), tf.zeros_like(dy), "linear"


def _added(dy, dy_more):
    """Their sum as the kernels take it: in the type of arithmetic, then rounded once."""
    if not given(dy_more):
        return dy
    return tf.cast(tf.cast(dy, real(dy.dtype)) + tf.cast(dy_more, real(dy.dtype)), dy.dtype)


def _plain_grad(dy, x, gamma, beta, mean, variance, kept, dy_more, signs, activation="linear", epsilon=1e-3):
    """Mean and variance are functions of x, also to whoever differentiates this again."""
    dy = _added(dy, dy_more)
    dy, residual, activation = (_through_relu(dy, _from_signs(signs, x)) if given(signs) else
                                _through_kept(dy, kept, activation))
    forward = lambda x, gamma, beta, residual: _apply(x, gamma, beta, *_moments(x), residual, activation, epsilon)
    dx, dgamma, dbeta, dresidual = vjp(forward)(dy, x, gamma, beta, residual)
    return dx, dresidual, dgamma, dbeta


def _plain_frozen_grad(dy, x, gamma, beta, mean, variance, kept, dy_more, activation="linear", epsilon=1e-3):
    dy, residual, activation = _through_kept(_added(dy, dy_more), kept, activation)
    forward = lambda *inputs: _apply(*inputs, activation, epsilon)
    dx, *weights, dresidual = vjp(forward)(dy, x, gamma, beta, mean, variance, residual)
    return dx, dresidual, *weights


def _bends(node):
    """Whether an activation follows a residual."""
    return given(node.inputs[5]) and node.attr("activation") != "linear"


def _kept(node):
    """What the gradient wants of a residual, where it has no signs."""
    if not _bends(node):
        return None
    return node.outputs[0] if node.attr("activation") == "relu" else node.inputs[5]


def _gradient(node, dy, _):
    """Through mean and variance, too, which then need none."""
    first, more = _addends(node, dy)
    by_signs = node.attr("activation") == "relu" and given(node.inputs[6])
    kept, signs = (None, node.outputs[1]) if by_signs else (_kept(node), None)
    dx, dresidual, dgamma, dbeta = _grad(first, *node.inputs[:5], kept, more, signs, **node.attrs(*_OPTIONS))
    return [dx, dgamma, dbeta, None, None, _dresidual(node, dresidual, dy), None]


def _frozen_gradient(node, dy):
    first, more = _addends(node, dy)
    dx, dresidual, *dweights = _frozen_grad(first, *node.inputs[:5], _kept(node), more, **node.attrs(*_OPTIONS))
    return [dx, *dweights, _dresidual(node, dresidual, dy)]


def _addends(node, dy):
    """dy as two tensors where it is their sum, as where the result was read twice, and nobody else wants the sum; else dy and
    None. Only while a function is traced is it known what made a tensor: the sum is then left without a reader."""
    dresidual_is_dy = given(node.inputs[5]) and not _bends(node)
    return (dy, None) if dresidual_is_dy else _made.addends(dy) or (dy, None)


def _dresidual(node, dresidual, dy):
    return None if not given(node.inputs[5]) else dresidual if _bends(node) else dy


_OPTIONS = ("activation", "epsilon")
# Axes by letters: outer, channels, inner; words of signs.
_AXES = {**dict.fromkeys(["x", "residual", "dy", "kept", "dy_more"], "oci"), "signs": "w1", "signs_for": "w0",
         **dict.fromkeys(["gamma", "beta", "mean", "variance", "shift"], "c")}

_grad = FusedOp("BatchNormGrad", plain=_plain_grad, axes=_AXES)
_frozen_grad = FusedOp("FrozenBatchNormGrad", plain=_plain_frozen_grad, axes=_AXES)
_statistics = FusedOp("BatchNormStatistics", plain=_plain_statistics, axes=_AXES)
_batch_norm = FusedOp("BatchNorm", plain=_plain, gradient=_gradient, axes=_AXES)
_frozen = FusedOp("FrozenBatchNorm", plain=_apply, gradient=_frozen_gradient, axes=_AXES)


def _view(x, axis):
    """x as [outer, channels, inner], which moves no data."""
    rank = x.shape.rank
    sizes, product = tf.shape(x), tf.reduce_prod
    if rank is not None:
        sizes, product = _rows.sizes(x), _rows.product
    return tf.reshape(x, [product(sizes[:axis]), sizes[axis], product(sizes[axis + 1:] if axis + 1 else sizes[:0])])


def _check(x, residual, axis):
    _batch_norm.check_dtype(x.dtype)
    rank = x.shape.rank
    if rank is not None and rank < 2:
        raise ValueError("batch_norm: x must have two dimensions or more, got shape %s" % x.shape.as_list())
    if rank is not None and not -rank <= axis < rank:
        raise ValueError("batch_norm: axis must be one of the %d axes of x %s, got %d" % (rank, x.shape.as_list(), axis))
    if residual is not None and not x.shape.is_compatible_with(residual.shape):
        raise ValueError("batch_norm: residual must have the shape of x, %s, got %s" % (x.shape, residual.shape))


def _like(x, residual):
    """The residual in the shape of x. The ops see both with their axes merged, and could not tell [1, 5] from [5, 1]; where the
    shapes are not surely the same, TensorFlow compares them when they are known, and does nothing if they are equal."""
    return residual if _sizes.same_shape(x, residual) else tf.broadcast_to(residual, tf.shape(x))


@composite
def batch_norm(x, gamma, beta, mean, variance, training, activation=None, residual=None, axis=-1, momentum=0.99,
               epsilon=1e-3):
    """Returns act((x - m) / sqrt(v + epsilon) * gamma + beta + residual), and the running mean and variance.

    In training, m and v are the mean and the biased variance of each channel, over all else of x, and the running ones
    become running * momentum + batch * (1 - momentum), as Keras has it; these have no gradient, and stay as they are
    where x is empty. Else m and v are `mean` and `variance`, which are returned as they are. Computed in float32, or in
    float64 for float64.

    Args:
      x: float tensor of two dimensions or more.
      gamma, beta: a value per channel, or None; of any float dtype. float32 ones lose nothing beside a 16-bit x.
      mean, variance: the running ones, a value per channel each.
      training: whether to normalise by x's own mean and variance.
      activation: as in tfuse.scale_bias_act.
      residual: like x, or None.
      axis: that of the channels.

    Example:
      x, skip = tf.random.normal([8, 14, 14, 64]), tf.random.normal([8, 14, 14, 64])
      y, mean, variance = tfuse.batch_norm(x, tf.ones([64]), tf.zeros([64]), tf.zeros([64]), tf.ones([64]), training=True,
                                           activation="relu", residual=skip)
    """
    return _normalised(x, gamma, beta, mean, variance, training, activation, residual, axis, momentum, epsilon)


def _normalised(x, gamma, beta, mean, variance, training, activation=None, residual=None, axis=-1, momentum=0.99,
                epsilon=1e-3, shift=None):
    """batch_norm(); the running mean as if shift, a value per channel in real(x's dtype) that is rounded to x's, were added
    to x in training."""
    x, axis = _rows.tensor(x), int(axis)
    residual = None if residual is None else _rows.tensor(residual)
    _check(x, residual, axis)
    weights = [weight("batch_norm", name, w, x.dtype) for name, w in
               (("gamma", gamma), ("beta", beta), ("mean", mean), ("variance", variance))]
    activation, view, statistics = activation_name(activation), _view(x, axis), weights[2:]
    mean, variance = statistics
    if training:
        mean, variance, *statistics = _statistics(view, *statistics, shift, update=1 - float(momentum))
        mean, variance = tf.stop_gradient(mean), tf.stop_gradient(variance)

    def apply(activation, residual):
        inputs = [view, *weights[:2], *statistics, None if residual is None else _view(_like(x, residual), axis)]
        options = {"activation": activation, "epsilon": float(epsilon)}
        if training:
            # On a CPU making signs takes longer than reading y again.
            wanted = residual is not None and activation == "relu" and not _library.without_gpu()
            y, _ = _batch_norm(*inputs, sized(_words(view)) if wanted else None, **options)
        else:
            y = _frozen(*inputs, **options)
        y = tf.reshape(y, tf.shape(x))
        y.set_shape(x.shape)
        return y

    y = apply(activation, residual)
    if activation == "linear" and residual is None:
        _made.keep(y, _made.Unfinished(x, "BatchNorm", "a batch norm", True, apply))
    return y, mean, variance


@keras.saving.register_keras_serializable("tfuse")
class BatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization in as few passes over memory as it needs: same arguments, same weights.

    With a mask, or with synchronized=True in training, the statistics are Keras's own; renorm=True is left to Keras.

    Example:
      model = keras.Sequential([keras.layers.Conv2D(64, 3, use_bias=False), tfuse.BatchNormalization()])
    """

    def call(self, inputs, training=None, mask=None):
        odd = mask is not None and len(mask.shape) != len(inputs.shape) - 1  # which Keras refuses
        if odd or getattr(self, "renorm", False) or tf.as_dtype(inputs.dtype) not in FLOATS:
            return super().call(inputs, training=training, mask=mask)
        return keras.ops.cast(normalise(self, inputs, training, mask), self.compute_dtype)


@tf.custom_gradient
def _beside(beta, bias):
    """beta; the bias has a gradient as well, and it is 0."""
    return tf.identity(beta), lambda dbeta: (dbeta, tf.zeros_like(bias))


def normalise(layer, inputs, training, mask, axis=None, bias=None):
    """What a Keras BatchNormalization does, its running statistics included. axis: that of the channels, where they are not the
    layer's. bias: one that the inputs lack, in training, without a mask, of a layer with beta; the running mean has it, and its
    gradient is 0."""
    training = bool(training) and layer.trainable
    mean, variance, beta = layer.moving_mean, layer.moving_variance, layer.beta
    whole = mask is None and not layer.synchronized
    if training and not whole:
        moments = layer._moments(keras.ops.cast(inputs, real(tf.as_dtype(inputs.dtype)).name), mask)
        mean, variance = (tf.reshape(m, [-1]) for m in moments)  # Keras squeezes the axis of a single channel, too
    if bias is not None:
        bias = tf.cast(bias, real(inputs.dtype))
        beta = _beside(tf.convert_to_tensor(beta), bias)
    y, new_mean, new_variance = _normalised(
        inputs, layer.gamma, beta, mean, variance, training and whole, axis=layer.axis if axis is None else axis,
        momentum=layer.momentum, epsilon=layer.epsilon, shift=bias)
    if training:
        running = [(layer.moving_mean, new_mean), (layer.moving_variance, new_variance)]
        for variable, new in running:
            old = keras.ops.cast(variable, new.dtype)  # a layer's own dtype may have 16 bits
            variable.assign(new if whole else old * layer.momentum + new * (1 - layer.momentum))
    return y
