import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import SHAPES, Case, Input, bars, cancelling, total
from tfuse.cases.rows.norm import EPSILON, moments


def _view(x, groups):
    return np.reshape(x, (x.shape[0], int(np.prod(x.shape[1:-1])), groups, x.shape[-1] // groups))


def _mean(v):
    return np.sum(v, (1, 3), keepdims=True) / max(1, v.shape[1] * v.shape[3])  # there may be no places


def _normalised(x, groups):
    v = _view(x, groups)
    mean = _mean(v)
    rstd = 1 / np.sqrt(_mean((v - mean)**2) + EPSILON)
    return (v - mean) * rstd, v, mean, rstd


def _reference(x, gamma=1.0, beta=0.0, groups=4):
    _, v, mean, rstd = _normalised(x, groups)
    return cancelling(*(np.broadcast_to(t, v.shape).reshape(x.shape) * gamma for t in (v * rstd, -mean * rstd)),
                      np.broadcast_to(beta, x.shape))


def _gradient(dy, x, gamma=None, beta=None, groups=4):
    n, v, mean, rstd = _normalised(x, groups)
    g = _view(dy if gamma is None else dy * gamma, groups)
    slope = rstd**2 * _mean(g * n)
    dx = cancelling(*(np.broadcast_to(t, v.shape).reshape(x.shape)
                      for t in (rstd * g, -rstd * _mean(g), -v * slope, mean * slope)))
    rows = tuple(range(x.ndim - 1))
    return [dx] if gamma is None else [dx, total(dy * np.reshape(n, x.shape), rows), total(dy, rows)]


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
                rival=functools.partial(_plain, moments=tf.nn.moments), reference=_reference, gradient=_gradient,
                inputs={"x": lambda shape: shape, **{w: channels for w in weights}},
                fit=lambda shape: (*shape[:-1], -(-shape[-1] // 12) * 12), summed=lambda shape: int(np.prod(shape[1:])), **more)


CASES = [
    _case("group_norm", "gamma", "beta", options=[{"groups": 1}, {"groups": 4}], timed=[{"groups": 32}],
          shapes=SHAPES + [(3, 0, 12), (5, 7, 9, 24), (2, 1000, 36)],
          sizes=[(16384, 8192), (64, 56, 56, 256)],
          bars=bars((16384, 8192), (64, 56, 56, 256), forward=90, backward=90), rejects=[
              ("group_norm: groups must divide the channels of x, got 4 groups for 6 channels",
               lambda: tfuse.group_norm(tf.ones([2, 6]), groups=4)),
              ("group_norm: x must have two dimensions or more, samples first, got shape .3.",
               lambda: tfuse.group_norm(tf.ones([3]))),
              ("group_norm: axis must not be that of the samples, 0, got -2",
               lambda: tfuse.group_norm(tf.ones([4, 4]), axis=-2, groups=2)),
              ("group_norm: x must be float32.*got int32", lambda: tfuse.group_norm(tf.ones([2, 4], tf.int32), groups=2)),
              ("gamma must have the shape of x's channels, .4., got .3.", lambda: tfuse.group_norm(tf.ones([2, 4]), tf.ones([3]), groups=2)),
          ]),
    _case("group_norm without weights", options=[{"groups": 4}], sizes=[]),
]
