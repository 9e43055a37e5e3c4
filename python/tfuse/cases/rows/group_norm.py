import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import SHAPES, Case, Input, Timed, bars, cancelling, each, ones, refusing, total, volume
from tfuse.cases.rows.norm import EPSILON, Normalised, moments


def _view(x, groups):
    return np.reshape(x, (x.shape[0], volume(x.shape[1:-1]), groups, x.shape[-1] // groups))


def _normalised(x, groups):
    return Normalised(_view(x, groups), (1, 3))


def _reference(x, gamma=1.0, beta=0.0, groups=4):
    v = _normalised(x, groups)
    return cancelling(*(np.broadcast_to(t, v.x.shape).reshape(x.shape) * gamma for t in (v.x * v.rstd, -v.mean * v.rstd)),
                      np.broadcast_to(beta, x.shape))


def _gradient(dy, x, gamma=None, beta=None, groups=4):
    v = _normalised(x, groups)
    terms = v.back(_view(dy if gamma is None else dy * gamma, groups))
    dx, rows = cancelling(*(np.broadcast_to(t, v.x.shape).reshape(x.shape) for t in terms)), tuple(range(x.ndim - 1))
    return [dx] if gamma is None else [dx, total(dy * np.reshape(v.n, x.shape), rows), total(dy, rows)]


def _plain(x, gamma=None, beta=None, groups=4, moments=moments):
    shape = tf.shape(x)
    v = tf.reshape(x, [shape[0], tf.reduce_prod(shape[1:-1]), groups, x.shape[-1] // groups])
    v = tf.cast(v, tf.float64 if x.dtype == tf.float64 else tf.float32)
    mean, variance = moments(v, [1, 3], keepdims=True)
    y = (v - mean) * tf.math.rsqrt(variance + EPSILON)
    if gamma is not None:
        y = y * tf.reshape(gamma, [groups, -1]) + tf.reshape(beta, [groups, -1])
    return tf.cast(tf.reshape(y, shape), x.dtype)


def _case(name, *weights, **more):
    channels = Input(lambda shape: shape[-1:], dtype="real")
    return Case(name=name, run=lambda *a, **o: tfuse.group_norm(*a, **o, epsilon=EPSILON), plain=_plain,
                reference=_reference, gradient=_gradient,
                inputs={"x": lambda shape: shape, **{w: channels for w in weights}},
                fit=lambda shape: (*shape[:-1], -(-shape[-1] // 12) * 12), summed=lambda shape: volume(shape[1:]), **more)


_SIZES = [(16384, 8192), (64, 56, 56, 256)]
_refused = refusing(tfuse.group_norm, x=ones(2, 4), groups=2)
CASES = [
    _case("group_norm", "gamma", "beta", options=each("groups", [1, 4]),
          shapes=SHAPES + [(3, 0, 12), (5, 7, 9, 24), (2, 1000, 36)], rejects=[
              _refused("group_norm: groups must divide the channels of x, got 4 groups for 6 channels", x=ones(2, 6), groups=4),
              _refused("group_norm: x must have two dimensions or more, samples first, got shape .3.", x=ones(3)),
              _refused("group_norm: axis must not be that of the samples, 0, got -2", x=ones(4, 4), axis=-2),
              _refused("group_norm: x must be float32.*got int32", x=ones(2, 4, dtype=tf.int32)),
              _refused("gamma must have the shape of x's channels, .4., got .3.", gamma=ones(3)),
          ]),
    _case("group_norm without weights", options=each("groups", [4])),
]
TIMES = [Timed(CASES[0], _SIZES, each("groups", [32]), rival=functools.partial(_plain, moments=tf.nn.moments),
               bars=bars(*_SIZES, forward=90, backward=90))]
