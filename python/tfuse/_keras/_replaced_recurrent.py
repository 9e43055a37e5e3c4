"""What tfuse.enable() replaces of Keras's recurrent layers, as a table: their loops over steps."""

from keras.src.backend.tensorflow.rnn import cudnn_ok

from tfuse._core import _xla
from tfuse._keras._replaced import Row
from tfuse.recurrent.recurrent_layers import gru_guard, gru_loop, lstm_guard, lstm_loop

_RNN = "keras.src.layers.rnn."


def _keras_has_cudnn(layer):
    """Whether Keras itself runs the loop by cuDNN. It cannot inside XLA, and not with recurrent dropout."""
    cell = layer.cell
    return (layer.use_cudnn and not cell.recurrent_dropout and not _xla.is_inside() and cudnn_ok(
        cell.activation, cell.recurrent_activation, layer.unroll, cell.use_bias, getattr(cell, "reset_after", None)))


def _unless_keras_has_cudnn(guard):
    def why_not(layer, sequences, initial_state, mask, training=False):
        if _keras_has_cudnn(layer):
            return "outside of XLA Keras runs it by cuDNN"
        return guard(layer, sequences, initial_state, mask, training)

    return why_not


TABLE = [
    Row(_RNN + "lstm", "LSTM.inner_loop", lstm_loop, _unless_keras_has_cudnn(lstm_guard)),
    Row(_RNN + "gru", "GRU.inner_loop", gru_loop, _unless_keras_has_cudnn(gru_guard)),
]
