"""The op behind tfuse.optimizers: the third step, by each rule, with a loss scale beside each kind of clipping, and with squares
that are not the gradients' own. What else its numbers do, tests/lists/test_optimizers.py asks of Keras.

Slots are given for all rules; one that a rule has not is left as it is.
"""

import functools

import numpy as np
import tensorflow as tf

from tfuse._core._op import real
from tfuse.cases import Case, Input, each, ones, refusing
from tfuse.lists import tensors_update

_RATE, _B1, _B2, _EPSILON, _DECAY, _BOUND, _T = 0.125, 0.75, 0.875, 1e-7, 0.0625, 1.5, 3
_HYPER = [_DECAY, _BOUND, _B1, _B2, 1 - _B1, 1 - _B2, _EPSILON, 1.0]
_SCALE = 8.0  # large tensors are clipped by their norms still, small ones are not


def _step(f, g, w, m, v, h, rule, clip="value", scale=None, squares=False):
    """As the second of two weights; the first has a shape of its own. `squares`: each is 1 more than the gradient's own."""
    first = tf.ones([3], w.dtype)
    slots = [t for own in (m, v, h)[:tensors_update.SLOTS[rule]] for t in (first, own)]
    scalar = real(w.dtype)
    numbers = lambda values: tf.constant(values, scalar)
    norms = tf.stack([tf.norm(tf.cast(t, tf.float64)) for t in (first, g)])  # before a scale divides what they are of
    norm = {"value": numbers([]), "norm": tf.cast(norms, scalar), "global_norm": tf.cast(tf.norm(norms), scalar)}[clip]
    gradients = [tf.concat([t, t * t + 1], 0) if squares else t for t in (first, g)]
    new = f(gradients, [first, w], slots, numbers(_RATE), tf.constant(_T - 1, tf.int64),
            numbers([*_HYPER[:-1], float(clip == "value")]), norm, numbers(scale or []), rule=rule, squares=squares)
    changed = [new[0][1], *new[1][1::2]]
    return [tf.ensure_shape(t, w.shape) for t in changed + [m, v, h][len(changed) - 1:]]


def _clipped(g, clip, scale):
    g, first = g / scale, np.ones(3) / scale
    if clip == "value":
        return np.clip(g, -_BOUND, _BOUND)
    norm = np.sqrt(np.sum(g * g) + (np.sum(first * first) if clip == "global_norm" else 0))
    return g * _BOUND / max(norm, _BOUND)


def _formula(g, w, m, v, h, rule, clip="value", scale=None, squares=False):
    square = g * g + 1
    g, w = _clipped(g, clip, scale or 1), w - w * _DECAY * _RATE
    square = square if squares else g * g
    if rule == "sgd":
        return w - g * _RATE, m, v, h
    if rule in ("momentum", "nesterov"):
        m = m * _B1 - g * _RATE
        return w + (m if rule == "momentum" else m * _B1 - g * _RATE), m, v, h
    if rule == "lion":
        return w - _RATE * np.sign(m * _B1 + g * (1 - _B1)), m * _B2 + g * (1 - _B2), v, h
    m, v = m + (g - m) * (1 - _B1), v + (square - v) * (1 - _B2)
    if rule == "lamb":
        u = m / (1 - _B1**_T) / (np.sqrt(v / (1 - _B2**_T)) + _EPSILON)
        return w - np.linalg.norm(w) / np.linalg.norm(u) * _RATE * u, m, v, h
    h = np.maximum(h, v) if rule == "amsgrad" else h
    step = _RATE * (1 - _B2**_T)**0.5 / (1 - _B1**_T)
    return w - m * step / (np.sqrt(h if rule == "amsgrad" else v) + _EPSILON), m, v, h


def _reference(*inputs, **options):
    with np.errstate(invalid="ignore"):  # the ratio of no weights
        return list(_formula(*inputs, **options))


def _rejecting(gradient, slots, hyper=_HYPER, norm=(), scale=(), dtype=tf.float32, squares=False):
    floats = lambda value: tf.convert_to_tensor(value, tf.float32)
    return tensors_update.op([gradient], [tf.ones([3], dtype)], slots, tf.constant(_RATE), tf.constant(2, tf.int64),
                             floats(hyper), floats(norm), floats(scale), rule="adam", squares=squares)


_refused = refusing(_rejecting, gradient=ones(3), slots=[ones(3)] * 2)
_FLOATS = Input(lambda shape: shape, gradient=False)
_POSITIVE = Input(lambda shape: shape, values=lambda rng, own, _: rng.uniform(0.5, 2, own), gradient=False)
CASES = [
    Case(name="tensors_update", run=functools.partial(_step, tensors_update.op),
         plain=functools.partial(_step, tensors_update.op.plain), reference=_reference,
         inputs={**dict.fromkeys("gwm", _FLOATS), **dict.fromkeys("vh", _POSITIVE)}, outputs=dict.fromkeys("wmvh", _FLOATS),
         options=[*each("rule", tensors_update.SLOTS),
                  *({"rule": rule, "clip": clip, "scale": _SCALE} for rule in ("momentum", "adam", "lamb")
                    for clip in ("value", "norm", "global_norm")),
                  *({"rule": rule, "squares": True} for rule in ("momentum", "adam", "amsgrad", "lamb"))],
         special=False, rejects=[
             _refused("gradient 0 must have the shape of its weight, .3., got .2.", gradient=ones(2)),
             _refused("gradient 0 must have the shape of its weight, .3., twice as long along the first axis, got .3.",
                      squares=True),
             _refused("norm and scale must be empty where gradients come with the sums of squares",
                      gradient=ones(6), norm=1.0, squares=True),
             _refused("norm and scale must be empty where gradients come with the sums of squares",
                      gradient=ones(6), scale=1.0, squares=True),
             _refused("gradients that come with the sums of squares must be of the weights' type, float32, got float16",
                      gradient=ones(6, dtype=tf.float16), squares=True),
             _refused("slot 1 must have the shape of its weight, .3., got .4.", slots=[ones(3), ones(4)]),
             _refused("the rule wants 2 slots for 1 weights, got 1", slots=[ones(3)]),
             _refused("hyper must have 8", hyper=[1.0]),
             _refused("norm must be a single number or a vector of 0 or 1 values, got shape .2.", norm=ones(2)),
             _refused("norm must be a single number .* got shape .0, 2.", norm=ones(0, 2)),
             _refused("scale must be a single number .* got shape .0, 2.", scale=ones(0, 2)),
             _refused("rate, hyper, norm and scale must be float64 where weights are float64, got float32",
                      slots=[ones(3, dtype=tf.float64)] * 2, dtype=tf.float64),
         ]),
]
