import tensorflow as tf

import tfuse
from tfuse._core._op import mark
from tfuse.cases import Timed, bars
from tfuse.cases.recurrent.recurrence import GRU_INPUTS, LSTM_INPUTS, Gru, Lstm, case, stock_gru, stock_lstm
from tfuse.recurrent.rnn import rnn


def _whole(cell):
    """By the op, which tfuse.lstm and tfuse.gru take on a GPU only."""
    def run(x, kernel, recurrent_kernel, bias, recurrent_bias=None, h=None, c=None):
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        y, last, _ = rnn(x, kernel, recurrent_kernel, bias, recurrent_bias, h, c, mark(x.dtype), cell=cell, tf32=tf32)
        last_h = tf.concat([h[:, None], y], 1)[:, -1]
        return [y, last_h, last] if cell == "lstm" else [y, last_h]
    return run


def _without_mask(inputs):
    return {name: i for name, i in inputs.items() if name != "mask"}


_OF_LSTM, _OF_GRU = _without_mask(LSTM_INPUTS), _without_mask(GRU_INPUTS)
CASES = [case("rnn, lstm", _whole("lstm"), stock_lstm, Lstm, _OF_LSTM, ["h", "c"], [{}]),
         case("rnn, gru", _whole("gru"), stock_gru, Gru, _OF_GRU, ["h"], [{}])]


def _flops(gates):
    """Of the products with both kernels: one forward, two backward."""
    def flops(shape, options):
        batch, steps, features, units = shape
        once = 2 * batch * steps * (features + units) * gates * units
        return once, 2 * once
    return flops


def _elements(gates):
    def elements(shape):
        batch, steps, features, units = shape
        once = batch * steps * (features + units) + (features + units) * gates * units
        return once, 2 * once
    return elements



_SPEED = [(case("lstm, speed", tfuse.lstm, stock_lstm, Lstm, _OF_LSTM, ["h", "c"], [{}]), 4),
          (case("gru, speed", tfuse.gru, stock_gru, Gru, _OF_GRU, ["h"], [{}]), 3),
          (case("lstm, masked", tfuse.lstm, stock_lstm, Lstm, LSTM_INPUTS, ["h", "c"], [{}]), 4)]
_SIZES = [(64, 512, 512, 512), (64, 512, 1024, 1024)]
# XLA would compile 512 steps one by one. PyTorch has no masks of steps.
TIMES = [Timed(timed, _SIZES, cpu_sizes=[(32, 50, 128, 128)], flops=_flops(gates), elements=_elements(gates), xla_can=False,
               bars=bars(*_SIZES, of_torch=1.0) if "speed" in timed.name else {}) for timed, gates in _SPEED]
