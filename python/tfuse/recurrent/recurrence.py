"""LSTM and GRU over whole sequences: one product for the inputs of all steps, and one op for all that follows from step to
step."""

import tensorflow as tf
from tensorflow.python.eager import context, record

from tfuse._core._op import FusedOp, composite, given, mark, may_record, real, vjp
from tfuse.elementwise.scale_bias_act import PLAIN, activation_name, plain_behind
from tfuse.products.linear import apply as linear

# ---- plain TensorFlow ----

_UNROLLED = 64  # steps, at most


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


def _wide(*tensors):
    return [tf.cast(t, real(t.dtype)) if t.dtype.is_floating else t for t in tensors]


def _first(state, like, units):
    """A first state: zeros where it is not given."""
    return state if given(state) else tf.zeros([tf.shape(like)[0], units], like.dtype)


def _mask_of(mask, like):
    return (mask if given(mask) else tf.ones(tf.shape(like)[:2], tf.bool))[:, :, None]


def _plain(gates, recurrent_kernel, bias, h, c, mask, keep, cell="lstm", activation="tanh", recurrent_activation="sigmoid",
           tf32=False):
    dtype, units, (act, gate) = gates.dtype, recurrent_kernel.shape[0], (PLAIN[activation], PLAIN[recurrent_activation])
    gates, recurrent_kernel, bias, h, c = _wide(gates, recurrent_kernel, bias, h, c)
    h, c = _first(h, gates, units), _first(c, gates, units)
    lstm = cell == "lstm"

    def step(state, values):
        (h, c), (x, counts) = state, values
        p = tf.matmul(h, recurrent_kernel)
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


def _plain_grad(dy, dlast, recurrent_kernel, h, c, mask, y, kept, cell="lstm", activation="tanh",
                recurrent_activation="sigmoid", tf32=False):
    dtype, units, act, gate = dy.dtype, recurrent_kernel.shape[0], activation, recurrent_activation
    dy, dlast, recurrent_kernel, h, c, y, kept = _wide(dy, dlast, recurrent_kernel, h, c, y, kept)
    before = tf.concat([_first(h, dy, units)[:, None], y], 1)[:, :-1]
    c_before = tf.concat([_first(c, dy, units)[:, None], kept[:, :, -units:]], 1)[:, :-1]
    lstm = cell == "lstm"

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
        else:
            z, r, g, inner = tf.split(kept, 4, 1)
            dg = plain_behind(dh * (1 - PLAIN[gate](z)), g, act)
            both = [plain_behind(dh * (h - PLAIN[act](g)), z, gate), plain_behind(dg * inner, r, gate)]
            dgates, dp = tf.concat([*both, dg], 1), tf.concat([*both, dg * PLAIN[gate](r)], 1)
            rest = dh * PLAIN[gate](z)
        dgates, dp = (tf.where(counts, d, tf.zeros_like(d)) for d in (dgates, dp))
        dh = tf.where(counts, rest, dh) + tf.matmul(dp, recurrent_kernel, transpose_b=True)
        return (dh, dc), [dgates, dp]

    begin = tf.zeros([tf.shape(dy)[0], units], dy.dtype), _first(dlast, dy, units)
    (dh, dc), results = _loop(step, begin, [dy, kept, before, c_before, _mask_of(mask, dy)], reverse=True)
    dgates, dp, dh, dc = (tf.cast(t, dtype) for t in (*results, dh, dc))
    nothing = tf.zeros([0], dtype)
    return (dgates, nothing, dh, dc) if lstm else (dgates, dp, dh, nothing)


# ---- the ops ----


