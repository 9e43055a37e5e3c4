"""Layers of a network that stays in int8 between its convolutions; tfuse.calibrate makes them."""

import keras
import numpy as np
import tensorflow as tf

from tfuse.convolution.quantized_conv import quantized_conv
from tfuse.products.static_quantizer import STEPS, check_ranges, whole_numbers


@keras.saving.register_keras_serializable("tfuse")
class Quantize(keras.layers.Layer):
    """Rounds x to int8: round(x * 127 / range), clipped to -127 … 127.

    Args:
      range: the largest absolute value that is not clipped.

    Raises:
      ValueError: a range that is not a positive number.

    Example:
      layer = tfuse.Quantize(6.0)
    """

    def __init__(self, range, **kwargs):
        super().__init__(**kwargs)
        check_ranges("Quantize", range=range)
        self.range = float(range)

    def call(self, x):
        return tf.cast(whole_numbers(x, STEPS / self.range), tf.int8)

    def get_config(self):
        return {**super().get_config(), "range": self.range}


@keras.saving.register_keras_serializable("tfuse")
class QuantizedConv2D(keras.layers.Layer):
    """A Conv2D in int8, by tfuse.quantized_conv: what tfuse.calibrate makes of a Conv2D, a BatchNormalization behind it, the sum
    with a residual, and relu.

    It is called with int8 x, or with [x, residual]. Channels are last.

    Args:
      filters, kernel_size, strides, padding, dilation_rate: as in keras.layers.Conv2D.
      activation: None or "relu".
      x_range: the largest absolute value that x stands for, the number 127.
      y_range: the same of results in int8, or None for results in the dtype that the layer computes in.
      residual_range: the same of a residual in int8, or None where it is of the dtype of results.

    Raises:
      ValueError: a range that is not a positive number.

    Example:
      layer = tfuse.QuantizedConv2D(64, 3, padding="same", activation="relu", x_range=6.0, y_range=4.0)
    """

    def __init__(self, filters, kernel_size, strides=1, padding="valid", dilation_rate=1, activation=None, *, x_range,
                 y_range=None, residual_range=None, **kwargs):
        super().__init__(**kwargs)
        check_ranges("QuantizedConv2D", x_range=x_range, y_range=y_range, residual_range=residual_range)
        pair = lambda value: (value, value) if isinstance(value, int) else tuple(value)
        self.filters, self.padding, self.activation = filters, padding, activation
        self.kernel_size, self.strides, self.dilation_rate = pair(kernel_size), pair(strides), pair(dilation_rate)
        self.x_range, self.y_range, self.residual_range = x_range, y_range, residual_range

    def build(self, input_shape):
        x = input_shape[0] if isinstance(input_shape[0], (list, tuple)) else input_shape
        whole = dict(trainable=False, autocast=False)
        self.kernel = self.add_weight(name="kernel", shape=(self.filters, *self.kernel_size, x[-1]), dtype="int8",
                                      initializer="zeros", **whole)
        # What a step of a sum stands for, a step of x and one of the kernel.
        self.scale = self.add_weight(name="scale", shape=(self.filters,), dtype="float32", initializer="ones", **whole)
        self.bias = self.add_weight(name="bias", shape=(self.filters,), dtype="float32", initializer="zeros", **whole)
        self.built = True

    def set_floats(self, kernel, bias):
        """Rounds a kernel as Conv2D has it, [height, width, channels, filters], output by output."""
        kernel = np.moveaxis(np.asarray(kernel, "float64"), -1, 0)
        step = np.abs(kernel).max((1, 2, 3), initial=0) / STEPS
        step = np.where(step > 0, step, 1.0)
        self.kernel.assign(np.rint(kernel / step[:, None, None, None]).astype("int8"))
        self.scale.assign(step * self.x_range / STEPS)
        self.bias.assign(bias)

    def call(self, inputs):
        x, residual = inputs if isinstance(inputs, (list, tuple)) else (inputs, None)
        return quantized_conv(
            x, tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.scale), tf.convert_to_tensor(self.bias),
            self.activation, residual, self.strides, self.padding, self.dilation_rate,
            residual_scale=(self.residual_range or STEPS) / STEPS, y_scale=STEPS / self.y_range if self.y_range else None,
            dtype=self.compute_dtype)

    def get_config(self):
        names = ("filters", "kernel_size", "strides", "padding", "dilation_rate", "activation", "x_range", "y_range",
                 "residual_range")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
