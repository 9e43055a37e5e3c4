"""Group and instance normalisation in one pass over memory, and the Keras layer."""

import keras
import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._layer import layer_of
from tfuse._core._op import FLOATS, FusedOp, composite, given
from tfuse.rows.norm import normalise, normalise_grad, weight

_AXES = [1, 3]  # of [samples, positions, groups, channels of a group]


def _per_channel(w, x):
    return tf.reshape(w, tf.shape(x)[2:]) if given(w) else w


def _plain(x, gamma, beta, epsilon=1e-3):
    y, mean, rstd = normalise(x, _per_channel(gamma, x), _per_channel(beta, x), epsilon, _AXES)
    return y, tf.stack([mean[:, 0, :, 0], rstd[:, 0, :, 0]], -1)


def _plain_grad(dy, x, gamma, beta, stats):
    rstd = stats[:, None, :, 1:]
    dx, dgamma, dbeta = normalise_grad(dy, x, _per_channel(gamma, x), _per_channel(beta, x), rstd, _AXES)
    return dx, tf.reshape(dgamma, tf.shape(gamma)), tf.reshape(dbeta, tf.shape(beta))


# Axes by letters: samples, positions, groups, channels of a group; all channels; numbers of stats.
_LETTERS = {"x": "spgc", "dy": "spgc", "gamma": "a", "beta": "a", "stats": "sgn"}

_grad = FusedOp("GroupNormGrad", plain=_plain_grad, axes=_LETTERS)
_group_norm = FusedOp("GroupNorm", plain=_plain, axes=_LETTERS,  # of stats see norm.py
                      gradient=lambda node, dy, dstats: _grad(dy, *node.inputs, node.outputs[1]))


@composite
def group_norm(x, gamma=None, beta=None, groups=32, axis=-1, epsilon=1e-3):
    """Returns (x - mean) / sqrt(variance + epsilon) * gamma + beta, with mean and variance over all positions of a sample and
    the channels of a group.

    Computed in float32, or in float64 for float64.

    Args:
      x: float tensor, [samples, ..., channels].
      gamma, beta: a value per channel, or None; of any float dtype.
      groups: how many the channels are cut into; it must divide them. -1: a group per channel, which is instance
        normalisation.
      axis: that of the channels.

    Example:
      y = tfuse.group_norm(tf.random.normal([2, 8, 8, 64]), tf.ones([64]), tf.zeros([64]), groups=8)
    """
    x = _rows.tensor(x)
    rank = x.shape.rank
    if rank is not None and rank < 2:
        raise ValueError("group_norm: x must have two dimensions or more, samples first, got shape %s" % x.shape.as_list())
    rows = _rows.Rows("group_norm", x, axis)
    if rank is not None and axis % rank == 0:
        raise ValueError("group_norm: axis must not be that of the samples, 0, got %d" % axis)
    moved = rows.take(x)
    shape = tf.shape(moved) if rank is None else _rows.sizes(moved)
    positions = tf.reduce_prod(shape[1:-1]) if rank is None else _rows.product(shape[1:-1])
    groups = shape[-1] if groups == -1 else groups
    if isinstance(shape[-1], int) and (groups < 1 or shape[-1] % groups):
        raise ValueError("group_norm: groups must divide the channels of x, got %d groups for %d channels" % (
            groups, shape[-1]))
    view = tf.reshape(moved, [shape[0], positions, groups, shape[-1] // groups])
    gamma, beta = (weight("group_norm", name, w, x.dtype) for name, w in (("gamma", gamma), ("beta", beta)))
    y, _ = _group_norm(view, gamma, beta, epsilon=float(epsilon))
    return rows.give_back(tf.reshape(y, shape))


GroupNormalization = layer_of(
    "GroupNormalization", lambda layer, inputs: tf.as_dtype(inputs.dtype) not in FLOATS, lambda layer, inputs: keras.ops.cast(
        group_norm(inputs, layer.gamma, layer.beta, layer.groups, layer.axis, layer.epsilon), layer.compute_dtype),
    "in one pass: same arguments, same weights.", "groups=8")
