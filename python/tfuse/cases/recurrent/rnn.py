import tensorflow as tf

import tfuse
from tfuse._core._op import mark
from tfuse.cases import Timed, bars
from tfuse.cases.recurrent.recurrence import GRU_INPUTS, LSTM_INPUTS, Gru, Lstm, case, scale, stock_gru, stock_lstm
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


_SIZES = [(64, 512, 512, 512), (64, 512, 1024, 1024)]
_FEW = [(8, 512, 1024, 1024), (1, 512, 1024, 1024)]
_DTYPES = "float32", "float16", "bfloat16"


def _timed(cell, more="speed", sizes=_SIZES[:1], options=(), asked=bars(_SIZES[0], dtypes=_DTYPES, of_torch=1.3), **inputs):
    """Stock TensorFlow goes from step to step, which is enough at one size of the plain layer. XLA cannot compile this forward
    and backward apart, since the lists of what a loop keeps cannot leave it. PyTorch has neither masks nor recurrent dropout nor
    other activations: its times are those of the layer without them."""
    lstm, name = cell == "lstm", "%s, %s" % (cell, more)
    made = case(name, *((tfuse.lstm, stock_lstm, Lstm) if lstm else (tfuse.gru, stock_gru, Gru)),
                {**(_OF_LSTM if lstm else _OF_GRU), **inputs}, ["h", "c"] if lstm else ["h"], [dict(options)])
    gates = 4 if lstm else 3
    return Timed(made, sizes, cpu_sizes=[(32, 50, 128, 128)], flops=_flops(gates), elements=_elements(gates), xla_can=False,
                 in_xla=more == "speed", stock_can=lambda shape: shape not in sizes[more == "speed":], bars=asked)


_SPEED = {**bars(*_SIZES, dtypes=_DTYPES, torch=1.0, of_torch=1.0), **bars(*_FEW, dtypes=_DTYPES, torch=0.5)}
TIMES = [timed for cell, gates in (("lstm", 4), ("gru", 3)) for timed in (
    _timed(cell, sizes=_SIZES + _FEW, asked=_SPEED),
    _timed(cell, "masked", mask=LSTM_INPUTS["mask"]),
    _timed(cell, "recurrent dropout", recurrent_scale=scale(gates)),
    _timed(cell, "another activation", options={"activation": "relu6"}))]
