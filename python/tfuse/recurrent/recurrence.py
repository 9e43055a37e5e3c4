"""What follows from step to step in an LSTM or a GRU, over whole sequences, once one product has made all gates' inputs."""

import tensorflow as tf
from tensorflow.python.eager import context, record

from tfuse._core._op import FusedOp, given, mark, real, vjp
from tfuse.elementwise.scale_bias_act import PLAIN, plain_behind

# ---- plain TensorFlow ----

_UNROLLED = 64  # steps, at most
_GATES = {"lstm": 4, "gru": 3, "gru_reset_before": 3}


def _loop(step, state, sequences, reverse=False):
    """step(state, values of a step) -> state, results, over axis 1 of the sequences; the last state, and all results along axis
    1. Few steps are unrolled, whose gradients have gradients inside XLA, too."""
    steps, first = sequences[0].shape[1], [tf.zeros_like(s[:, :1])[:, 0] if s.shape[1] else
                                           tf.zeros([tf.shape(s)[0], *s.shape[2:]], s.dtype) for s in sequences]
    if steps is None or steps > _UNROLLED:
        by_step = [tf.transpose(s, [1, 0, *range(2, s.shape.rank)]) for s in sequences]
        begin = state, [tf.zeros_like(r) for r in step(state, first)[1]]
        states, results = tf.scan(lambda carried, values: step(carried[0], values), by_step, begin, reverse=reverse)
        end = 0 if reverse else -1
        return [s[end] for s in states], [tf.transpose(r, [1, 0, *range(2, r.shape.rank)]) for r in results]
    results = []
    for t in range(steps)[::-1 if reverse else 1]:
        state, some = step(state, [s[:, t] for s in sequences])
        results.append(some)
    if not results:
        return state, [r[:, None][:, :0] for r in step(state, first)[1]]
    return state, [tf.stack(r[::-1 if reverse else 1], 1) for r in zip(*results)]


def wide(*tensors):
    return [tf.cast(t, real(t.dtype)) if t.dtype.is_floating else t for t in tensors]


def first_state(state, like, units):
    """A first state: zeros where it is not given."""
    return state if given(state) else tf.zeros([tf.shape(like)[0], units], like.dtype)


def _by_gates(t, units):
    """[..., gates * units] with an axis of gates."""
    return tf.reshape(t, tf.concat([tf.shape(t)[:-1], [-1, units]], 0))


def _product(h, recurrent_kernel, scale):
    """h . recurrent_kernel, where each gate may have an h of its own, h times its part of scale."""
    if not given(scale):
        return tf.matmul(h, recurrent_kernel)
    units = tf.shape(recurrent_kernel)[0]
    p = tf.einsum("bgu,ugv->bgv", h[:, None] * _by_gates(scale, units), _by_gates(recurrent_kernel, units))
    return tf.reshape(p, tf.shape(scale))


def _product_back(dp, recurrent_kernel, scale):
    """What dp gives to h."""
    if not given(scale):
        return tf.matmul(dp, recurrent_kernel, transpose_b=True)
    units = tf.shape(recurrent_kernel)[0]
    parts = tf.einsum("bgv,ugv->bgu", _by_gates(dp, units), _by_gates(recurrent_kernel, units))
    return tf.reduce_sum(parts * _by_gates(scale, units), 1)


def _kernel_back(before, dp, scale, gates):
    """And to the recurrent kernel, from all steps: before is h before each of them."""
    rows = lambda t: tf.reshape(t, [-1, tf.shape(t)[2]])
    if not given(scale):
        return tf.matmul(rows(before), rows(dp), transpose_a=True)
    parts = zip(tf.split(scale[:, None], gates, 2), tf.split(dp, gates, 2))
    return tf.concat([tf.matmul(rows(before * s), rows(d), transpose_a=True) for s, d in parts], 1)


def _first_two(t, like):
    """Of a last axis of three gates; what is not given stays so."""
    return t[..., :2 * like.shape[0]] if given(t) else t


def _last(t, like):
    return t[..., 2 * like.shape[0]:] if given(t) else t


def _mask_of(mask, like):
    return (mask if given(mask) else tf.ones(tf.shape(like)[:2], tf.bool))[:, :, None]


