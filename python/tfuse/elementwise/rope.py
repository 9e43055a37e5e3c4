"""Rotary position embedding of query and key in one pass over memory, and the Keras layer."""

import keras
import tensorflow as tf

from tfuse._core import _sizes
from tfuse._core._layer import Layer
from tfuse._core._op import FusedOp, composite, real

PAIRINGS = ("half", "interleaved")


def _angles(positions, time, d, base, scale, frequencies, dtype):
    """[batch or 1, time, 1, d / 2]"""
    positions = tf.convert_to_tensor(positions)
    if positions.shape.rank < 2:
        positions = tf.reshape(positions, [-1, 1]) + tf.range(time, dtype=positions.dtype)
    if frequencies is None or frequencies.shape == [0]:
        frequencies = tf.cast(base, dtype) ** (-2 * tf.range(d // 2, dtype=dtype) / d)
    return (tf.cast(positions, dtype) * scale)[..., None, None] * tf.cast(frequencies, dtype)


def plain(x, positions, frequencies=None, base=10000.0, pairing="half", rotary=0, inverse=False, scale=1.0):
    """One tensor rotated, in plain TensorFlow. Angles are in float32 at least."""
    d = rotary or x.shape[-1]
    angles = _angles(positions, tf.shape(x)[1], d, base, scale, frequencies, real(x.dtype))
    cos, sin = tf.cast(tf.cos(angles), x.dtype), tf.cast(tf.sin(-angles if inverse else angles), x.dtype)
    rotated, rest = x[..., :d], x[..., d:]
    if pairing == "half":
        a, b = tf.split(rotated, 2, -1)
        y = tf.concat([a * cos - b * sin, b * cos + a * sin], -1)
    else:
        a, b = rotated[..., ::2], rotated[..., 1::2]
        y = tf.reshape(tf.stack([a * cos - b * sin, b * cos + a * sin], -1), tf.shape(rotated))
    return tf.concat([y, rest], -1) if rotary else y


def _gradient(node, dquery, dkey):
    query, key = _rope(dquery, dkey, *node.inputs[2:], inverse=not node.attr("inverse"),
                       **node.attrs("base", "pairing", "rotary", "scale"))
    return [query, None if dkey is None else key, None, None]


# Axes by letters: batch, time, heads, dimension of a head; key heads.
_rope = FusedOp("Rope", gradient=_gradient, plain=lambda query, key, positions, frequencies, **attributes: [
    x if x.shape == [0] else plain(x, positions, frequencies, **attributes) for x in (query, key)],
    axes=lambda inputs: {"query": "bthd", "key": "btkd", "positions": "bt"[:inputs[2].shape.rank], "frequencies": "f"})


@composite
def rope(query, key=None, positions=0, base=10000.0, pairing="half", rotary=None, scale=1.0, frequencies=None):
    """Returns query rotated by its positions, or (query, key) where a key is given.

    Pair i of a head is rotated by the angle scale * position * base^(-2 i / d), or scale * position * frequencies[i].

    Args:
      query: float tensor, [batch, time, heads, head_dim].
      key: the same, possibly with another number of heads; None.
      positions: integers. One number is the position of the first time step, [batch] that of each sequence; [batch, time]
        are all of them.
      pairing: "half": element i goes with i + d / 2, as in Llama and KerasHub; "interleaved": 2 i with 2 i + 1, as in
        the paper.
      rotary: d, the elements of a head that are rotated, the first ones; the rest stays as it is. None: all.
      scale: factor on positions.
      frequencies: float32, [d / 2], as those of long contexts that are scaled one by one, in the place of the powers of base.
        They have no gradient. None: there are none.

    Raises:
      ValueError or InvalidArgumentError: a wrong shape or dtype, an odd head_dim or rotary, frequencies of another
        number, or an unknown pairing.

    Example:
      query, key = tf.random.normal([2, 16, 8, 64]), tf.random.normal([2, 16, 2, 64])
      query, key = tfuse.rope(query, key, positions=100)  # the first time step is step 100
    """
    if pairing not in PAIRINGS:
        raise ValueError("rope: pairing must be one of %s, got %r" % (", ".join(PAIRINGS), pairing))
    rotate = lambda query, key: _rope(query, key, positions, frequencies, base=float(base), pairing=pairing,
                                      rotary=int(rotary or 0), inverse=False, scale=float(scale))
    return rotate(query, None)[0] if key is None else tuple(rotate(query, key))


def embed(layer, scaling_factor, inputs, start_index, positions, pairing="half", rotary=None):
    """What a layer gives that has max_wavelength, sequence_axis and feature_axis, as tfuse.RotaryEmbedding explains them."""
    axes = layer.feature_axis, layer.sequence_axis
    moved = axes[1] != 1 or axes[0] not in (-1, len(inputs.shape) - 1)
    x = keras.ops.moveaxis(inputs, axes, (-1, 1)) if moved else inputs
    shape = keras.ops.shape(x)
    if positions is None:
        positions = start_index
    elif len(positions.shape) == 1:
        positions = keras.ops.broadcast_to(positions, shape[:2])
    else:
        for axis in (0, 1):
            x, positions = _sizes.stretched(x, axis, positions), _sizes.stretched(positions, axis, x)
        shape = keras.ops.shape(x)
    heads = x if len(shape) == 4 else keras.ops.reshape(x, (*shape[:2], -1, shape[-1]))
    y = rope(heads, None, positions, layer.max_wavelength, pairing, rotary, 1 / scaling_factor)
    y = y if len(shape) == 4 else keras.ops.reshape(y, shape)
    return keras.ops.moveaxis(y, (-1, 1), axes) if moved else y


@keras.saving.register_keras_serializable("tfuse")
class RotaryEmbedding(Layer):
    """KerasHub's RotaryEmbedding in one kernel: the same arguments, but without Llama 3.1's scaling of frequencies.

    Args:
      max_wavelength: base of the frequencies.
      scaling_factor: divides positions.
      sequence_axis, feature_axis: of the input. Others than 1 and -1 are first moved there, at the price of a copy.
      pairing, rotary: as in tfuse.rope.

    Call arguments:
      inputs: [batch, time, …, features].
      start_index: position of the first time step; a number, or one for each sequence.
      positions: all positions, [time] or [batch, time], instead of start_index.

    Example:
      y = tfuse.RotaryEmbedding()(tf.random.normal([2, 16, 8, 64]), start_index=100)
    """

    ARGUMENTS = ("max_wavelength", "scaling_factor", "sequence_axis", "feature_axis", "pairing", "rotary")

    def __init__(self, max_wavelength=10000, scaling_factor=1.0, sequence_axis=1, feature_axis=-1, pairing="half",
                 rotary=None, **kwargs):
        super().__init__(**kwargs)
        self.max_wavelength, self.scaling_factor = max_wavelength, scaling_factor
        self.sequence_axis, self.feature_axis = sequence_axis, feature_axis
        self.pairing, self.rotary = pairing, rotary
        self.built = True

    def call(self, inputs, start_index=0, positions=None):
        return embed(self, self.scaling_factor, inputs, start_index, positions, self.pairing, self.rotary)
