import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, by_name, fitting, of_terms, ones, refusing, squares, sums
from tfuse.cases.elementwise.scale_bias_act import activated, slopes
from tfuse.cases.products.linear import rows, weights
from tfuse.elementwise.scale_bias_act import PLAIN

# A case's shape is (batch, steps, features, units).
# The last two are of the persistent kernels': units in whole packs, of several blocks; sequences of several tiles.
_SHAPES = [(2, 3, 4, 5), (1, 1, 1, 1), (0, 3, 4, 5), (3, 0, 4, 5), (2, 3, 0, 5), (33, 2, 3, 17), (3, 4, 5, 131), (3, 9, 2, 40),
           (70, 4, 3, 96)]
_fit = fitting(4, lambda rows, columns: (min(rows, 5), min(columns, 3), 7, min(columns, 19)))


def _reversing(f):
    """f of a layer that goes forward, as one that may go backwards: x and mask first, and of the results y."""
    def whole(x, *others, mask=None, reverse=False, **options):
        turned = lambda t: t if t is None or not reverse else t[:, ::-1]
        y, *states = f(turned(x), *others, mask=turned(mask), **options)
        return [turned(y), *states]
    return whole


# ---- stock TensorFlow, step by step ----

_UNROLLED = 64  # steps, at most; a loop has more, as in Keras's layers


def _over_steps(step, states, gates, mask):
    """All the first states and the last of all, where step(states, gates) gives those after a step."""
    def masked(states, values):
        after = step(states, values[0])
        return after if mask is None else [tf.where(values[1][:, None], new, old) for new, old in zip(after, states)]

    sequences = [gates] if mask is None else [gates, mask]
    if gates.shape[1] > _UNROLLED:
        by_step = [tf.transpose(s, [1, 0, *range(2, s.shape.rank)]) for s in sequences]
        every = tf.scan(masked, by_step, states)
        return [tf.transpose(every[0], [1, 0, 2]), *(s[-1] for s in every)]
    y = []
    for t in range(gates.shape[1]):
        states = masked(states, [s[:, t] for s in sequences])
        y.append(states[0])
    return [tf.stack(y, 1) if y else tf.zeros([*states[0].shape[:1], 0, *states[0].shape[1:]], gates.dtype),
            *(tf.identity(s) for s in states)]


def _product(h, recurrent_kernel, scale, gates):
    """h . recurrent_kernel, where each gate may have an h of its own."""
    if scale is None:
        return tf.matmul(h, recurrent_kernel)
    own = [h * s for s in tf.split(scale, gates, 1)]
    return tf.concat([tf.matmul(h, w) for h, w in zip(own, tf.split(recurrent_kernel, gates, 1))], 1)


@_reversing
def stock_lstm(x, kernel, recurrent_kernel, bias, h, c, mask=None, recurrent_scale=None, activation="tanh",
               recurrent_activation="sigmoid"):
    act, gate = PLAIN[activation], PLAIN[recurrent_activation]

    def step(states, gates):
        h, c = states
        i, f, g, o = tf.split(gates + _product(h, recurrent_kernel, recurrent_scale, 4) + bias, 4, 1)
        c = gate(f) * c + gate(i) * act(g)
        return [gate(o) * act(c), c]

    return _over_steps(step, [h, c], tf.tensordot(x, kernel, 1), mask)


@_reversing
def stock_gru(x, kernel, recurrent_kernel, bias, recurrent_bias, h, mask=None, recurrent_scale=None, activation="tanh",
              recurrent_activation="sigmoid", reset_after=True):
    act, gate = PLAIN[activation], PLAIN[recurrent_activation]
    product = lambda h: tf.split(_product(h, recurrent_kernel, recurrent_scale, 3) + recurrent_bias, 3, 1)

    def step(states, gates):
        (h,), (xz, xr, xg) = states, tf.split(gates, 3, 1)
        (pz, pr, pg) = product(h)
        z, r = gate(xz + pz), gate(xr + pr)
        return [z * h + (1 - z) * act(xg + (r * pg if reset_after else product(r * h)[2]))]

    return _over_steps(step, [h], tf.tensordot(x, kernel, 1) + bias, mask)


