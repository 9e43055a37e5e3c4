"""What tfuse.enable() replaces in KerasHub: its rotary embedding, by tfuse.rope, as a row of a table. In 16 bits
KerasHub rounds sines and cosines, tfuse.rope does not."""

import keras

from tfuse._core._explain import reason
from tfuse._keras._replaced import Row, not_taken
from tfuse.elementwise.rope import embed

_KNOWN = "RotaryEmbedding", "LlamaRotaryEmbedding"


def _rotary(own, layer, inputs, start_index=0, positions=None):
    # Llama's own embedding has a factor as well, and does not use it.
    return embed(layer, layer.scaling_factor if type(layer).__name__ == _KNOWN[0] else 1.0, inputs, start_index, positions)


@reason
def _guard(layer, inputs, start_index=0, positions=None):
    name, of = type(layer).__name__, lambda attribute, default=None: getattr(layer, attribute, default)
    yield name not in _KNOWN and "tfuse.rope does not know the frequencies of %s" % name
    alike = of("low_freq_factor") is None and of("rope_type", "linear") == "linear"
    yield not alike and "tfuse.rope scales all frequencies alike"
    yield of("denominator_dim") is not None and "tfuse.rope takes frequencies from the number of features"
    yield not_taken(inputs)
    features = inputs.shape[layer.feature_axis] if len(inputs.shape) > 2 else None
    odd = features is None or features % 2
    yield odd and "the input is not [batch, time, ..., features] with an even number of features"
    places = start_index if positions is None else positions
    whole = isinstance(places, int) or hasattr(places, "dtype") and "int" in keras.backend.standardize_dtype(places.dtype)
    yield not whole and "positions are no integers"
    yield positions is not None and len(positions.shape) not in (1, 2) and "positions are not [batch, time]"


TABLE = [Row("keras_hub.src.layers.modeling.rotary_embedding", "RotaryEmbedding.call", _rotary, _guard)]
