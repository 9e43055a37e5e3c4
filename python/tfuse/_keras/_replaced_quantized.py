"""What tfuse.enable() replaces of Keras's quantised layers, as a table: how Dense, EinsumDense and embeddings are called after
model.quantize(). What they keep, and their files, stay as they are."""

from tfuse._keras import _look_back
from tfuse._keras._replaced import Row, on_a_gpu
from tfuse.products import quantized_layers


def _layer(own, layer, inputs, training=None):
    return quantized_layers.serve(layer, _look_back.gate_before(inputs))


def _reversed(own, layer, inputs, reverse=False):
    return quantized_layers.serve_reversed(layer, inputs) if reverse else own(layer, inputs)


_CORE = "keras.src.layers.core."
_PRODUCTS = on_a_gpu(lambda layer, inputs, training=None: quantized_layers.why_not(layer, inputs), "product")
_HEADS = on_a_gpu(quantized_layers.why_not_reversed, "product")

TABLE = [
    *(Row(_CORE + module, "%s._%s_call" % (name, mode), _layer, _PRODUCTS)
      for module, name in (("dense", "Dense"), ("einsum_dense", "EinsumDense")) for mode in quantized_layers.MODES),
    *(Row(_CORE + "reversible_embedding", "ReversibleEmbedding._%s_call" % mode, _reversed, _HEADS) for mode in ("int8", "int4")),
    Row(_CORE + "embedding", "Embedding._int4_call", lambda own, layer, inputs, training=None: quantized_layers.looked_up(layer, inputs),
        lambda layer, inputs, training=None: quantized_layers.why_not_looked_up(layer)),
]