# ---- float64 ----


class _Cell:
    """The formulas of a cell, and what is kept of each step on the way. product(h) is that with the recurrent kernel, and
    through(d, gate) what d gives to h through a gate's part of it; THROUGH gates are left to be gone through behind back()."""

    def __init__(self, activation="tanh", recurrent_activation="sigmoid"):
        self.act = lambda v: np.asarray(activated(v, activation))
        self.gate = lambda v: np.asarray(activated(v, recurrent_activation))
        self.act_back = lambda d, v: np.asarray(slopes(d, v, activation))
        self.gate_back = lambda d, v: np.asarray(slopes(d, v, recurrent_activation))


    def own(self, kept, gate, h):
        """The h that a gate's product is of."""
        return h


class Lstm(_Cell):
    PARTS = THROUGH = 4

    def step(self, gates, product, h, c):
        i, f, g, o = parts = np.split(gates + product(h), 4, 1)
        after = self.gate(f) * c + self.gate(i) * self.act(g)
        return self.gate(o) * self.act(after), after, (*parts, c, after)

    def back(self, kept, dh, dc, through):
        """Gradients of gates, of p, of h beside p, and of c."""
        i, f, g, o, c, after = kept
        d = dc + self.act_back(dh * self.gate(o), after)
        dp = np.concatenate([self.gate_back(d * self.act(g), i), self.gate_back(d * c, f), self.act_back(d * self.gate(i), g),
                             self.gate_back(dh * self.act(after), o)], 1)
        return dp, dp, np.zeros_like(dh), d * self.gate(f)


class Gru(_Cell):
    PARTS = THROUGH = 3

    def step(self, gates, product, h, c):
        (xz, xr, xg), (pz, pr, pg) = np.split(gates, 3, 1), np.split(product(h), 3, 1)
        z, r = xz + pz, xr + pr
        g = xg + self.gate(r) * pg
        return self.gate(z) * h + (1 - self.gate(z)) * self.act(g), c, (z, r, g, pg, h)

    def back(self, kept, dh, dc, through):
        z, r, g, pg, h = kept
        dg = self.act_back(dh * (1 - self.gate(z)), g)
        both = [self.gate_back(dh * (h - self.act(g)), z), self.gate_back(dg * pg, r)]
        return np.concatenate([*both, dg], 1), np.concatenate([*both, dg * self.gate(r)], 1), dh * self.gate(z), dc


class GruResetBefore(_Cell):
    PARTS, THROUGH = 3, 2

    def step(self, gates, product, h, c):
        (xz, xr, xg), (pz, pr, _) = np.split(gates, 3, 1), np.split(product(h), 3, 1)
        z, r = xz + pz, xr + pr
        g = xg + np.split(product(self.gate(r) * h), 3, 1)[2]
        return self.gate(z) * h + (1 - self.gate(z)) * self.act(g), c, (z, r, g, h)

    def own(self, kept, gate, h):
        return self.gate(kept[1]) * h if gate == 2 else h

    def back(self, kept, dh, dc, through):
        z, r, g, h = kept
        dg = self.act_back(dh * (1 - self.gate(z)), g)
        dreset = through(dg, 2)
        dp = np.concatenate([self.gate_back(dh * (h - self.act(g)), z), self.gate_back(dreset * h, r), dg], 1)
        return dp, dp, dh * self.gate(z) + dreset * self.gate(r), dc


def _by_gates(f, gates, scale, *tensors):
    """f(scale of a gate, its part of each tensor's last axis), of all gates."""
    parts = [np.split(t, gates, -1) for t in tensors]
    scales = [1.0] * gates if scale is None else np.split(scale, gates, -1)
    return [f(*some) for some in zip(scales, *parts)]