def plain(gates, recurrent_kernel, bias, h, c, mask, scale, keep, cell="lstm", activation="tanh",
          recurrent_activation="sigmoid", tf32=False):
    dtype, units, (act, gate) = gates.dtype, recurrent_kernel.shape[0], (PLAIN[activation], PLAIN[recurrent_activation])
    gates, recurrent_kernel, bias, h, c, scale = wide(gates, recurrent_kernel, bias, h, c, scale)
    h, c = first_state(h, gates, units), first_state(c, gates, units)
    lstm = cell == "lstm"

    def step(state, values):
        (h, c), (x, counts) = state, values
        if cell == "gru_reset_before":
            parts = [(f(recurrent_kernel, recurrent_kernel), f(scale, recurrent_kernel), f(bias, recurrent_kernel))
                     for f in (_first_two, _last)]
            sum_of = lambda h, part: _product(h, *part[:2]) + (part[2] if given(bias) else 0)
            z, r = kept = tf.split(_first_two(x, recurrent_kernel) + sum_of(h, parts[0]), 2, 1)
            g = _last(x, recurrent_kernel) + sum_of(gate(r) * h, parts[1])
            h = tf.where(counts, gate(z) * h + (1 - gate(z)) * act(g), h)
            return (h, c), [h, tf.concat([*kept, g], 1)]
        p = _product(h, recurrent_kernel, scale)
        p = p + bias if given(bias) else p
        if lstm:
            kept = tf.split(x + p, 4, 1)
            i, f, g, o = (a(v) for a, v in zip((gate, gate, act, gate), kept))
            c = tf.where(counts, f * c + i * g, c)
            h, more = tf.where(counts, o * act(c), h), c
        else:
            (xz, xr, xg), (pz, pr, more) = tf.split(x, 3, 1), tf.split(p, 3, 1)
            z, r = gate(xz + pz), gate(xr + pr)
            kept = [xz + pz, xr + pr, xg + r * more]
            h = tf.where(counts, z * h + (1 - z) * act(kept[2]), h)
        return (h, c), [h, tf.concat([*kept, more], 1)]

    (_, last), (y, kept) = _loop(step, (h, c), [gates, _mask_of(mask, gates)])
    nothing = tf.zeros([0], dtype)
    return tf.cast(y, dtype), tf.cast(last, dtype) if lstm else nothing, tf.cast(kept, dtype) if given(keep) else nothing


def _plain_grad(dy, dlast, recurrent_kernel, h, c, mask, scale, y, kept, cell="lstm", activation="tanh",
                recurrent_activation="sigmoid", tf32=False):
    dtype, units, act, gate = dy.dtype, recurrent_kernel.shape[0], activation, recurrent_activation
    dy, dlast, recurrent_kernel, h, c, scale, y, kept = wide(dy, dlast, recurrent_kernel, h, c, scale, y, kept)
    before = tf.concat([first_state(h, dy, units)[:, None], y], 1)[:, :-1]
    c_before = tf.concat([first_state(c, dy, units)[:, None], kept[:, :, -units:]], 1)[:, :-1]
    lstm, reset_before = cell == "lstm", cell == "gru_reset_before"
    first = [_first_two(t, recurrent_kernel) for t in (recurrent_kernel, scale)]
    last = [_last(t, recurrent_kernel) for t in (recurrent_kernel, scale)]

    def step(state, values):
        (dh, dc), (dy, kept, h, c, counts) = state, values
        dh = dh + dy
        if lstm:
            i, f, g, o, now = tf.split(kept, 5, 1)
            d = dc + plain_behind(dh * PLAIN[gate](o), now, act)
            dgates = dp = tf.concat([plain_behind(d * PLAIN[act](g), i, gate), plain_behind(d * c, f, gate),
                                     plain_behind(d * PLAIN[gate](i), g, act),
                                     plain_behind(dh * PLAIN[act](now), o, gate)], 1)
            dc, rest = tf.where(counts, d * PLAIN[gate](f), dc), tf.zeros_like(dh)
        elif reset_before:
            z, r, g = tf.split(kept, 3, 1)
            dg = tf.where(counts, plain_behind(dh * (1 - PLAIN[gate](z)), g, act), tf.zeros_like(dh))
            dreset = _product_back(dg, *last)
            both = tf.concat([plain_behind(dh * (h - PLAIN[act](g)), z, gate), plain_behind(dreset * h, r, gate)], 1)
            both = tf.where(counts, both, tf.zeros_like(both))
            rest = tf.where(counts, dh * PLAIN[gate](z) + dreset * PLAIN[gate](r), dh)
            return (rest + _product_back(both, *first), dc), [tf.concat([both, dg], 1)] * 2
        else:
            z, r, g, inner = tf.split(kept, 4, 1)
            dg = plain_behind(dh * (1 - PLAIN[gate](z)), g, act)
            both = [plain_behind(dh * (h - PLAIN[act](g)), z, gate), plain_behind(dg * inner, r, gate)]
            dgates, dp = tf.concat([*both, dg], 1), tf.concat([*both, dg * PLAIN[gate](r)], 1)
            rest = dh * PLAIN[gate](z)
        dgates, dp = (tf.where(counts, d, tf.zeros_like(d)) for d in (dgates, dp))
        dh = tf.where(counts, rest, dh) + _product_back(dp, recurrent_kernel, scale)
        return (dh, dc), [dgates, dp]

    begin = tf.zeros([tf.shape(dy)[0], units], dy.dtype), first_state(dlast, dy, units)
    (dh, dc), results = _loop(step, begin, [dy, kept, before, c_before, _mask_of(mask, dy)], reverse=True)
    dgates, dp, dh, dc = (tf.cast(t, dtype) for t in (*results, dh, dc))
    nothing = tf.zeros([0], dtype)
    return dgates, nothing if lstm or reset_before else dp, dh, dc if lstm else nothing


