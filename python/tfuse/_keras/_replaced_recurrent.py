"""What tfuse.enable() replaces of Keras's recurrent layers, as a table: their loops over steps."""

from tfuse._keras._replaced import Row
from tfuse.recurrent.recurrent_layers import gru_guard, gru_loop, lstm_guard, lstm_loop

_RNN = "keras.src.layers.rnn."

TABLE = [
    Row(_RNN + "lstm", "LSTM.inner_loop", lstm_loop, lstm_guard),
    Row(_RNN + "gru", "GRU.inner_loop", gru_loop, gru_guard),
]
