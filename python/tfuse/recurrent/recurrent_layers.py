"""Keras's LSTM and GRU by tfuse.lstm and tfuse.gru, and its RNN over their cells: what takes the place of loops over steps."""

import functools

import keras
import tensorflow as tf

from tfuse._core._explain import reason
from tfuse._core._layer import made_of, not_computed_in
from tfuse.elementwise.scale_bias_act import known_activation
from tfuse.recurrent.rnn import gru, lstm

_KINDS = {keras.layers.LSTMCell: "lstm", keras.layers.GRUCell: "gru"}  # a class made of one of these may compute something else
_STATES = {"lstm": 2, "gru": 1}


def one_mask(mask):
    """Keras's mask of a layer's inputs, which may be one of each."""
    return mask[0] if isinstance(mask, (list, tuple)) else mask


def _is_stack(layer):
    return type(layer.cell) is keras.layers.StackedRNNCells


def _cells(layer):
    return layer.cell.cells if _is_stack(layer) else [layer.cell]


def _first_states(layer, initial_state):
    """Of each cell, the states that it begins with, as a list."""
    return [list(states) if isinstance(states, (list, tuple)) else [states]
            for states in (initial_state if _is_stack(layer) else [initial_state])]


@reason
def other_cell(layer):
    """Which of a layer's cells tfuse does not know."""
    for cell in _cells(layer):
        yield type(cell) not in _KINDS and (
            "its cell is a %s, and neither Keras's LSTMCell nor its GRUCell" % type(cell).__name__)


@reason
def why_not(layer, sequences, initial_state, mask, training=False):
    """Why tfuse does not serve the loop of a layer of Keras's."""
    yield getattr(layer, "use_cudnn", False) is True and "use_cudnn=True asks for Keras's own call of cuDNN"
    yield other_cell(layer)
    for cell in _cells(layer):
        yield not_computed_in(cell, sequences)
        yield _drops(training, cell.recurrent_dropout) and not hasattr(cell, "dropout_mask_count") and (
            "before Keras 3.8 the dropout of states has one mask for all gates")
        for activation in (cell.activation, cell.recurrent_activation):
            yield known_activation(activation)[1] is not None and "%s is not in the table of activations" % getattr(
                activation, "__name__", activation)
    yield sequences.shape.rank != 3 and "the input is not [batch, steps, features]"
    first = _first_states(layer, initial_state)
    yield [len(states) for states in first] != [_STATES[_KINDS[type(cell)]] for cell in _cells(layer)] and (
        "the first states are not as many as the cells have")
    yield any(state.dtype != sequences.dtype for states in first for state in states) and (
        "the first states are of another dtype than the input")
    mask = one_mask(mask)
    yield mask is not None and len(mask.shape) != 2 and "the mask is not [batch, steps]"


def loop(own, layer, sequences, initial_state, mask, training=False):
    """inner_loop() of Keras's layers: (last output, outputs, states). What is masked has the output before it, zeros at first,
    or zeros everywhere. Stacked cells go over the sequence one after the other."""
    mask, cells, stack = one_mask(mask), _cells(layer), _is_stack(layer)
    mask = None if mask is None else tf.cast(mask, tf.bool)
    if layer.go_backwards:
        sequences, mask = tf.reverse(sequences, [1]), None if mask is None else tf.reverse(mask, [1])
    y, after = sequences, []
    for cell, states, given in zip(cells, _first_states(layer, initial_state), initial_state if stack else [[]]):
        y, *states = _over(cell, y, states, mask, training)
        after.append(states if isinstance(given, (list, tuple)) else states[0])
    if mask is not None:
        shown = mask if layer.zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32), 1) > 0
        y = tf.where(shown[:, :, None], y, tf.zeros([], y.dtype))
    return y[:, -1], y if layer.return_sequences else y[:, -1:], after if stack else after[0]


def _drops(training, rate):
    """Whether a cell of Keras's drops anything at this rate: not where that would be all."""
    return training and 0 < rate < 1


def _over(cell, x, states, mask, training):
    """A cell over sequences: all outputs, and the last states."""
    dropped = cell.get_dropout_mask(x[:, 0]) if _drops(training, cell.dropout) else None
    scale = cell.get_recurrent_dropout_mask(states[0]) if _drops(training, cell.recurrent_dropout) else None
    kernel, recurrent_kernel, bias = (None if w is None else keras.ops.convert_to_tensor(w, x.dtype)
                                      for w in (cell.kernel, cell.recurrent_kernel, cell.bias))
    if isinstance(dropped, list):  # one for each gate, whose inputs are then other ones
        x = tf.concat([x * tf.cast(some[:, None], x.dtype) for some in dropped], 2)
        kernel = _diagonal(tf.split(kernel, len(dropped), 1))
    elif dropped is not None:
        x = x * tf.cast(dropped[:, None], x.dtype)
    if scale is not None:  # Keras has a list of them wherever it has any
        scale = tf.cast(tf.concat(scale, 1), x.dtype)
    name = lambda activation: known_activation(activation)[0]
    options = {"activation": name(cell.activation), "recurrent_activation": name(cell.recurrent_activation), "mask": mask,
               "recurrent_scale": scale, "training": bool(training)}
    if _KINDS[type(cell)] == "lstm":
        return lstm(x, kernel, recurrent_kernel, bias, *states, **options)
    biases = (bias, None) if bias is None or not cell.reset_after else tf.unstack(bias)
    return gru(x, kernel, recurrent_kernel, *biases, *states, reset_after=cell.reset_after, **options)


def _diagonal(blocks):
    """A matrix of these along its diagonal: the product of inputs side by side, each with its own."""
    zeros = lambda block: tf.zeros_like(block)
    return tf.concat([tf.concat([block if i == k else zeros(block) for k in range(len(blocks))], 1)
                      for i, block in enumerate(blocks)], 0)


def _layer(stock, example):
    def or_own(own, layer, *inputs, **options):
        return (own if why_not(layer, *inputs, **options) else functools.partial(loop, own))(layer, *inputs, **options)

    name = stock.__name__
    doc = """keras.layers.%s by tfuse.%s: same arguments, weights and results, with and without jit_compile.

    Activations that are not in tfuse's table are left to Keras's own loop.

    Example:
      layer = tfuse.%s(%s)
    """ % (name, name.lower(), name, example)
    may_be_compiled = property(lambda layer: layer.use_cudnn != True and not other_cell(layer), lambda layer, value: None)
    return made_of(stock, {"inner_loop": or_own}, doc, __name__, supports_jit=may_be_compiled)


LSTM = _layer(keras.layers.LSTM, "64, return_sequences=True")
GRU = _layer(keras.layers.GRU, "64, return_sequences=True")