# ---- the ops ----


def _gradient(node, dy, dlast, dkept):
    """dkept is that of what was kept, which only the gradient of this gradient asks for. Eagerly, where a tape may ask for
    that, the plain composition takes the op's place, as TensorFlow makes up zeros for dkept there."""
    gates, recurrent_kernel, bias, h, c, mask, scale, _ = node.inputs
    y, _, kept = node.outputs
    how = node.attrs("cell", "activation", "recurrent_activation", "tf32")
    eager = context.executing_eagerly()
    if eager and record.could_possibly_record() or not eager and dkept is not None:
        return vjp(plain)([dy, dlast, dkept], *node.inputs, **how)
    if not given(kept):
        kept = recurrence(*node.inputs[:-1], mark(gates.dtype), **how)[2]
    dgates, dproduct, dh, dc = _grad(dy, dlast, recurrent_kernel, h, c, mask, scale, y, kept, **how)
    dproduct = dproduct if given(dproduct) else dgates
    before = tf.concat([first_state(h, gates, tf.shape(recurrent_kernel)[0])[:, None], y], 1)[:, :-1]
    dkernel = None
    if node.wanted(1) and how["cell"] == "gru_reset_before":
        gate = PLAIN[how["recurrent_activation"]](wide(tf.split(kept, 3, 2)[1])[0])
        reset = tf.where(_mask_of(mask, gates), tf.cast(gate * wide(before)[0], gates.dtype), tf.zeros([], gates.dtype))
        parts = (before, _first_two, 2), (reset, _last, 1)
        dkernel = tf.concat([_kernel_back(rows, f(dproduct, recurrent_kernel), f(scale, recurrent_kernel), n)
                             for rows, f, n in parts], 1)
    elif node.wanted(1):
        dkernel = _kernel_back(before, dproduct, scale, _GATES[how["cell"]])
    dbias = tf.reduce_sum(dproduct, [0, 1]) if given(bias) else None
    return [dgates, dkernel, dbias, dh if given(h) else None, dc if given(c) else None, None, None, None]


# Axes by letters: batch, time, units, gates of all units, and what is kept of them.
_AXES = {"gates": "btg", "recurrent_kernel": "ug", "bias": "g", "scale": "bg", "mask": "bt", "keep": "xx", "kept": "btk",
         **dict.fromkeys(["h", "c", "dlast"], "bu"), **dict.fromkeys(["dy", "y"], "btu")}

_grad = FusedOp("RecurrenceGrad", _plain_grad, axes=_AXES)
recurrence = FusedOp("Recurrence", plain, _gradient, axes=_AXES)
