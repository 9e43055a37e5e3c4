"""act(x * scale + bias) in one pass over memory, the activations by name, and the Keras layer."""

import keras
import tensorflow as tf

from tfuse._core import _made
from tfuse._core._layer import Layer
from tfuse._core._op import FusedOp, function, vjp

# What each name means, in plain TensorFlow. The order is that of ops/activations.h.
PLAIN = {
    "linear": lambda x: x,
    "relu": tf.nn.relu,
    "leaky_relu": lambda x: tf.nn.leaky_relu(x, 0.2),
    "elu": tf.nn.elu,
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "silu": tf.nn.silu,
    "mish": lambda x: x * tf.tanh(tf.nn.softplus(x)),
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "softplus": tf.nn.softplus,
    "hard_swish": lambda x: x * (tf.nn.relu6(x + 3) * (1 / 6)),
    "relu6": tf.nn.relu6,
}
SLOPE_FROM_RESULT = ("relu", "relu6", "leaky_relu")  # of these it can be told from the result
# Other words for them: None, aliases, and the functions of keras.activations; tfuse's own functions join below.
_NAMES = {None: "linear", "swish": "silu", "hard_silu": "hard_swish"}
_NAMES.update({getattr(keras.activations, name): _NAMES.get(name, name)
               for name in [*PLAIN, "hard_silu"] if hasattr(keras.activations, name)})
# What Keras takes for its own two, where it asks whether cuDNN serves an LSTM.
_NAMES.update({getattr(module, name): name for module in (tf, keras.ops) for name in ("tanh", "sigmoid")})


def activation_name(activation):
    """The table's name for a name, an alias, None, or a function of keras.activations or of tfuse."""
    try:
        name = _NAMES.get(activation, activation)
        if name in PLAIN:
            return name
    except TypeError:  # not hashable
        pass
    raise ValueError("scale_bias_act: activation must be one of %s or None, got %r" % (", ".join(PLAIN), activation))


def known_activation(activation):
    """The table's name for a layer's activation and None; or "linear" and the activation, which is applied after."""
    try:
        return activation_name(activation), None
    except ValueError:
        return "linear", activation


def plain_behind(dy, pre, activation):
    """What dy, the gradient of act(pre), gives to pre, in plain TensorFlow."""
    return dy if activation == "linear" else vjp(PLAIN[activation])(dy, pre)


def _plain(x, scale, bias, activation="linear"):
    if scale.shape.num_elements() != 0:
        x = x * scale
    if bias.shape.num_elements() != 0:
        x = x + bias
    return PLAIN[activation](x)


_AXES = {**dict.fromkeys(["x", "dy"], "abdefghc"), "scale": "c", "bias": "c"}  # by letters: c channels, those before them
_grad = FusedOp("ScaleBiasActGrad", plain=vjp(_plain), axes=_AXES)
_scale_bias_act = FusedOp("ScaleBiasAct", plain=_plain, axes=_AXES,
                          gradient=lambda node, dy: _grad(dy, *node.inputs, activation=node.attr("activation")))


@function
def scale_bias_act(x, scale=None, bias=None, activation=None):
    """Returns act(x * scale + bias).

    Args:
      x: float tensor; the channels are its last axis.
      scale: one number, one value per channel, or None.
      bias: one value per channel, or None.
      activation: linear, relu, leaky_relu (slope 0.2), elu, gelu (by erf, as Keras's "gelu"), gelu_tanh, silu, mish,
        sigmoid, tanh, softplus, hard_swish, relu6, one of keras.activations or of tfuse with such a name, or None.

    Raises:
      ValueError or InvalidArgumentError: a wrong shape, a dtype other than x's, or an unknown activation.

    Example:
      x, scale, bias = tf.random.normal([32, 64]), tf.ones([64]), tf.zeros([64])
      y = tfuse.scale_bias_act(x, scale, bias, "gelu")
    """
    return _scale_bias_act(x, scale, bias, activation=activation_name(activation))


def _activate(x, name):
    return _made.keep(_scale_bias_act(x, None, None, activation=name), _made.Activation(x, name))


def _activation(name, text):
    @function
    def activation(x):
        return _activate(x, name)

    activation.__name__ = activation.__qualname__ = name
    activation.__doc__ = "Returns %s, elementwise." % text
    _NAMES[activation] = name
    return keras.saving.register_keras_serializable("tfuse")(activation)


relu = _activation("relu", "max(x, 0)")
relu6 = _activation("relu6", "min(max(x, 0), 6)")
leaky_relu = _activation("leaky_relu", "x where x > 0, else 0.2 * x")
elu = _activation("elu", "x where x > 0, else exp(x) - 1")
silu = _activation("silu", "x * sigmoid(x)")
mish = _activation("mish", "x * tanh(softplus(x))")
sigmoid = _activation("sigmoid", "1 / (1 + exp(-x))")
tanh = _activation("tanh", "tanh(x)")
softplus = _activation("softplus", "log(1 + exp(x))")
hard_swish = _activation("hard_swish", "x * min(max(x + 3, 0), 6) / 6")


@keras.saving.register_keras_serializable("tfuse")
@function
def gelu(x, approximate=True):
    """Returns x * Phi(x), Phi being the normal distribution function; by tanh if approximate, as in keras.ops.gelu."""
    return _activate(x, "gelu_tanh" if approximate else "gelu")


_NAMES[gelu] = "gelu_tanh"


@keras.saving.register_keras_serializable("tfuse")
class ScaleBiasAct(Layer):
    """A learned scale and bias per channel (last axis), then an activation, in one kernel.

    Args:
      activation: as in tfuse.scale_bias_act.
      use_scale, use_bias: whether the layer has them.
      scale_initializer, bias_initializer, scale_regularizer, …: as in Keras's layers.

    Example:
      model = keras.Sequential([keras.layers.Dense(64, use_bias=False), tfuse.ScaleBiasAct("gelu")])
    """

    ARGUMENTS = ("activation", "use_scale", "use_bias")

    def __init__(self, activation=None, use_scale=True, use_bias=True, scale_initializer="ones", bias_initializer="zeros",
                 scale_regularizer=None, bias_regularizer=None, scale_constraint=None, bias_constraint=None, **kwargs):
        super().__init__(**kwargs)
        self.activation, self.use_scale, self.use_bias = activation_name(activation), use_scale, use_bias
        self._ask("scale", scale_initializer, scale_regularizer, scale_constraint)
        self._ask("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape):
        channels = input_shape[-1]
        if channels is None:
            raise ValueError("ScaleBiasAct: the last axis of the input must be known, got shape %s" % (input_shape,))
        self.scale = self._weight("scale", (channels,)) if self.use_scale else None
        self.bias = self._weight("bias", (channels,)) if self.use_bias else None
        self.built = True

    def call(self, x):
        scale, bias = (None if w is None else keras.ops.convert_to_tensor(w, x.dtype) for w in (self.scale, self.bias))
        return scale_bias_act(x, scale, bias, self.activation)
