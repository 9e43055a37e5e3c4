"""x + constant, where the constant is data: it can change at every call without a new trace."""

import keras
import tensorflow as tf

from tfuse._core._layer import Layer
from tfuse._core._op import FusedOp, function
from tfuse.reductions.reduce import reduce_sum

_add_constant = FusedOp("AddConstant", plain=lambda x, constant: x + constant,
                        gradient=lambda node, dy: [dy, reduce_sum(dy)])


@function
def add_constant(x, constant):
    """Returns x + constant.

    Args:
      x: float tensor of any shape.
      constant: one number: a Python number, a tensor of shape [] or a variable of x's dtype. A variable may change
        between calls of a traced function, of a model or of a loaded SavedModel.

    Raises:
      ValueError: constant is not a single number, has another dtype than x, or does not fit x's dtype.

    Example:
      offset = tf.Variable(0.5)
      y = tfuse.add_constant(tf.constant([1.0, 2.0]), offset)
    """
    return _add_constant(x, constant)


@keras.saving.register_keras_serializable("tfuse")
class AddConstant(Layer):
    """Adds one number, which `set_constant` changes in a running model without a new trace.

    The number is a weight that is not trained, named "constant": in a loaded SavedModel it is among the variables, and
    assigning to it takes effect at the next call.

    Example:
      layer = tfuse.AddConstant(0.5)
      layer.set_constant(2.0)
      y = layer(tf.constant([1.0, 2.0]))
    """

    def __init__(self, constant=0.0, **kwargs):
        super().__init__(**kwargs)
        self.initial = float(constant)
        self._check(self.initial)
        self.constant = self.add_weight(name="constant", shape=(), trainable=False,
                                        initializer=keras.initializers.Constant(self.initial))
        self.built = True

    def set_constant(self, value):
        """Takes effect at the next call."""
        self._check(value)
        self.initial = float(value)
        self.constant.assign(value)

    def call(self, x):
        return add_constant(x, keras.ops.convert_to_tensor(self.constant, x.dtype))

    def get_config(self):
        return {**super().get_config(), "constant": self.initial}

    def _check(self, value):
        largest = float(tf.as_dtype(self.compute_dtype).max)
        if abs(value) > largest and abs(value) != float("inf"):
            raise ValueError("AddConstant: constant must fit %s, whose largest value is %g; got %g" % (
                self.compute_dtype, largest, value))
