"""act(x . gate) * (x . up): the feed-forward half of today's transformers (SwiGLU, GEGLU), and the Keras layer."""

import keras

from tfuse._core._layer import Layer
from tfuse._core._op import FLOATS, composite
from tfuse.elementwise.gated import gated
from tfuse.elementwise.scale_bias_act import activation_name
from tfuse.products.linear import linear


@composite
def gated_linear(x, kernel, bias=None, activation="silu"):
    """Returns act(x . gate + b) * (x . up + c).

    One matrix product makes both sides where they come as one kernel, which is faster than two; one pass over memory takes
    the gate. Products are those of tfuse.linear.

    Args:
      x: float tensor, [..., inputs], with two axes or more.
      kernel: [inputs, 2 * outputs], first the gate's columns, then those of what is gated; or the two as a pair, each
        [inputs, outputs].
      bias: [2 * outputs], or a pair like kernel's, or None.
      activation: as in tfuse.scale_bias_act.

    Returns:
      [..., outputs].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or an unknown activation.

    Example:
      x, kernel = tf.random.normal([8, 64]), tf.random.normal([64, 2 * 256])
      y = tfuse.gated_linear(x, kernel, activation="silu")  # [8, 256]
    """
    activation = activation_name(activation)
    if not _is_pair(kernel):
        if _is_pair(bias):
            raise ValueError("gated_linear: bias must be one vector where kernel is one matrix, got a pair")
        return gated(linear(x, kernel, bias), activation=activation)
    if bias is None:
        bias = None, None
    elif not _is_pair(bias):
        raise ValueError("gated_linear: bias must be a pair where kernel is one, got one vector")
    return gated(*(linear(x, k, b) for k, b in zip(kernel, bias)), activation=activation)


def _is_pair(value):
    return isinstance(value, (list, tuple)) and len(value) == 2


@keras.saving.register_keras_serializable("tfuse")
class GatedDense(Layer):
    """act(first half) * second half of a dense layer with twice as many outputs as `units`.

    Its kernel is [inputs, 2 * units], the gate's columns first, and is initialised as a whole.

    Args:
      units: size of the last axis of the result.
      activation: as in tfuse.scale_bias_act.
      use_bias, kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer, kernel_constraint,
        bias_constraint: as in keras.layers.Dense.

    Example:
      feed_forward = keras.Sequential([tfuse.GatedDense(256, "silu"), keras.layers.Dense(64)])
    """

    ARGUMENTS = ("units", "activation", "use_bias")

    def __init__(self, units, activation="silu", use_bias=True, kernel_initializer="glorot_uniform",
                 bias_initializer="zeros", kernel_regularizer=None, bias_regularizer=None, kernel_constraint=None,
                 bias_constraint=None, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(units, int) or units <= 0:
            raise ValueError("GatedDense: units must be a positive integer, got %r" % (units,))
        self.units, self.activation, self.use_bias = units, activation_name(activation), use_bias
        self._ask("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._ask("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape):
        self.kernel = self._weight("kernel", (input_shape[-1], 2 * self.units))
        self.bias = self._weight("bias", (2 * self.units,)) if self.use_bias else None
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: input_shape[-1]})
        self.built = True

    def call(self, x):
        if keras.backend.standardize_dtype(x.dtype) not in [t.name for t in FLOATS]:
            x = keras.ops.cast(x, self.compute_dtype)
        kernel, bias = (None if w is None else keras.ops.convert_to_tensor(w, x.dtype) for w in (self.kernel, self.bias))
        return gated_linear(x, kernel, bias, self.activation)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)
