"""LSTM and GRU over whole sequences: a whole layer as one op, which is cuDNN's where that serves; or one product for the inputs
of all steps, and the op Recurrence."""

import tensorflow as tf

from tfuse._core import _library
from tfuse._core._op import FusedOp, composite, given, mark, may_record, vjp
from tfuse.elementwise.scale_bias_act import activation_name
from tfuse.products.linear import apply as linear
from tfuse.recurrent.recurrence import first_state, plain, recurrence, wide

_KEPT_UNITS = 8  # TFU_RNN_KEPT_UNITS of the library

# ---- the op ----


def _gradient(node, dy, dlast, dkept):
    """What the plain gradient is made of has no part in what was kept, so nobody asks for its gradient."""
    inputs, (y, _, kept) = node.inputs[:-1], node.outputs
    how = node.attrs("cell", "tf32")
    if not given(kept):
        kept = rnn(*inputs, mark(y.dtype), **how)[2]
    gradients = _grad(dy, dlast, *inputs, y, kept, **how)
    return [*(g if given(i) else None for g, i in zip(gradients, inputs)), None]


def _plain(x, kernel, recurrent_kernel, bias, recurrent_bias, h, c, keep, cell="lstm", tf32=False):
    x_, kernel, recurrent_kernel, bias, *others = wide(x, kernel, recurrent_kernel, bias, recurrent_bias, h, c)
    gates, nothing = tf.tensordot(x_, kernel, 1), tf.zeros([0], tf.bool)
    gates = gates + bias if given(bias) else gates
    y, last, _ = (tf.cast(t, x.dtype) for t in plain(gates, recurrent_kernel, *others, nothing, nothing, nothing, cell))
    shape = tf.concat([tf.shape(y)[:2], [_KEPT_UNITS * tf.shape(y)[2]]], 0)
    return y, last, tf.zeros(shape if given(keep) else [0], x.dtype)


def _plain_grad(dy, dlast, x, kernel, recurrent_kernel, bias, recurrent_bias, h, c, y, kept, cell="lstm", tf32=False):
    inputs = x, kernel, recurrent_kernel, bias, recurrent_bias, h, c
    layer = lambda *inputs: _plain(*inputs, tf.zeros([0], x.dtype), cell)[:2]
    return vjp(layer)([dy, dlast if given(dlast) else None], *inputs)


# Axes by letters: batch, time, features, units, gates of all units, and what is kept of them.
_AXES = {"x": "btf", "kernel": "fg", "recurrent_kernel": "ug", "keep": "zz", "kept": "btk", **dict.fromkeys(["dy", "y"], "btu"),
         **dict.fromkeys(["bias", "recurrent_bias"], "g"), **dict.fromkeys(["h", "c", "dlast"], "bu")}

_grad = FusedOp("RnnGrad", _plain_grad, axes=_AXES)
rnn = FusedOp("Rnn", _plain, _gradient, axes=_AXES)

# ---- layers ----


def _over(op, x, kernel, recurrent_kernel, bias, recurrent_bias, h, c, mask, activation, recurrent_activation, reverse,
          recurrent_scale, training):
    x = tf.convert_to_tensor(x)
    if x.shape.rank not in (3, None):
        raise ValueError("%s: x must be [batch, steps, features], got shape %s" % (op.split("_")[0], x.shape))
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
    if reverse:
        x, mask = tf.reverse(x, [1]), mask if mask is None else tf.reverse(mask, [1])
    keep = mark(x.dtype) if may_record(training) else None
    names = activation_name(activation), activation_name(recurrent_activation)
    how = {"cell": op, "tf32": tf.config.experimental.tensor_float_32_execution_enabled()}
    own = mask is not None or recurrent_scale is not None or op not in ("lstm", "gru")
    if _library.without_gpu() or own or names != ("tanh", "sigmoid"):
        gates = linear(x, kernel, bias, None, None, training)
        y, last, _ = recurrence(gates, recurrent_kernel, recurrent_bias, h, c, mask, recurrent_scale, keep, activation=names[0],
                                recurrent_activation=names[1], **how)
    else:  # what cuDNN has
        y, last, _ = rnn(x, kernel, recurrent_kernel, bias, recurrent_bias, h, c, keep, **how)
    state = y[:, -1] if y.shape[1] else tf.concat([first_state(_given(h, y), y, tf.shape(y)[2])[:, None], y[:, -1:]], 1)[:, -1]
    return tf.reverse(y, [1]) if reverse else y, state, last


def _given(h, like):
    return tf.zeros([0], like.dtype) if h is None else tf.convert_to_tensor(h, like.dtype)


@composite
def lstm(x, kernel, recurrent_kernel, bias=None, h=None, c=None, mask=None, activation="tanh", recurrent_activation="sigmoid",
         reverse=False, recurrent_scale=None, training=None):
    """Returns all states h of an LSTM, and the last h and c: what keras.layers.LSTM computes, with its weights.

    On a GPU, without a mask or recurrent_scale and with these activations, the whole layer is one op, by cuDNN where that is
    faster, inside XLA too. Otherwise the inputs of all steps are one product, tfuse.linear, and all that follows from step to
    step is one op; and so is its gradient.

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
      recurrent_scale: [batch, 4 * units], or None: what h is multiplied by for each gate before its product, as recurrent
        dropout does. It has no gradient.
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
    return _over("lstm", x, kernel, recurrent_kernel, bias, None, h, c, mask, activation, recurrent_activation, reverse,
                 recurrent_scale, training)


@composite
def gru(x, kernel, recurrent_kernel, bias=None, recurrent_bias=None, h=None, mask=None, activation="tanh",
        recurrent_activation="sigmoid", reverse=False, recurrent_scale=None, reset_after=True, training=None):
    """Returns all states h of a GRU, and the last one: what keras.layers.GRU computes, with its weights.

    Args:
      x: float tensor, [batch, steps, features].
      kernel: [features, 3 * units], the gates in Keras's order: update, reset, candidate.
      recurrent_kernel: [units, 3 * units].
      bias: [3 * units], or None; added to x . kernel.
      recurrent_bias: [3 * units], or None; added to h . recurrent_kernel, before the candidate's part is reset.
      h: the first state, [batch, units], or None for zeros.
      mask, activation, recurrent_activation, reverse, training: as in tfuse.lstm, and recurrent_scale, of 3 * units.
      reset_after: whether the candidate's part of h . recurrent_kernel is reset, or, where it is False, h before this product.

    Returns:
      y: [batch, steps, units], the state after each step.
      h: [batch, units], that after the last one.

    Example:
      x, kernel, recurrent_kernel = tf.random.normal([8, 20, 32]), tf.random.normal([32, 48]), tf.random.normal([16, 48])
      y, h = tfuse.gru(x, kernel, recurrent_kernel)
    """
    return _over("gru" if reset_after else "gru_reset_before", x, kernel, recurrent_kernel, bias, recurrent_bias, h, None, mask,
                 activation, recurrent_activation, reverse, recurrent_scale, training)[:2]