def _gradient(node, dy, dlast, dkept):
    """dkept is that of what was kept, which only the gradient of this gradient asks for. Eagerly, where a tape may ask for that,
    the plain composition takes the op's place, as TensorFlow makes up zeros for dkept there."""
    gates, recurrent_kernel, bias, h, c, mask, _ = node.inputs
    y, _, kept = node.outputs
    how = node.attrs("cell", "activation", "recurrent_activation", "tf32")
    eager = context.executing_eagerly()
    if eager and record.could_possibly_record() or not eager and dkept is not None:
        return vjp(_plain)([dy, dlast, dkept], *node.inputs, **how)
    if not given(kept):
        kept = _recurrence(*node.inputs[:-1], mark(gates.dtype), **how)[2]
    dgates, dproduct, dh, dc = _grad(dy, dlast, recurrent_kernel, h, c, mask, y, kept, **how)
    dproduct = dproduct if given(dproduct) else dgates
    before = tf.concat([_first(h, gates, tf.shape(recurrent_kernel)[0])[:, None], y], 1)[:, :-1]
    rows = lambda t: tf.reshape(t, [-1, tf.shape(t)[2]])
    dkernel = tf.matmul(rows(before), rows(dproduct), transpose_a=True) if node.wanted(1) else None
    dbias = tf.reduce_sum(dproduct, [0, 1]) if given(bias) else None
    return [dgates, dkernel, dbias, dh if given(h) else None, dc if given(c) else None, None, None]


def _gradient_of_rnn(node, dy, dlast, dkept):
    """What the plain gradient is made of has no part in what was kept, so nobody asks for its gradient."""
    inputs, (y, _, kept) = node.inputs[:-1], node.outputs
    how = node.attrs("cell", "tf32")
    if not given(kept):
        kept = _rnn(*inputs, mark(y.dtype), **how)[2]
    gradients = _rnn_grad(dy, dlast, *inputs, y, kept, **how)
    return [*(g if given(i) else None for g, i in zip(gradients, inputs)), None]


def _plain_rnn(x, kernel, recurrent_kernel, bias, recurrent_bias, h, c, keep, cell="lstm", tf32=False):
    wide = _wide(x, kernel, recurrent_kernel, bias, recurrent_bias, h, c)
    gates = tf.tensordot(wide[0], wide[1], 1)
    gates = gates + wide[3] if given(bias) else gates
    mask = tf.zeros([0], tf.bool)
    y, last, _ = (tf.cast(t, x.dtype) for t in _plain(gates, wide[2], *wide[4:], mask, mask, cell))
    shape = tf.concat([tf.shape(y)[:2], [_KEPT_UNITS * tf.shape(y)[2]]], 0)
    return y, last, tf.zeros(shape if given(keep) else [0], x.dtype)


def _plain_rnn_grad(dy, dlast, x, kernel, recurrent_kernel, bias, recurrent_bias, h, c, y, kept, cell="lstm", tf32=False):
    inputs = x, kernel, recurrent_kernel, bias, recurrent_bias, h, c
    plain = lambda *inputs: _plain_rnn(*inputs, tf.zeros([0], x.dtype), cell)[:2]
    return vjp(plain)([dy, dlast if given(dlast) else None], *inputs)


_KEPT_UNITS = 8  # TFU_RNN_KEPT_UNITS of the library

# Axes by letters: batch, time, units, gates of all units, and what is kept of them.
_AXES = {"gates": "btg", "x": "btf", "kernel": "fg", "recurrent_kernel": "ug", **dict.fromkeys(["bias", "recurrent_bias"], "g"), "mask": "bt", "keep": "xx", "kept": "btk",
         **dict.fromkeys(["h", "c", "dlast"], "bu"), **dict.fromkeys(["dy", "y"], "btu")}

_grad = FusedOp("RecurrenceGrad", _plain_grad, axes=_AXES)
_recurrence = FusedOp("Recurrence", _plain, _gradient, axes=_AXES)
_rnn_grad = FusedOp("RnnGrad", _plain_rnn_grad, axes=_AXES)
_rnn = FusedOp("Rnn", _plain_rnn, _gradient_of_rnn, axes=_AXES)


