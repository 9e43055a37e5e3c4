import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _philox
from tfuse.cases import Case, Input, Timed, bars, by_name, cancelling, ones, refusing, total, volume
from tfuse.cases.rows.softmax import SWEEP

EPSILON = 2.0**-10  # the same in every float


def _h(x, residual, dropout, seed):
    kept = _philox.kept_numpy(x.shape, seed, dropout) / (1 - dropout) if dropout else np.ones_like(x)
    return kept, x * kept + (0 if residual is None else residual)


class Normalised:
    """n = (x - mean) * rstd, with statistics over some axes, or with given ones."""

    def __init__(self, x, axes, centred=True, epsilon=EPSILON, mean=None, variance=None):
        count = max(1, volume(np.take(x.shape, axes)))  # there may be no values
        self.x, self.centred, self.average = x, centred, lambda v: np.sum(v, axes, keepdims=True) / count
        self.mean = mean if mean is not None else self.average(x) if centred else 0
        self.variance = self.average((x - self.mean)**2) if variance is None else variance
        self.rstd = 1 / np.sqrt(self.variance + epsilon)
        self.n = (x - self.mean) * self.rstd

    def back(self, g):
        """The terms of the gradient of x, from that of n, where both statistics are those of x."""
        slope = self.rstd**2 * self.average(g * self.n)
        terms = [self.rstd * g, -self.x * slope, self.mean * slope]
        return [*terms, -self.rstd * self.average(g)] if self.centred else terms


def _reference(x, gamma=None, beta=None, residual=None, centred=True, epsilon=EPSILON, dropout=0.0, seed=None):
    _, h = _h(x, residual, dropout, seed)
    y = Normalised(h, -1, centred, epsilon).n * (1 if gamma is None else gamma) + (0 if beta is None else beta)
    return y if residual is None else (y, h)


def _gradient(dy, x, gamma=None, beta=None, residual=None, centred=True, epsilon=EPSILON, dropout=0.0, seed=None):
    kept, h = _h(x, residual, dropout, seed)
    normal = Normalised(h, -1, centred, epsilon)
    dy, dh = dy if residual is not None else (dy, 0)
    terms = [*normal.back(dy * (1 if gamma is None else gamma)), np.asarray(dh)]
    rows = tuple(range(x.ndim - 1))
    weights = [total(t, rows) for t, w in ((dy * normal.n, gamma), (dy, beta)) if w is not None]
    return [cancelling(*(kept * t for t in terms)), *weights] + ([] if residual is None else [cancelling(*terms)])


def moments(h, axes, keepdims):
    """tf.nn.moments without its stop_gradient, which makes second gradients wrong."""
    mean = tf.reduce_mean(h, axes, keepdims)
    return mean, tf.reduce_mean(tf.square(h - mean), axes, keepdims)


def _drop(x, rate, seed):
    """tf.nn.dropout of the elements that tfuse drops."""
    return _philox.dropped(x, _philox.seed_tensor(seed), rate)


def _plain(x, gamma=None, beta=None, residual=None, centred=True, epsilon=EPSILON, dropout=0.0, seed=None, drop=_drop,
           moments=moments):
    if dropout:
        x = drop(x, dropout, seed)
    if residual is not None:
        x = x + residual
    h = tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32)
    if centred:
        mean, variance = moments(h, -1, keepdims=True)
        y = (h - mean) * tf.math.rsqrt(variance + epsilon)
    else:
        y = h * tf.math.rsqrt(tf.reduce_mean(tf.square(h), -1, keepdims=True) + epsilon)
    y = y if gamma is None else y * gamma
    y = tf.cast(y if beta is None else y + beta, x.dtype)
    return y if residual is None else (y, x)


def _case(name, *weights, centred=True, residual=False, **more):
    like, channels = Input(lambda shape: shape), Input(lambda shape: shape[-1:], dtype="real")
    inputs = {"x": like, **{w: channels for w in weights}, **({"residual": like} if residual else {})}
    return Case(name=name, run=by_name(tfuse.layer_norm if centred else tfuse.rms_norm, inputs, epsilon=EPSILON),
                plain=by_name(_plain, inputs, centred=centred), reference=by_name(_reference, inputs, centred=centred),
                gradient=by_name(_gradient, ["dy", *inputs], centred=centred), inputs=inputs,
                outputs={"y": like, "h": like} if residual else {"y": like}, summed=lambda shape: shape[-1], **more)


def _timed(case, **more):
    dropped = lambda x, rate, seed: tf.nn.dropout(x, rate)
    rival = by_name(_plain, case.inputs, centred="layer" in case.name, drop=dropped, moments=tf.nn.moments)
    return Timed(case, ONE, rival=rival, **more)


DROPOUT = [{"dropout": 0.25, "seed": 7}]
ONE = [(16384, 8192)]
FAST = bars(*ONE, forward=92, floor=1.25)
_layer, _rms = (refusing(f, x=ones(2, 3)) for f in (tfuse.layer_norm, tfuse.rms_norm))

CASES = [
    _case("layer_norm", "gamma", "beta", rejects=[
        _layer("norm: x must be float32, float16, bfloat16 or float64, got int32", x=ones(1, 1, dtype=tf.int32)),
        _layer("gamma must have 3 values, one per channel .last axis. of x .2, 3., got 4", gamma=ones(4)),
        _layer("beta must be a vector with one value per channel of x, got shape ..", beta=1.0),
        _layer("norm: residual must be float32 like x, got float16; cast one of them", residual=ones(2, 3, dtype=tf.float16)),
        _rms("residual must have the shape of x, .2, 3., got .3.", residual=ones(3)),
        _layer("layer_norm: dropout must be at least 0 and less than 1, got 1.5", dropout=1.5),
        _rms("seed must be a single number .shape ..., got shape .2.", dropout=0.5, seed=[1, 2]),
        _rms("rms_norm: axis must be one or several axes of x .2, 3., got 2", axis=2),
    ]),
    _case("layer_norm without weights"),
    _case("layer_norm, beta only", "beta"),
    _case("layer_norm, residual", "gamma", "beta", residual=True),
    _case("layer_norm, residual and dropout", "gamma", "beta", residual=True, options=DROPOUT),
    _case("rms_norm", "gamma", centred=False),
    _case("rms_norm without weights", centred=False),
    _case("rms_norm, dropout", "gamma", centred=False, options=DROPOUT),
    _case("rms_norm, residual", "gamma", centred=False, residual=True),
    _case("rms_norm, residual and dropout", "gamma", centred=False, residual=True, options=DROPOUT),
]
TIMES = [
    _timed(CASES[0], bars=FAST),
    _timed(CASES[5], sweep=SWEEP, bars={**FAST, **bars(*SWEEP, dtypes=["bfloat16"], forward=80)}),
    _timed(CASES[9], passes=(4, 5), bars=bars(*ONE, floor=1.3)),
]
