"""Dropout whose mask is computed, never stored: one pass over memory forward and one backward, and the Keras layer."""

import keras

from tfuse._core import _philox
from tfuse._core._op import FusedOp, composite

_dropout = FusedOp("Dropout", plain=_philox.dropped, gradient=lambda node, dy: [
    _dropout(dy, node.inputs[1], rate=node.attr("rate")), None])


@composite
def dropout(x, rate, seed=None):
    """Returns x / (1 - rate), or 0 with probability rate, elementwise.

    Which elements are dropped follows from the seed and their place alone: the same eagerly, in a graph and in XLA, on
    CPU and GPU, for every dtype.

    Args:
      x: float tensor.
      rate: number from 0 to less than 1, resolved in steps of 1/65536.
      seed: an integer, an int64 tensor of shape [] or a keras.random.SeedGenerator. None draws a new one at every call,
        also of a traced function.

    Example:
      x = tf.random.normal([32, 64])
      same = tfuse.dropout(x, 0.1, seed=7) == tfuse.dropout(x, 0.1, seed=7)  # True everywhere
    """
    if not 0 <= rate < 1:
        raise ValueError("dropout: rate must be at least 0 and less than 1, got %r" % (rate,))
    return x if rate == 0 else _dropout(x, _philox.seed_tensor(seed), rate=float(rate))


@keras.saving.register_keras_serializable("tfuse")
class Dropout(keras.layers.Dropout):
    """keras.layers.Dropout in one pass: same arguments, same state, but for a seed other elements are dropped.

    With a noise_shape it is Keras's own. The rate is resolved in steps of 1/65536.

    Example:
      model = keras.Sequential([keras.layers.Dense(64), tfuse.Dropout(0.1)])
    """

    def call(self, inputs, training=False):
        if not training or self.rate in (0, 1) or self.noise_shape is not None:
            return super().call(inputs, training=training)
        return dropout(inputs, self.rate, self.seed_generator)
