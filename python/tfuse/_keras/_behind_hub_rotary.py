"""What tfuse.enable() replaces in KerasHub: its rotary embedding, by tfuse.rope, as a row of _behind.TABLE. In 16 bits
KerasHub rounds sines and cosines, tfuse.rope does not."""

import keras

from tfuse._keras._behind import Row, not_taken
from tfuse.elementwise.rope import embed

_KNOWN = "RotaryEmbedding", "LlamaRotaryEmbedding"


def _rotary(own, layer, inputs, start_index=0, positions=None):
    # Llama's own embedding has a factor as well, and does not use it.
    return embed(layer, layer.scaling_factor if type(layer).__name__ == _KNOWN[0] else 1.0, inputs, start_index, positions)


def _guard(layer, inputs, start_index=0, positions=None):
    if type(layer).__name__ not in _KNOWN:
        return "tfuse.rope does not know the frequencies of %s" % type(layer).__name__
    if getattr(layer, "low_freq_factor", None) is not None or getattr(layer, "rope_type", "linear") != "linear":
        return "tfuse.rope scales all frequencies alike"
    if getattr(layer, "denominator_dim", None) is not None:
        return "tfuse.rope takes frequencies from the number of features"
    if not_taken(inputs):
        return not_taken(inputs)
    if len(inputs.shape) < 3 or inputs.shape[layer.feature_axis] is None or inputs.shape[layer.feature_axis] % 2:
        return "the input is not [batch, time, ..., features] with an even number of features"
    places = start_index if positions is None else positions
    whole = isinstance(places, int) or hasattr(places, "dtype") and "int" in keras.backend.standardize_dtype(places.dtype)
    if not whole:
        return "positions are no integers"
    return "" if positions is None or len(positions.shape) in (1, 2) else "positions are not [batch, time]"


TABLE = [Row("keras_hub.src.layers.modeling.rotary_embedding", "RotaryEmbedding.call", _rotary, _guard)]