def _over(op, x, kernel, recurrent_kernel, bias, recurrent_bias, h, c, mask, activation, recurrent_activation, reverse,
          training):
    x = tf.convert_to_tensor(x)
    if x.shape.rank not in (3, None):
        raise ValueError("%s: x must be [batch, steps, features], got shape %s" % (op, x.shape))
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
    if reverse:
        x, mask = tf.reverse(x, [1]), mask if mask is None else tf.reverse(mask, [1])
    gates = linear(x, kernel, bias, None, None, training)
    keep = mark(gates.dtype) if may_record(training) else None
    y, last, _ = _recurrence(gates, recurrent_kernel, recurrent_bias, h, c, mask, keep, cell=op,
                             activation=activation_name(activation), recurrent_activation=activation_name(recurrent_activation),
                             tf32=tf.config.experimental.tensor_float_32_execution_enabled())
    state = y[:, -1] if y.shape[1] else tf.concat([_first(_given(h, y), y, tf.shape(y)[2])[:, None], y[:, -1:]], 1)[:, -1]
    return tf.reverse(y, [1]) if reverse else y, state, last


def _given(h, like):
    return tf.zeros([0], like.dtype) if h is None else tf.convert_to_tensor(h, like.dtype)


@composite
def lstm(x, kernel, recurrent_kernel, bias=None, h=None, c=None, mask=None, activation="tanh", recurrent_activation="sigmoid",
         reverse=False, training=None):
    """Returns all states h of an LSTM, and the last h and c: what keras.layers.LSTM computes, with its weights.

    The inputs of all steps are one product, tfuse.linear; all that follows from step to step is one op, and so is its gradient.

    Args:
      x: float tensor, [batch, steps, features].
      kernel: [features, 4 * units], the gates in Keras's order: input, forget, candidate, output.
      recurrent_kernel: [units, 4 * units].
      bias: [4 * units], or None.
      h, c: the first states, [batch, units], or None for zeros.
      mask: [batch, steps]; a step that it has not leaves the states as they are. None: all steps count.
      activation: of candidates and of c; as in tfuse.scale_bias_act.
      recurrent_activation: of the other gates.
      reverse: whether the last step comes first; results are in the order of x all the same.
      training: False where no gradient will be asked for, so that nothing is kept for it.

    Returns:
      y: [batch, steps, units], the state h after each step.
      h, c: [batch, units], those after the last one.

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or an unknown activation.

    Example:
      x, kernel, recurrent_kernel = tf.random.normal([8, 20, 32]), tf.random.normal([32, 64]), tf.random.normal([16, 64])
      y, h, c = tfuse.lstm(x, kernel, recurrent_kernel)
    """
    return _over("lstm", x, kernel, recurrent_kernel, bias, None, h, c, mask, activation, recurrent_activation, reverse, training)


@composite
def gru(x, kernel, recurrent_kernel, bias=None, recurrent_bias=None, h=None, mask=None, activation="tanh",
        recurrent_activation="sigmoid", reverse=False, training=None):
    """Returns all states h of a GRU, and the last one: what keras.layers.GRU computes with reset_after=True, and its weights.

    Args:
      x: float tensor, [batch, steps, features].
      kernel: [features, 3 * units], the gates in Keras's order: update, reset, candidate.
      recurrent_kernel: [units, 3 * units].
      bias: [3 * units], or None; added to x . kernel.
      recurrent_bias: [3 * units], or None; added to h . recurrent_kernel, before the candidate's part is reset.
      h: the first state, [batch, units], or None for zeros.
      mask, activation, recurrent_activation, reverse, training: as in tfuse.lstm.

    Returns:
      y: [batch, steps, units], the state after each step.
      h: [batch, units], that after the last one.

    Example:
      x, kernel, recurrent_kernel = tf.random.normal([8, 20, 32]), tf.random.normal([32, 48]), tf.random.normal([16, 48])
      y, h = tfuse.gru(x, kernel, recurrent_kernel)
    """
    return _over("gru", x, kernel, recurrent_kernel, bias, recurrent_bias, h, None, mask, activation, recurrent_activation,
                 reverse, training)[:2]