def _forward(cell, gates, recurrent_kernel, recurrent_bias, h, c, mask, scale):
    """All h, the last states, and of each step what came before it and what is kept."""
    y, kept = np.zeros([*gates.shape[:2], h.shape[1]]), []
    for t in range(gates.shape[1]):
        counts = np.True_ if mask is None else mask[:, t, None]
        product = lambda h: recurrent_bias + np.concatenate(
            _by_gates(lambda s, w: (h * s) @ w, cell.PARTS, scale, recurrent_kernel), 1)
        new, after, some = cell.step(gates[:, t], product, h, c)
        kept.append((h, counts, some))
        y[:, t] = h = np.where(counts, new, h)
        c = np.where(counts, after, c)
    return y, h, c, kept


def _backward(cell, x, kernel, recurrent_kernel, kept, dy, dh, dc, scale):
    """Gradients of x, kernel, recurrent_kernel, bias, recurrent_bias, and of the first states."""
    dgates = np.zeros([*x.shape[:2], kernel.shape[1]])
    dproduct, before = np.zeros_like(dgates), np.zeros([cell.PARTS, *x.shape[:2], recurrent_kernel.shape[0]])
    parts = _by_gates(lambda s, w: (s, w), cell.PARTS, scale, recurrent_kernel)
    through = lambda d, gate: parts[gate][0] * (d @ parts[gate][1].T)
    for t in range(x.shape[1])[::-1]:
        h, counts, some = kept[t]
        before[:, :, t] = [cell.own(some, gate, h) for gate in range(cell.PARTS)]
        dh = dh + dy[:, t]
        now, dp, rest, dc_before = cell.back(some, dh, dc, through)
        dgates[:, t], dproduct[:, t] = np.where(counts, now, 0), np.where(counts, dp, 0)
        gone = sum(through(d, gate) for gate, d in enumerate(np.split(dproduct[:, t], cell.PARTS, 1)[:cell.THROUGH]))
        dh, dc = np.where(counts, rest, dh) + gone, np.where(counts, dc_before, dc)
    summed = lambda a, b: sums(lambda a, b: rows(a).T @ rows(b), a, b)
    steps = lambda s: s if np.ndim(s) == 0 else s[:, None]
    drecurrent = [summed(h * steps(s), d) for h, (s, d) in zip(
        before, _by_gates(lambda s, d: (s, d), cell.PARTS, scale, dproduct))]
    joined = of_terms(np.concatenate(drecurrent, 1), np.concatenate([squares(d) for d in drecurrent], 1))
    return [sums(np.matmul, dgates, kernel.T), summed(x, dgates), joined,
            sums(lambda d: d.sum((0, 1)), dgates), sums(lambda d: d.sum((0, 1)), dproduct), dh, dc]


def _reference(cell):
    def how(reset_after=True, **activations):
        return (cell if reset_after else GruResetBefore)(**activations)

    def reference(x, kernel, recurrent_kernel, bias, other, h, mask=None, recurrent_scale=None, reverse=False, **options):
        lstm = cell is Lstm
        first, c, recurrent_bias = (other, h, 0) if lstm else (h, 0, other)
        turned = lambda t: t if t is None or not reverse else t[:, ::-1]
        y, h, c, _ = _forward(how(**options), turned(x) @ kernel + bias, recurrent_kernel, recurrent_bias, first, c,
                              turned(mask), recurrent_scale)
        return [turned(y), h, c] if lstm else [turned(y), h]

    def gradient(dy, x, kernel, recurrent_kernel, bias, other, h, mask=None, recurrent_scale=None, reverse=False,
                 **options):
        lstm = cell is Lstm
        first, c, recurrent_bias = (other, h, 0) if lstm else (h, 0, other)
        turned = lambda t: t if t is None or not reverse else t[:, ::-1]
        own, x, mask = how(**options), turned(x), turned(mask)
        kept = _forward(own, x @ kernel + bias, recurrent_kernel, recurrent_bias, first, c, mask, recurrent_scale)[3]
        dx, dkernel, drecurrent, dbias, dother, dh, dc = _backward(
            own, x, kernel, recurrent_kernel, kept, turned(dy[0]), dy[1], dy[2] if lstm else 0, recurrent_scale)
        return [turned(dx), dkernel, drecurrent, dbias, *([dh, dc] if lstm else [dother, dh])]

    return reference, gradient


