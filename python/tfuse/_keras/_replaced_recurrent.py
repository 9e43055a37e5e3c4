"""What tfuse.enable() replaces of Keras's recurrent layers, as a table: their loops over steps, and whether a model with such
layers may be compiled by XLA."""

import types

import keras
from keras.src.backend.tensorflow.rnn import cudnn_ok

from tfuse._core import _xla
from tfuse._core._explain import reason
from tfuse._keras._replaced import Row, class_in
from tfuse.recurrent.recurrent_layers import loop, one_mask, other_cell, why_not

_RNN = "keras.src.layers.rnn."


_FEW = 16  # sequences, which cuDNN computes by a faster algorithm where it is asked to

_HELD = 1024  # units, whose recurrent kernel stays in registers (kernels/recurrent/recurrence_persistent_gpu.c)


def _keras_has_cudnn(layer, sequences, mask):
    """Whether Keras itself runs the loop by cuDNN, and no slower. It cannot inside XLA, nor with recurrent dropout, nor with
    every mask: it refuses those that have holes or are padded on the left, and sequences without steps. And it always asks
    for cuDNN's standard algorithm, where tfuse asks for faster ones in 16 bits and for few sequences, and has kernels of its
    own for recurrent kernels that fit into the registers of a GPU."""
    cell = layer.cell
    few = sequences.shape[0] is not None and sequences.shape[0] <= _FEW
    narrow = keras.backend.standardize_dtype(sequences.dtype) in ("float16", "bfloat16")
    held = cell.units <= _HELD and cell.units % 8 == 0
    elsewhere = cell.recurrent_dropout or one_mask(mask) is not None or few or narrow or held or _xla.is_inside()
    return layer.use_cudnn and not elsewhere and cudnn_ok(
        cell.activation, cell.recurrent_activation, layer.unroll, cell.use_bias, getattr(cell, "reset_after", None))


@reason
def _guard(layer, sequences, initial_state, mask, training=False):
    yield why_not(layer, sequences, initial_state, mask, training)
    yield _keras_has_cudnn(layer, sequences, mask) and "outside of XLA Keras runs it by cuDNN, as fast"


# ---- jit_compile ----


def _may_be_compiled(own, model):
    """Keras turns jit_compile=True off, with a warning, for models with layers that it may run by cuDNN, which is nothing
    that XLA could compile. What takes its place is."""
    served = lambda layer: isinstance(layer, (keras.layers.LSTM, keras.layers.GRU)) and (
        layer.use_cudnn == "auto" and not other_cell(layer))
    others = [layer for layer in model._flatten_layers() if not served(layer)]
    return own(types.SimpleNamespace(_flatten_layers=lambda: others))


def _unless_keras_has_none(own, model):
    """jit_compile="auto" stays what it is without tfuse: XLA would compile anew for every length of sequences."""
    return own(model) and all(layer.supports_jit for layer in model._flatten_layers())


_TRAINER = "keras.src.trainers.trainer"
TABLE = [
    Row(_RNN + "lstm", "LSTM.inner_loop", loop, _guard),
    Row(_RNN + "gru", "GRU.inner_loop", loop, _guard),
    Row(_RNN + "rnn", "RNN.inner_loop", loop, why_not),
    Row(_TRAINER, "model_supports_jit", _may_be_compiled),
    Row(_TRAINER, class_in(_TRAINER, "Trainer", "BaseTrainer") + "._resolve_auto_jit_compile", _unless_keras_has_none),
]
