import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import SHAPES, Case, Input, Timed, bars, by_name, cancelling, each, ones, refusing, total, volume
from tfuse.cases.elementwise.scale_bias_act import plain_epilogue, slope, value
from tfuse.cases.rows.norm import EPSILON, Normalised, moments
from tfuse.elementwise.scale_bias_act import PLAIN

_MOMENTUM = 0.75


class _Parts(Normalised):
    """What value and gradients are made of. gamma and beta may be None."""

    def __init__(self, x, mean, variance, gamma, beta, residual, training, axis):
        self.axes = tuple(a for a in range(x.ndim) if a != axis % x.ndim)
        self.wide = lambda v: np.reshape(v, [1 if a in self.axes else -1 for a in range(x.ndim)])
        super().__init__(x, self.axes, **({} if training else {"mean": self.wide(mean), "variance": self.wide(variance)}))
        self.gamma = 1 if gamma is None else self.wide(gamma)
        self.scale = self.rstd * self.gamma
        self.terms = [x * self.scale, -self.mean * self.scale, 0 if beta is None else self.wide(beta),
                      0 if residual is None else residual]
        self.z = sum(np.broadcast_to(t, x.shape) for t in self.terms)


def _reference(x, mean, variance, gamma=None, beta=None, residual=None, training=True, activation="linear", axis=-1):
    p = _Parts(x, mean, variance, gamma, beta, residual, training, axis)
    y = cancelling(*p.terms) if activation == "linear" else value(p.z, activation)
    if not training:
        return y
    new = (1 - _MOMENTUM) * (x.size > 0)
    return [y, *(old * (1 - new) + np.ravel(batch) * new for old, batch in ((mean, p.mean), (variance, p.variance)))]


def _gradient(dy, x, mean, variance, gamma=None, beta=None, residual=None, training=True, activation="linear", axis=-1):
    p = _Parts(x, mean, variance, gamma, beta, residual, training, axis)
    g = (dy[0] if training else dy) * slope(p.z, activation)
    flat = lambda terms: total(np.broadcast_to(terms, x.shape), p.axes)
    gradients = [cancelling(*p.back(g * p.gamma)) if training else p.scale * g]
    if gamma is not None:
        gradients += [flat(g * p.n), flat(g)]
    if not training:
        gradients += [flat(-g * p.scale), flat(-0.5 * g * p.n * p.scale * p.rstd)]
    return gradients + ([g] if residual is not None else [])


def _plain(x, mean, variance, gamma=None, beta=None, residual=None, training=True, activation="linear", axis=-1,
           moments=moments):
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
    y = plain_epilogue(tf.cast(y, x.dtype), residual, activation)
    running = lambda old, new: tf.stop_gradient(old * _MOMENTUM + tf.reshape(new, [-1]) * (1 - _MOMENTUM))
    return [y, running(mean, batch[0]), running(variance, batch[1])] if training else y


def _run(x, mean, variance, gamma=None, beta=None, residual=None, training=True, activation="linear", axis=-1):
    results = tfuse.batch_norm(x, gamma, beta, mean, variance, training, activation, residual, axis, _MOMENTUM, EPSILON)
    return list(results) if training else results[0]


def statistics(channels, training):
    """Inputs of one value for each channel."""
    vector = functools.partial(Input, channels, dtype="real")
    return {"gamma": vector(), "beta": vector(), "mean": vector(gradient=not training),
            "variance": vector(lambda rng, own, shape: rng.uniform(0.5, 2, own), gradient=not training)}


def results(out, channels, training):
    vector = Input(channels, dtype="real")
    return {"value": out, **({"new mean": vector, "new variance": vector} if training else {})}


def _case(name, weights=True, residual=False, training=True, axis=-1, options=({},), **more):
    shared = {**({} if training else {"training": False}), **({} if axis == -1 else {"axis": axis})}
    like, channels = (lambda shape: shape), (lambda shape: (shape[axis],))
    left_out = [*["gamma", "beta"] * (not weights), *["residual"] * (not residual)]
    inputs = {"x": like, **statistics(channels, training), "residual": like}
    inputs = {name: i for name, i in inputs.items() if name not in left_out}
    return Case(name=name, run=by_name(_run, inputs), plain=by_name(_plain, inputs), reference=by_name(_reference, inputs),
                gradient=by_name(_gradient, ["dy", *inputs]), inputs=inputs, outputs=results(like, channels, training),
                options=[{**shared, **chosen} for chosen in options], summed=lambda shape: volume(shape[:-1]), **more)


def _timed(case, *activations, **more):
    shared = {name: value for name, value in case.options[0].items() if name != "activation"}
    return Timed(case, [_SIZE], [{**shared, "activation": a} for a in activations],
                 rival=by_name(_plain, case.inputs, moments=tf.nn.moments), **more)


_SIZE = (256, 56, 56, 256)
_FIRST = [(4, 8), (7, 3), (3, 5, 129), (2, 6, 7, 7), (1, 3, 1000), (300, 2, 9), (0, 4, 3), (3, 4, 0), (65, 16, 8, 8)]
_acts = lambda *names: each("activation", names)
_refused = refusing(tfuse.batch_norm, x=ones(4, 3), gamma=None, beta=None, mean=ones(3), variance=ones(3), training=True)

CASES = [
    _case("batch_norm", residual=True, options=_acts("linear", "relu", "silu"),
          shapes=SHAPES + [(2, 0, 5), (5, 7, 9, 24), (1000, 36)], rejects=[
              _refused("batch_norm: x must have two dimensions or more, got shape .3.", x=ones(3)),
              _refused("batch_norm: axis must be one of the 2 axes of x .4, 3., got 2", axis=2),
              _refused("batch_norm: residual must have the shape of x, .4, 3., got .3, 4.", residual=ones(3, 4)),
              _refused("batch_norm: x must be float32.*got int32", x=ones(4, 3, dtype=tf.int32)),
              _refused("gamma must have the shape of x's channels, .3., got .4.", gamma=ones(4)),
              _refused("variance must have the shape of x's channels, .3., got .4.", variance=ones(4), training=False),
              _refused("residual must be bfloat16 like x, got float32", x=ones(4, 3, dtype=tf.bfloat16), residual=ones(4, 3)),
              _refused("batch_norm: mean must be floats, got int32; cast it", mean=ones(3, dtype=tf.int32)),
              _refused("activation must be one of linear, relu, .* or None, got 'swoosh'", activation="swoosh"),
          ]),
    _case("batch_norm, no residual", options=_acts(*PLAIN)),
    _case("batch_norm, no weights", weights=False, options=_acts("relu")),
    _case("batch_norm, channels first", axis=1, residual=True, options=_acts("relu", "gelu"), shapes=_FIRST),
    _case("batch_norm, frozen", training=False, options=_acts("linear", "relu", "tanh")),
    _case("batch_norm, frozen, residual", training=False, residual=True, options=_acts("linear", "relu", "mish")),
    _case("batch_norm, frozen, channels first", training=False, axis=1, options=_acts("silu"), shapes=_FIRST),
]
# Of x and residual, passes over memory: x for the statistics; both, and the result. Backward: dy and x, and the residual's
# gradient; that, x, and x's gradient. The result's signs are a sixteenth of a pass each way.
TIMES = [
    _timed(CASES[0], "relu", passes=(4, 6), bars=bars(_SIZE, dtypes=("bfloat16",), forward=85, backward=85)),
    _timed(CASES[1], "linear", "relu", "silu", passes=(3, 5)),
    _timed(CASES[4], "relu"),
    _timed(CASES[5], "relu", passes=(3, 7)),
]