# ---- the cases ----

_STATE = Input(lambda s: (s[0], s[3]), lambda rng, own, _: rng.normal(size=own) / 2)
_MASK = Input(lambda s: s[:2], lambda rng, own, _: rng.random(own) < 0.7, dtype="bool", gradient=False)


def _inputs(gates, *states):
    return {"x": lambda s: s[:3], "kernel": Input(lambda s: (s[2], gates * s[3]), weights),
            "recurrent_kernel": Input(lambda s: (s[3], gates * s[3]), weights), "bias": lambda s: (gates * s[3],),
            **dict.fromkeys(states, _STATE), "mask": _MASK}


LSTM_INPUTS = _inputs(4, "h", "c")
GRU_INPUTS = {**_inputs(3, "recurrent_bias", "h"), "recurrent_bias": Input(lambda s: (3 * s[3],))}


def scale(gates):
    """Of recurrent dropout."""
    return Input(lambda s: (s[0], gates * s[3]), lambda rng, own, _: 2.0 * (rng.random(own) < 0.5), gradient=False)


_OPTIONS = [{}, {"reverse": True, "activation": "elu"}]


def case(name, run, stock, cell, inputs, states, options=_OPTIONS, **more):
    reference, gradient = _reference(cell)
    return Case(name=name, run=by_name(run, inputs), plain=by_name(stock, inputs), reference=reference, gradient=gradient,
                inputs=inputs, outputs={"y": lambda s: (*s[:2], s[3]), **dict.fromkeys(states, _STATE)},
                shapes=_SHAPES, fit=_fit,
                summed=lambda s: s[1] * (s[2] + cell.PARTS * s[3]), special=False, options=options, **more)


def _rejects(name, run, gates):
    refused = refusing(run, x=ones(2, 4, 3), kernel=ones(3, 5 * gates), recurrent_kernel=ones(5, 5 * gates))
    width = 5 * gates
    return [
        refused("%s: x must be .batch, steps, features., got shape .2, 3." % name, x=ones(2, 3)),
        refused("the last axis of x and the first of kernel must be of one size", kernel=ones(4, width)),
        refused("recurrent_kernel must be .units, %d . units., got shape .5, 7." % gates, kernel=ones(3, 7),
                recurrent_kernel=ones(5, 7)),
        refused("the last axes of (x|gates|kernel) and recurrent_kernel must be of one size", kernel=ones(3, 7)),
        refused("h must have the shape of .batch, units., .2, 5., got .2, 4.", h=ones(2, 4)),
        refused("mask must have the shape of .batch, steps., .2, 4., got .2, 3.", mask=ones(2, 3, dtype=tf.bool)),
        refused("recurrent_kernel must be float32", recurrent_kernel=ones(5, width, dtype=tf.float16)),
        refused("activation must be one of linear, relu, .*got 'swoosh'", activation="swoosh"),
    ]


CASES = [
    case("lstm", tfuse.lstm, stock_lstm, Lstm, LSTM_INPUTS, ["h", "c"], rejects=[
        *_rejects("lstm", tfuse.lstm, 4),
        refusing(tfuse.lstm, x=ones(2, 4, 3), kernel=ones(3, 20), recurrent_kernel=ones(5, 20))(
            "c must have the shape of .batch, units., .2, 5., got .3, 5.", c=ones(3, 5))]),
    case("gru", tfuse.gru, stock_gru, Gru, {**GRU_INPUTS, "recurrent_scale": scale(3)}, ["h"],
         [{}, {"activation": "silu"}, {"reset_after": False}, {"reset_after": False, "activation": "elu", "reverse": True}], rejects=[
        *_rejects("gru", tfuse.gru, 3),
        refusing(tfuse.gru, x=ones(2, 4, 3), kernel=ones(3, 15), recurrent_kernel=ones(5, 15))(
            "bias must be a vector with one value per column of recurrent_kernel .5, 15., got shape .14.",
            recurrent_bias=ones(14))]),
]
