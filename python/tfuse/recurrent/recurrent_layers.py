"""Keras's LSTM and GRU by tfuse.lstm and tfuse.gru: what takes the place of their loops over steps."""

import keras
import tensorflow as tf

from tfuse._core._explain import reason
from tfuse._core._layer import made_of, not_computed_in
from tfuse.elementwise.scale_bias_act import known_activation
from tfuse.recurrent.rnn import gru, lstm


def one_mask(mask):
    """Keras's mask of a layer's inputs, which may be one of each."""
    return mask[0] if isinstance(mask, (list, tuple)) else mask


@reason
def why_not(cell_class, layer, sequences, mask, training):
    """Why tfuse does not serve the loop of a layer of Keras's."""
    cell = layer.cell
    yield not_computed_in(layer, sequences)
    yield sequences.shape.rank != 3 and "the input is not [batch, steps, features]"
    yield type(cell).call is not cell_class.call and "its cell is a %s of its own" % type(cell).__name__
    yield layer.use_cudnn is True and "use_cudnn=True asks for Keras's own call of cuDNN"
    for activation in (cell.activation, cell.recurrent_activation):
        yield known_activation(activation)[1] is not None and "%s is not in the table of activations" % getattr(
            activation, "__name__", activation)
    yield not getattr(cell, "reset_after", True) and "reset_after=False resets the state before the product"
    mask = one_mask(mask)
    yield mask is not None and len(mask.shape) != 2 and "the mask is not [batch, steps]"


def _run(layer, sequences, initial_state, mask, training, recur):
    """(last output, outputs, states) as Keras's loops return them: what is masked has the output before it, zeros at first, or
    zeros everywhere."""
    mask, cell = one_mask(mask), layer.cell
    mask = None if mask is None else tf.cast(mask, tf.bool)
    dropped = cell.get_dropout_mask(sequences[:, 0]) if training and cell.dropout else None
    scale = cell.get_recurrent_dropout_mask(initial_state[0]) if training and cell.recurrent_dropout else None
    if layer.go_backwards:
        sequences, mask = tf.reverse(sequences, [1]), None if mask is None else tf.reverse(mask, [1])
    kernel, recurrent_kernel, bias = (None if w is None else keras.ops.convert_to_tensor(w, sequences.dtype)
                                      for w in (cell.kernel, cell.recurrent_kernel, cell.bias))
    if isinstance(dropped, list):  # one for each gate, whose inputs are then other ones
        sequences = tf.concat([sequences * tf.cast(some[:, None], sequences.dtype) for some in dropped], 2)
        kernel = _diagonal(tf.split(kernel, len(dropped), 1))
    elif dropped is not None:
        sequences = sequences * tf.cast(dropped[:, None], sequences.dtype)
    if scale is not None:  # Keras has a list of them wherever it has any
        scale = tf.cast(tf.concat(scale, 1), sequences.dtype)
    y, *states = recur(sequences, kernel, recurrent_kernel, bias, mask=mask, recurrent_scale=scale, **_options(layer, training))
    if mask is not None:
        shown = mask if layer.zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32), 1) > 0
        y = tf.where(shown[:, :, None], y, tf.zeros([], y.dtype))
    return y[:, -1], y if layer.return_sequences else y[:, -1:], states


def _diagonal(blocks):
    """A matrix of these along its diagonal: the product of inputs side by side, each with its own."""
    zeros = lambda block: tf.zeros_like(block)
    return tf.concat([tf.concat([block if i == k else zeros(block) for k in range(len(blocks))], 1)
                      for i, block in enumerate(blocks)], 0)


def _options(layer, training):
    name = lambda activation: known_activation(activation)[0]
    return {"activation": name(layer.cell.activation), "recurrent_activation": name(layer.cell.recurrent_activation),
            "training": bool(training)}


def lstm_loop(own, layer, sequences, initial_state, mask, training=False):
    """LSTM.inner_loop."""
    return _run(layer, sequences, initial_state, mask, training, lambda x, kernel, recurrent_kernel, bias, **options: lstm(
        x, kernel, recurrent_kernel, bias, *initial_state, **options))


def gru_loop(own, layer, sequences, initial_state, mask, training=False):
    """GRU.inner_loop."""
    return _run(layer, sequences, initial_state, mask, training, lambda x, kernel, recurrent_kernel, bias, **options: gru(
        x, kernel, recurrent_kernel, *((None, None) if bias is None else tf.unstack(bias)), *initial_state, **options))


def lstm_guard(layer, sequences, initial_state, mask, training=False):
    return why_not(keras.layers.LSTMCell, layer, sequences, mask, training)


def gru_guard(layer, sequences, initial_state, mask, training=False):
    return why_not(keras.layers.GRUCell, layer, sequences, mask, training)


def _layer(stock, serve, guard, example):
    def loop(own, layer, *inputs, **options):
        return own(layer, *inputs, **options) if guard(layer, *inputs, **options) else serve(own, layer, *inputs, **options)

    name = stock.__name__
    doc = """keras.layers.%s by tfuse.%s: same arguments, weights and results, with and without jit_compile.

    reset_after=False and activations that are not in tfuse's table are left to Keras's own loop.

    Example:
      layer = tfuse.%s(%s)
    """ % (name, name.lower(), name, example)
    may_be_compiled = property(lambda layer: layer.use_cudnn != True, lambda layer, value: None)
    return made_of(stock, {"inner_loop": loop}, doc, __name__, supports_jit=may_be_compiled)


LSTM = _layer(keras.layers.LSTM, lstm_loop, lstm_guard, "64, return_sequences=True")
GRU = _layer(keras.layers.GRU, gru_loop, gru_guard, "64, return_sequences=True")
