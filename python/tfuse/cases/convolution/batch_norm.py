import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import SHAPES, Case, Input, bars, cancelling, total
from tfuse.cases.elementwise.scale_bias_act import slope, value
from tfuse.cases.rows.norm import EPSILON, moments
from tfuse.elementwise.scale_bias_act import PLAIN

_MOMENTUM = 0.75
_WEIGHTS = ["gamma", "beta", "mean", "variance"]


def _axes(x, axis):
    """All but that of the channels."""
    return tuple(a for a in range(x.ndim) if a != axis % x.ndim)


def _wide(v, x, axis):
    return np.reshape(v, [-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])


def _mean(v, axes):
    return np.sum(v, axes, keepdims=True) / max(1, np.prod([v.shape[a] for a in axes]))  # there may be no values


class _Parts:
    """What value and gradients are made of. gamma and beta may be None."""

    def __init__(self, x, gamma, beta, mean, variance, residual, training, activation, axis):
        wide = lambda v: _wide(v, x, axis)
        self.axes, self.axis = _axes(x, axis), axis
        self.mean, self.variance = wide(mean), wide(variance)
        if training:
            self.mean = _mean(x, self.axes)
            self.variance = _mean((x - self.mean)**2, self.axes)
        self.rstd = 1 / np.sqrt(self.variance + EPSILON)
        self.scale = self.rstd * (1 if gamma is None else wide(gamma))
        self.terms = [x * self.scale, -self.mean * self.scale, 0 if beta is None else wide(beta),
                      0 if residual is None else residual]
        self.z = sum(np.broadcast_to(t, x.shape) for t in self.terms)


def _by_name(f, names):
    """f with the inputs of a case, in its order, by name; those that it lacks are None."""
    def call(*inputs, **options):
        given = dict(zip(names, inputs))
        return f(given["x"], *(given.get(name) for name in [*_WEIGHTS, "residual"]), **options)
    return call


def _reference(x, gamma, beta, mean, variance, residual, training=True, activation="linear", axis=-1):
    p = _Parts(x, gamma, beta, mean, variance, residual, training, activation, axis)
    y = cancelling(*p.terms) if activation == "linear" else value(p.z, activation)
    if not training:
        return y
    new = (1 - _MOMENTUM) * (x.size > 0)
    return [y, *(old * (1 - new) + np.ravel(batch) * new for old, batch in ((mean, p.mean), (variance, p.variance)))]


def _gradient(dy, x, gamma, beta, mean, variance, residual, training=True, activation="linear", axis=-1):
    p = _Parts(x, gamma, beta, mean, variance, residual, training, activation, axis)
    g = (dy[0] if training else dy) * slope(p.z, activation)
    n, flat = (x - p.mean) * p.rstd, lambda terms: total(np.broadcast_to(terms, x.shape), p.axes)
    dx = p.scale * g
    if training:
        bend = p.scale * p.rstd * _mean(g * n, p.axes)
        dx = cancelling(dx, -p.scale * _mean(g, p.axes), -x * bend, p.mean * bend)
    gradients = [dx]
    if gamma is not None:
        gradients += [flat(g * n), flat(g)]
    if not training:
        gradients += [flat(-g * p.scale), flat(-0.5 * g * n * p.scale * p.rstd)]
    return gradients + ([g] if residual is not None else [])


def _plain(x, gamma, beta, mean, variance, residual, training=True, activation="linear", axis=-1, moments=moments):
    """As Keras has it: in float32, then rounded, added and activated in x's dtype."""
    rank, h = x.shape.rank, tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
    axes = [a for a in range(rank) if a != axis % rank]
    wide = lambda v: tf.reshape(v, [1 if a in axes else -1 for a in range(rank)])
    batch = m, v = wide(mean), wide(variance)
    if training:
        batch = m, v = moments(h, axes, keepdims=True)
    y = (h - m) * tf.math.rsqrt(v + EPSILON)
    if gamma is not None:
        y = y * wide(gamma) + wide(beta)
    y = tf.cast(y, x.dtype)
    y = PLAIN[activation](y if residual is None else y + residual)
    running = lambda old, new: tf.stop_gradient(old * _MOMENTUM + tf.reshape(new, [-1]) * (1 - _MOMENTUM))
    return [y, running(mean, batch[0]), running(variance, batch[1])] if training else y


def _run(x, gamma, beta, mean, variance, residual, training=True, activation="linear", axis=-1):
    results = tfuse.batch_norm(x, gamma, beta, mean, variance, training, activation, residual, axis, _MOMENTUM, EPSILON)
    return list(results) if training else results[0]


