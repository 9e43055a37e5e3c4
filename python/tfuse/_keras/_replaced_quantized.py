"""What tfuse.enable() replaces of Keras's quantised layers, as a table: how Dense, EinsumDense and embeddings are called after
model.quantize(), on GPUs and on CPUs: stock TensorFlow's products of int8 have no kernel for GPUs, of 4 bits Keras unpacks
the whole kernel in every call, and of float8 it multiplies floats that were rounded. What layers keep, and their files, stay as
they are."""

import functools
import inspect

import keras

from tfuse._core._explain import reason
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

_OF_LAYERS = [
    *(Row(_CORE + module, "%s._%s_call" % (name, mode), _layer, _why_not)
      for module, name in _DENSE for mode in quantized_layers.MODES),
    *(Row(_CORE + module, "%s._float8_call" % name, _float8, _why_not_float8) for module, name in _DENSE),
    *(Row(_CORE + "reversible_embedding", "ReversibleEmbedding._%s_call" % mode, _reversed,
          quantized_layers.why_not_reversed) for mode in ("int8", "int4")),
    *(Row(_CORE + "embedding", "Embedding._%s_call" % mode, _looked_up, _why_not_looked_up) for mode in ("int8", "int4")),
]


# ---- from Keras 3.16 on: a strategy for each mode computes what layers of two kinds, projections and lookups, call it for ----


def _projection(serve, why_not):
    """What serves a strategy's call for a Dense or EinsumDense, and its guard; another layer may compute something else."""
    @reason
    def guard(strategy, layer, inputs, training=None):
        geometry = type(layer._quantization_geometry())
        yield geometry.__module__ != _MODES[:-len("modes.")] + "geometry" and "%s has a %s of its own" % (
            type(layer).__name__, geometry.__name__)
        yield not isinstance(layer, (keras.layers.Dense, keras.layers.EinsumDense)) and "a %s is neither Dense nor EinsumDense" % (
            type(layer).__name__)
        yield why_not(layer, inputs)

    return lambda own, strategy, layer, inputs, training=None: serve(own, layer, inputs, training), guard


def _lookup(own, strategy, layer, inputs, reverse=False):
    return _reversed(own, layer, inputs, True) if reverse else _looked_up(own, layer, inputs)


def _why_not_lookup(strategy, layer, inputs, reverse=False):
    return quantized_layers.why_not_reversed(layer, inputs, True) if reverse else quantized_layers.why_not_looked_up(layer)


_MODES = "keras.src.quantizers.modes."
_PRODUCT, _FLOAT8 = _projection(_layer, _why_not), _projection(_float8, _why_not_float8)
_OF_STRATEGIES = [
    Row(_MODES + "int8", "Int8Strategy._call_projection", *_PRODUCT),
    Row(_MODES + "int8", "Int8Strategy._call_lookup", _lookup, _why_not_lookup),
    Row(_MODES + "int4.projection", "Int4ProjectionHandlers._call_projection", *_PRODUCT),
    Row(_MODES + "int4.lookup", "Int4LookupHandlers._call_lookup", _lookup, _why_not_lookup),
    Row(_MODES + "calibration", "CalibrationStrategy.call", *_PRODUCT),
    Row(_MODES + "float8", "Float8Strategy.call", *_FLOAT8),
]
TABLE = _OF_STRATEGIES if quantized_layers.BY_STRATEGY else _OF_LAYERS
