import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, by_name, fitting, ones, refusing, sums, volume

# A case's shape is (batch, length, channels, groups, states).
_SHAPES = [(2, 3, 4, 2, 5), (1, 1, 1, 1, 1), (0, 3, 4, 1, 2), (2, 0, 6, 2, 3), (3, 41, 130, 1, 16), (2, 9, 12, 3, 0),
           (1, 300, 3, 1, 4)]
_fit = fitting(5, lambda rows, columns: (min(rows, 3), min(columns, 20), 6, 2, 5))


def _channels(t, channels):
    """[batch, length, groups, states] for each channel."""
    return np.repeat(t, channels // t.shape[2], 2)


def _states(x, delta, a, b, initial):
    """h before the first step and after all, of each [batch, channels, states]."""
    b, h = _channels(b, x.shape[2]), [initial]
    for t in range(x.shape[1]):
        h.append(np.exp(delta[:, t, :, None] * a) * h[-1] + (delta * x)[:, t, :, None] * b[:, t])
    return h


def _reference(x, delta, a, b, c, skip, initial):
    h, c = _states(x, delta, a, b, initial), _channels(c, x.shape[2])
    y = [(c[:, t] * h[t + 1]).sum(2) + skip * x[:, t] for t in range(x.shape[1])]
    return [np.stack(y, 1) if y else np.zeros_like(x), h[-1]]


def _gradient(dy, x, delta, a, b, c, skip, initial):
    (dy, g), h = dy, _states(x, delta, a, b, initial)
    wide_b, wide_c = _channels(b, x.shape[2]), _channels(c, x.shape[2])
    dx, ddelta, da, db, dc = *np.zeros((2, *x.shape)), [np.zeros(h[0].shape)], *np.zeros((2, *wide_b.shape))
    for t in range(x.shape[1])[::-1]:
        factor, dt, xt = np.exp(delta[:, t, :, None] * a), delta[:, t, :, None], x[:, t, :, None]
        g = g + dy[:, t, :, None] * wide_c[:, t]
        along = g * factor * h[t]
        da.append(along * dt)
        db[:, t], dc[:, t] = g * dt * xt, dy[:, t, :, None] * h[t + 1]
        dx[:, t] = (g * dt * wide_b[:, t]).sum(2) + skip * dy[:, t]
        ddelta[:, t] = (along * a + g * xt * wide_b[:, t]).sum(2)
        g = g * factor
    by_group = lambda t: sums(lambda t: t.reshape(*t.shape[:2], b.shape[2], x.shape[2] // b.shape[2], t.shape[3]).sum(3), t)
    return [dx, ddelta, sums(lambda t: t.sum((0, 1)), np.stack(da)), by_group(db), by_group(dc),
            sums(lambda p, q: (p * q).sum((0, 1)), dy, x), g]


def _stock(x, delta, a, b, c, skip, initial):
    """Step by step, as one writes it."""
    dtype, (x, delta, b, c) = x.dtype, (tf.cast(t, a.dtype) for t in (x, delta, b, c))
    b, c = (tf.repeat(t, x.shape[2] // t.shape[2], 2) for t in (b, c))
    by_step = [tf.transpose(t, [1, 0, *range(2, t.shape.rank)]) for t in (x, delta, b)]
    step = lambda h, t: tf.exp(t[1][..., None] * a) * h + (t[1] * t[0])[..., None] * t[2]
    if not x.shape[1]:
        return tf.cast(x * skip, dtype), initial + 0 * tf.reduce_sum(a)
    h = tf.transpose(tf.scan(step, by_step, initial), [1, 0, 2, 3])
    y = tf.reduce_sum(h * c, 3) + skip * x
    return tf.cast(y, dtype), h[:, -1]


_STATE = Input(lambda s: (s[0], s[2], s[4]), dtype="real")
_FACTOR = Input(lambda s: (s[0], s[1], s[3], s[4]), lambda rng, own, _: rng.normal(size=own))
_INPUTS = {
    "x": lambda s: s[:3],
    "delta": Input(lambda s: s[:3], lambda rng, own, _: rng.uniform(0.01, 1, own)),
    "a": Input(lambda s: (s[2], s[4]), lambda rng, own, _: -rng.uniform(0.1, 2, own), dtype="real"),
    "b": _FACTOR, "c": _FACTOR, "skip": Input(lambda s: (s[2],), dtype="real"), "initial": _STATE,
}
_refused = refusing(tfuse.selective_scan, x=ones(2, 3, 4), delta=ones(2, 3, 4), a=ones(4, 5), b=ones(2, 3, 5), c=ones(2, 3, 5))
CASES = [
    Case(name="selective_scan", run=by_name(tfuse.selective_scan, _INPUTS), plain=_stock, reference=_reference,
         gradient=_gradient, inputs=_INPUTS, outputs={"y": lambda s: s[:3], "h": _STATE}, shapes=_SHAPES, fit=_fit,
         special=False, summed=lambda s: s[1] * s[4] + s[2], rejects=[
             _refused("SelectiveScan: x must be .batch, length, channels., got shape .2, 3.", x=ones(2, 3), delta=ones(2, 3)),
             _refused("delta must have the shape of x, .2, 3, 4., got .2, 3, 5.", delta=ones(2, 3, 5)),
             _refused("a must have a row for each channel of x .2, 3, 4., got shape .3, 5.", a=ones(3, 5)),
             _refused("a channel may have up to 16 states, got a of shape .4, 17.", a=ones(4, 17), b=ones(2, 3, 17)),
             _refused("b must be .batch, length, groups, states., .* got shape .2, 3, 1, 6.", b=ones(2, 3, 6)),
             _refused("the groups of b must divide the channels of x .2, 3, 4., got b of shape .2, 3, 3, 5.",
                      b=ones(2, 3, 3, 5), c=ones(2, 3, 3, 5)),
             _refused("c must have the shape of b", c=ones(2, 3, 6)),
             _refused("initial must have the shape of .batch, channels, states., .2, 4, 5., got .2, 4.", initial=ones(2, 4)),
         ]),
]
_SIZE = (16, 8192, 2048, 1, 16)
TIMES = [Timed(CASES[0], [_SIZE], cpu_sizes=[(4, 256, 256, 1, 16)], stock_can=lambda shape: shape != _SIZE, xla_can=False,
               elements=lambda shape: (3 * volume(shape[:3]), 5 * volume(shape[:3])))]