def _case(name, weights=True, residual=False, training=True, axis=-1, options=({},), timed=(), **more):
    shared = {**({} if training else {"training": False}), **({} if axis == -1 else {"axis": axis})}
    channels = lambda shape: (shape[axis],)
    vector = functools.partial(Input, channels, dtype="real")
    inputs = {"x": lambda shape: shape, **({"gamma": vector(), "beta": vector()} if weights else {}),
              "mean": vector(gradient=not training),
              "variance": vector(lambda rng, own, shape: rng.uniform(0.5, 2, own), gradient=not training),
              **({"residual": lambda shape: shape} if residual else {})}
    by_name = lambda f: _by_name(f, list(inputs))
    gradient = lambda dy, *given, **chosen: by_name(functools.partial(_gradient, dy))(*given, **chosen)
    outputs = {"value": lambda shape: shape}
    if training:
        outputs.update({"new mean": vector(), "new variance": vector()})
    return Case(name=name, run=by_name(_run), plain=by_name(_plain), reference=by_name(_reference), gradient=gradient,
                rival=by_name(functools.partial(_plain, moments=tf.nn.moments)), inputs=inputs, outputs=outputs,
                options=[{**shared, **chosen} for chosen in options], timed=[{**shared, **chosen} for chosen in timed],
                summed=lambda shape: int(np.prod(shape[:-1])), **more)


_SIZE = (256, 56, 56, 256)
_FIRST = [(4, 8), (7, 3), (3, 5, 129), (2, 6, 7, 7), (1, 3, 1000), (300, 2, 9), (0, 4, 3), (3, 4, 0), (65, 16, 8, 8)]
_acts = lambda *names: [{"activation": name} for name in names]

CASES = [
    # Of x and residual, passes over memory: x for the statistics; both, and the result. Backward: dy and x, and the
    # residual's gradient; that, x, and x's gradient. The result's signs are a sixteenth of a pass each way.
    _case("batch_norm", residual=True, options=_acts("linear", "relu", "silu"), timed=_acts("relu"), sizes=[_SIZE],
          passes=(4, 6), shapes=SHAPES + [(2, 0, 5), (5, 7, 9, 24), (1000, 36)],
          bars=bars(_SIZE, dtypes=("bfloat16",), forward=85, backward=85), rejects=[
              ("batch_norm: x must have two dimensions or more, got shape .3.",
               lambda: tfuse.batch_norm(tf.ones([3]), None, None, tf.zeros([3]), tf.ones([3]), True)),
              ("batch_norm: axis must be one of the 2 axes of x .4, 3., got 2",
               lambda: tfuse.batch_norm(tf.ones([4, 3]), None, None, tf.zeros([3]), tf.ones([3]), True, axis=2)),
              ("batch_norm: residual must have the shape of x, .4, 3., got .3, 4.",
               lambda: tfuse.batch_norm(tf.ones([4, 3]), None, None, tf.zeros([3]), tf.ones([3]), True,
                                        residual=tf.ones([3, 4]))),
              ("batch_norm: x must be float32.*got int32",
               lambda: tfuse.batch_norm(tf.ones([4, 3], tf.int32), None, None, tf.zeros([3]), tf.ones([3]), True)),
              ("gamma must have the shape of x's channels, .3., got .4.",
               lambda: tfuse.batch_norm(tf.ones([4, 3]), tf.ones([4]), None, tf.zeros([3]), tf.ones([3]), True)),
              ("variance must have the shape of x's channels, .3., got .4.",
               lambda: tfuse.batch_norm(tf.ones([4, 3]), None, None, tf.zeros([3]), tf.ones([4]), False)),
              ("residual must be bfloat16 like x, got float32",
               lambda: tfuse.batch_norm(tf.ones([4, 3], tf.bfloat16), None, None, tf.zeros([3]), tf.ones([3]), True,
                                        residual=tf.ones([4, 3]))),
              ("batch_norm: mean must be floats, got int32; cast it",
               lambda: tfuse.batch_norm(tf.ones([4, 3]), None, None, tf.zeros([3], tf.int32), tf.ones([3]), True)),
              ("activation must be one of linear, relu, .* or None, got 'swoosh'",
               lambda: tfuse.batch_norm(tf.ones([4, 3]), None, None, tf.zeros([3]), tf.ones([3]), True, "swoosh")),
          ]),
    _case("batch_norm, no residual", options=_acts(*PLAIN), timed=_acts("linear", "relu", "silu"), sizes=[_SIZE],
          passes=(3, 5)),
    _case("batch_norm, no weights", weights=False, options=_acts("relu"), sizes=[]),
    _case("batch_norm, channels first", axis=1, residual=True, options=_acts("relu", "gelu"), shapes=_FIRST, sizes=[]),
    _case("batch_norm, frozen", training=False, options=_acts("linear", "relu", "tanh"), sizes=[_SIZE], passes=(2, 3),
          timed=_acts("relu")),
    _case("batch_norm, frozen, residual", training=False, residual=True, options=_acts("linear", "relu", "mish"),
          sizes=[_SIZE], passes=(3, 7), timed=_acts("relu")),
    _case("batch_norm, frozen, channels first", training=False, axis=1, options=_acts("silu"), shapes=_FIRST, sizes=[]),
]
