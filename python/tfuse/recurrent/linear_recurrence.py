"""A layer over linear recurrences, whose gates depend on the input alone, so that all steps are computed at once: by
tfuse.scan_linear."""

import keras
import numpy as np
import tensorflow as tf

from tfuse._core._layer import Layer
from tfuse._core._op import real
from tfuse.products.linear import linear
from tfuse.scans.scan_linear import scan_linear

_SHARPNESS = 8.0  # of the RG-LRU's decay, as Griffin has it
_DECAY = -9.0, -4.3  # of its weights at first: with an open gate, a is between 0.999 and 0.9


def _min_gru(gates, x, decay):
    z, candidate = tf.split(gates, 2, -1)
    return tf.sigmoid(-z), tf.sigmoid(z) * candidate


def _rg_lru(gates, x, decay):
    open_, entry = tf.split(gates, 2, -1)
    log_a = -_SHARPNESS * tf.nn.softplus(decay) * tf.sigmoid(open_)
    room = tf.maximum(-tf.math.expm1(2 * log_a), np.finfo(x.dtype.as_numpy_dtype).tiny)  # the slope of a root is infinite at 0
    return tf.exp(log_a), tf.sqrt(room) * tf.sigmoid(entry) * x


_FORMS = {"min_gru": _min_gru, "rg_lru": _rg_lru}


@keras.saving.register_keras_serializable("tfuse")
class LinearRecurrence(Layer):
    """h_t = a_t h_{t-1} + b_t, where a and b come from the input alone; any number of steps at once, by tfuse.scan_linear.

    "min_gru", of z and c = x . kernel + bias: a = 1 - sigmoid(z), b = sigmoid(z) c. "rg_lru", as in Griffin, of r and i = x .
    kernel + bias: a = exp(-8 softplus(decay) sigmoid(r)), b = sqrt(1 - a²) sigmoid(i) x; its input has as many channels as the
    layer has units. Gates and states are float32, or float64.

    A call takes initial_state=, the state before the first step, and mask=, [batch, steps]; a step that the mask has not leaves
    the state as it is. In mixed precision Keras rounds initial_state to 16 bits, as it does all that a layer is given; and with
    initial_state it does not pass on the mask of an Embedding, so give that as well.

    Args:
      units: channels of the result.
      form: "min_gru" or "rg_lru".
      return_sequences: whether the result has all steps, or the last alone.
      return_state: whether the state after the last step is returned as well, in float32, or float64.
      reverse: whether the last step comes first; results are in the order of the input all the same.
      kernel_initializer, bias_initializer, kernel_regularizer, …: as in Keras's layers.

    Example:
      layer = tfuse.LinearRecurrence(64)
    """

    ARGUMENTS = ("units", "form", "return_sequences", "return_state", "reverse")

    def __init__(self, units, form="min_gru", return_sequences=True, return_state=False, reverse=False,
                 kernel_initializer="glorot_uniform", bias_initializer="zeros", kernel_regularizer=None, bias_regularizer=None,
                 kernel_constraint=None, bias_constraint=None, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(units, int) or units < 1:
            raise ValueError("LinearRecurrence: units must be a positive integer, got %r" % (units,))
        if form not in _FORMS:
            raise ValueError("LinearRecurrence: form must be one of %s, got %r" % (", ".join(_FORMS), form))
        self.units, self.form, self.reverse = units, form, reverse
        self.return_sequences, self.return_state = return_sequences, return_state
        self._ask("kernel", kernel_initializer, kernel_regularizer, kernel_constraint)
        self._ask("bias", bias_initializer, bias_regularizer, bias_constraint)

    def build(self, input_shape):
        features = input_shape[-1]
        if len(input_shape) != 3 or features is None:
            raise ValueError("LinearRecurrence: the input must be [batch, steps, features], the last known, got shape %s" % (
                input_shape,))
        if self.form == "rg_lru" and features != self.units:
            raise ValueError("LinearRecurrence: an rg_lru of %d units takes as many channels, got shape %s" % (
                self.units, input_shape))
        self.kernel = self._weight("kernel", (features, 2 * self.units))
        self.bias = self._weight("bias", (2 * self.units,))
        self.decay = None if self.form != "rg_lru" else self.add_weight(
            name="decay", shape=(self.units,), initializer=keras.initializers.RandomUniform(*_DECAY), autocast=False)
        self.built = True

    def call(self, x, initial_state=None, mask=None):
        dtype, cast = real(x.dtype), lambda t: None if t is None else keras.ops.convert_to_tensor(t, real(x.dtype))
        gates = linear(x, *(keras.ops.convert_to_tensor(w, x.dtype) for w in (self.kernel, self.bias)))
        a, b = _FORMS[self.form](tf.cast(gates, dtype), tf.cast(x, dtype), cast(self.decay))
        if mask is not None:
            counts = tf.cast(mask, tf.bool)[:, :, None]
            a, b = tf.where(counts, a, tf.ones([], dtype)), tf.where(counts, b, tf.zeros([], dtype))
        h = scan_linear(a, b, cast(initial_state), axis=1, reverse=self.reverse)
        if self.return_sequences and not self.return_state:  # of sequences that may have no steps
            return tf.cast(h, x.dtype)
        if h.shape[1]:
            last = h[:, 0 if self.reverse else -1]
        else:  # of sequences that may have no steps it is the first state
            first = tf.zeros([tf.shape(h)[0], self.units], dtype) if initial_state is None else cast(initial_state)
            last = tf.concat([h, first[:, None]], 1)[:, 0] if self.reverse else tf.concat([first[:, None], h], 1)[:, -1]
        y = tf.cast(h if self.return_sequences else last, x.dtype)
        return (y, last) if self.return_state else y

    def compute_output_shape(self, input_shape, **_):
        state = input_shape[0], self.units
        y = (*input_shape[:2], self.units) if self.return_sequences else state
        return (y, state) if self.return_state else y

    def compute_output_spec(self, x, *_, **__):
        shapes, dtype = self.compute_output_shape(x.shape), self.compute_dtype
        if not self.return_state:
            return keras.KerasTensor(shapes, dtype)
        return tuple(keras.KerasTensor(*of) for of in zip(shapes, (dtype, real(tf.as_dtype(dtype)).name)))

    def compute_mask(self, inputs, mask=None):
        mask = mask if self.return_sequences else None
        return (mask, None) if self.return_state else mask
