"""act(a) * b in one pass over memory: the gated linear units of transformers, and the Keras layer."""

import keras
import tensorflow as tf

from tfuse._core._layer import Layer
from tfuse._core._op import FusedOp, composite, function, vjp
from tfuse.elementwise.scale_bias_act import PLAIN, activation_name


def _plain(a, b, activation="linear"):
    if b.shape == [0]:
        a, b = tf.split(a, 2, -1)
    return PLAIN[activation](a) * b


_grad = FusedOp("GatedGrad", plain=vjp(_plain))
_gated = FusedOp("Gated", plain=_plain,
                 gradient=lambda node, dy: _grad(dy, *node.inputs, activation=node.attr("activation")))


@composite
def gated(a, b=None, activation="silu", axis=-1):
    """Returns act(a) * b.

    Args:
      a: float tensor.
      b: tensor of a's shape; None: `axis` of a holds the two side by side, first what is activated.
      activation: as in tfuse.scale_bias_act.
      axis: the axis with the halves. Those of another axis than the last are first split, at the price of a copy.

    Raises:
      ValueError or InvalidArgumentError: a wrong shape or dtype, or an unknown activation.

    Example:
      both = tf.random.normal([32, 128])  # two halves of 64
      y = tfuse.gated(both, activation="silu")
    """
    if b is None and axis != -1 and axis != len(a.shape) - 1:
        a, b = tf.split(a, 2, axis)
    return _gated(a, b, activation=activation_name(activation))


@function
def swiglu(a, b=None):
    """Returns silu(a) * b; without b, the last axis of a is the two side by side."""
    return _gated(a, b, activation="silu")


@function
def geglu(a, b=None, approximate=False):
    """Returns gelu(a) * b, by tanh if approximate; without b, the last axis of a is the two side by side."""
    return _gated(a, b, activation="gelu_tanh" if approximate else "gelu")


@function
def reglu(a, b=None):
    """Returns max(a, 0) * b; without b, the last axis of a is the two side by side."""
    return _gated(a, b, activation="relu")


@function
def glu(a, b=None):
    """Returns sigmoid(a) * b; without b, the last axis of a is the two side by side.

    The first half is the gate, as in the others here; in keras.ops.glu and in PyTorch the second half is.
    """
    return _gated(a, b, activation="sigmoid")


@keras.saving.register_keras_serializable("tfuse")
class Gated(Layer):
    """act(first half) * second half of an axis, which comes out half as long.

    Args:
      activation, axis: as in tfuse.gated.

    Example:
      layer = keras.Sequential([keras.layers.Dense(128), tfuse.Gated("silu")])  # the result has 64 channels
    """

    ARGUMENTS = ("activation", "axis")

    def __init__(self, activation="silu", axis=-1, **kwargs):
        super().__init__(**kwargs)
        self.activation, self.axis = activation_name(activation), axis
        self.built = True

    def call(self, x):
        return gated(x, activation=self.activation, axis=self.axis)

    def compute_output_shape(self, input_shape):
        shape = list(input_shape)
        if shape[self.axis] is not None:
            if shape[self.axis] % 2:
                raise ValueError("Gated: axis %d must be two halves of one size, got shape %s" % (self.axis, tuple(shape)))
            shape[self.axis] //= 2
        return tuple(shape)
