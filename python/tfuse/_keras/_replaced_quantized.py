"""What tfuse.enable() replaces of Keras's quantised layers, as a table: how Dense, EinsumDense and embeddings are called after
model.quantize(), on GPUs and on CPUs: stock TensorFlow's products of int8 have no kernel for GPUs, of 4 bits Keras unpacks
the whole kernel in every call, and of float8 it multiplies floats that were rounded. What layers keep, and their files, stay as
they are."""

import functools
import inspect

from tfuse._keras import _look_back
from tfuse._keras._replaced import Row
from tfuse.products import float8_layers, quantized_layers


def _layer(own, layer, inputs, training=None):
    return quantized_layers.serve(layer, _look_back.gate_before(inputs))


@functools.lru_cache(None)
def _always_updates(own):
    """Whether a Keras's float8 layers are not told if they train: then their scales follow every call that has a gradient."""
    return "training" not in inspect.signature(own).parameters


def _float8(own, layer, inputs, training=None):
    return float8_layers.serve(layer, _look_back.gate_before(inputs), training or _always_updates(own))


def _looked_up(own, layer, inputs, training=None):
    return quantized_layers.looked_up(layer, inputs)


def _reversed(own, layer, inputs, reverse=False):
    return quantized_layers.serve_reversed(layer, inputs) if reverse else own(layer, inputs)


_CORE = "keras.src.layers.core."


def _why_not(layer, inputs, training=None):
    return quantized_layers.why_not(layer, inputs)


def _why_not_float8(layer, inputs, training=None):
    return float8_layers.why_not(layer, inputs)


def _why_not_looked_up(layer, inputs, training=None):
    return quantized_layers.why_not_looked_up(layer)


_DENSE = ("dense", "Dense"), ("einsum_dense", "EinsumDense")

TABLE = [
    *(Row(_CORE + module, "%s._%s_call" % (name, mode), _layer, _why_not)
      for module, name in _DENSE for mode in quantized_layers.MODES),
    *(Row(_CORE + module, "%s._float8_call" % name, _float8, _why_not_float8) for module, name in _DENSE),
    *(Row(_CORE + "reversible_embedding", "ReversibleEmbedding._%s_call" % mode, _reversed,
          quantized_layers.why_not_reversed) for mode in ("int8", "int4")),
    *(Row(_CORE + "embedding", "Embedding._%s_call" % mode, _looked_up, _why_not_looked_up) for mode in ("int8", "int4")),
]
