import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _philox
from tfuse.cases import Case, Input, Timed, bars, cancelling, ones, refusing, total
from tfuse.cases.rows.softmax import SWEEP

EPSILON = 2.0**-10  # the same in every float


def _h(x, residual, dropout, seed):
    kept = _philox.kept_numpy(x.shape, seed, dropout) / (1 - dropout) if dropout else np.ones_like(x)
    return kept, x * kept + (0 if residual is None else residual)


def _normalised(h, centred, epsilon):
    mean = np.mean(h, -1, keepdims=True) if centred else 0
    rstd = 1 / np.sqrt(np.mean((h - mean)**2, -1, keepdims=True) + epsilon)
    return (h - mean) * rstd, mean, rstd


def _reference(x, gamma=None, beta=None, residual=None, centred=True, epsilon=EPSILON, dropout=0.0, seed=None):
    _, h = _h(x, residual, dropout, seed)
    y, _, _ = _normalised(h, centred, epsilon)
    y = y * (1 if gamma is None else gamma) + (0 if beta is None else beta)
    return y if residual is None else (y, h)


def _gradient(dy, x, gamma=None, beta=None, residual=None, centred=True, epsilon=EPSILON, dropout=0.0, seed=None):
    kept, h = _h(x, residual, dropout, seed)
    n, mean, rstd = _normalised(h, centred, epsilon)
    dy, dh = dy if residual is not None else (dy, 0)
    g = dy * (1 if gamma is None else gamma)
    slope = rstd**2 * np.mean(g * n, -1, keepdims=True)
    terms = [rstd * g, -h * slope, mean * slope, np.asarray(dh)]
    if centred:
        terms.append(-rstd * np.mean(g, -1, keepdims=True))
    rows = tuple(range(x.ndim - 1))
    weights = [total(t, rows) for t, w in ((dy * n, gamma), (dy, beta)) if w is not None]
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


def _by_name(f, names, **fixed):
    return lambda *inputs, **options: f(**dict(zip(names, inputs)), **fixed, **options)


def _case(name, *weights, centred=True, residual=False, **more):
    like, channels = Input(lambda shape: shape), Input(lambda shape: shape[-1:], dtype="real")
    inputs = {"x": like, **{w: channels for w in weights}, **({"residual": like} if residual else {})}
    return Case(name=name, run=_by_name(tfuse.layer_norm if centred else tfuse.rms_norm, inputs, epsilon=EPSILON),
                plain=_by_name(_plain, inputs, centred=centred), reference=_by_name(_reference, inputs, centred=centred),
                gradient=_by_name(_gradient, ["dy", *inputs], centred=centred), inputs=inputs,
                outputs={"y": like, "h": like} if residual else {"y": like}, summed=lambda shape: shape[-1], **more)


def _timed(case, **more):
    dropped = lambda x, rate, seed: tf.nn.dropout(x, rate)
    rival = _by_name(_plain, case.inputs, centred="layer" in case.name, drop=dropped, moments=tf.nn.moments)
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
