"""Keras's EinsumDense by tfuse.linear, for the equations that are one matrix product without moving anything in memory."""

import functools
import math
import re

import keras
import tensorflow as tf

from tfuse._core import _rows
from tfuse._core._explain import reason
from tfuse.products.linear import not_by_type, of_layer, quantized_call, why_not_dense


@functools.lru_cache(None)
def matrix_axes(equation):
    """(axes of the kernel that are summed over, letters of those that are not), if the equation is a matrix product of the
    inputs as they lie: the former are the last of x and the first of the kernel, the latter the last of both the kernel and
    y, as in "abc,cde->abde" and "...bc,bcd->...d". None for all others."""
    parts = re.fullmatch(r"(\.\.\.)?([a-zA-Z]*),([a-zA-Z]+)->(\.\.\.)?([a-zA-Z]+)", equation)
    if not parts or parts[1] != parts[4]:
        return None
    _, x, kernel, _, y = parts.groups()
    summed = "".join(letter for letter in kernel if letter not in y)
    before, outputs = x.removesuffix(summed), kernel[len(summed):]
    is_matrix = (summed and outputs and (before or parts[1]) and kernel == summed + outputs and x == before + summed and
                 y == before + outputs and len(set(before + kernel)) == len(before + kernel))
    return (len(summed), outputs) if is_matrix else None


@reason
def why_not_einsum_dense(layer, x):
    """Why tfuse does not serve the layer, for this input."""
    axes = matrix_axes(layer.equation)
    yield axes is None and "%s is not one matrix product" % layer.equation
    others = set(layer.bias_axes or "") - set(axes[1])
    yield others and "the bias is not per output of the kernel: %s of %s" % (layer.bias_axes, layer.equation)
    lacks = not isinstance(x, tf.Tensor) or x.shape.rank is None or x.shape.rank <= axes[0]
    yield lacks and "the input has not the axes of %s, and more before them" % layer.equation
    yield why_not_dense(layer, x)


def as_product(layer, x, shape):
    """x and the layer's bias as the product takes them, and the shape that its result is then brought into, or None: it stays.
    shape: that of the kernel, as the equation has it."""
    summed, _ = matrix_axes(layer.equation)
    inputs, outputs = shape[:summed], shape[summed:]
    before = _rows.sizes(x, 0, x.shape.rank - summed)
    bias = None
    if layer.bias is not None:
        bias = keras.ops.convert_to_tensor(layer.bias, x.dtype)
        bias = tf.reshape(bias if bias.shape == outputs else tf.broadcast_to(bias, outputs), [-1])
    if summed > 1:
        x = tf.reshape(x, [*before, math.prod(inputs)])
    return x, bias, None if len(outputs) == 1 else [*before, *outputs]


def einsum_dense(layer, x, training=None):
    """What an EinsumDense layer computes, by linear."""
    kernel = keras.ops.convert_to_tensor(layer.kernel, x.dtype)
    x, bias, shape = as_product(layer, x, kernel.shape)
    summed, _ = matrix_axes(layer.equation)
    return of_layer(layer, x, tf.reshape(kernel, [math.prod(kernel.shape[:summed]), -1]), bias, training, shape)


@keras.saving.register_keras_serializable("tfuse")
class EinsumDense(keras.layers.EinsumDense):
    """keras.layers.EinsumDense in one op: same arguments, weights and results.

    Equations that are a matrix product as the tensors lie, such as "abc,cd->abd", "abc,cde->abde" and "abcd,cde->abe", go to
    tfuse.linear; all others are computed as Keras does. An activation that is not in tfuse's table is applied after it.

    Example:
      y = tfuse.EinsumDense("abc,cde->abde", output_shape=(None, 4, 16))(tf.random.normal([2, 8, 64]))
    """

    def call(self, inputs, training=None):
        if why_not_einsum_dense(self, inputs):
            return super().call(inputs)
        return einsum_dense(self, inputs, training)

    def quantize(self, mode, **options):
        """As in Keras."""
        super().quantize(mode, **not_by_type(self, EinsumDense, options))

    def quantized_call(self, inputs, *others, **options):
        return quantized_call(self, super().quantized_call, inputs, *others, **options)
