"""Keras's Dense and EinsumDense after quantize("float8"), by real products in float8."""

import keras
import tensorflow as tf

from tfuse._core import _made
from tfuse._core._explain import reason
from tfuse.elementwise.scale_bias_act import known_activation
from tfuse.products.einsum_dense import as_product, matrix_axes, why_not_einsum_dense
from tfuse.products.float8_linear import delayed
from tfuse.products.linear import why_not_dense


@reason
def why_not(layer, x):
    """Why tfuse does not serve a Dense or EinsumDense that is quantised to float8, for this input."""
    yield (why_not_einsum_dense if isinstance(layer, keras.layers.EinsumDense) else why_not_dense)(layer, x)
    yield layer.lora_enabled and "LoRA weights beside float8, which Keras refuses"


def serve(layer, x, training=None):
    """What a float8 layer computes, with real products in float8. Updates of its scales and histories are Keras's: they are
    those of the inputs and the kernel in training alone."""
    tensor = lambda variable, *dtype: tf.convert_to_tensor(keras.ops.convert_to_tensor(variable, *dtype))  # eagerly, too
    kernel, shape = tensor(layer._kernel), None
    if isinstance(layer, keras.layers.EinsumDense):
        summed, _ = matrix_axes(layer.equation)
        x, bias, shape = as_product(layer, x, kernel.shape)
        kernel = tf.reshape(kernel, [kernel.shape[:summed].num_elements(), -1])
    else:
        bias = None if layer.bias is None else tensor(layer.bias, x.dtype)
    if bias is not None and x.dtype == tf.float32:  # as Keras does
        bias = tf.cast(tf.cast(bias, tf.bfloat16), tf.float32)
    name, after = known_activation(layer.activation)
    scales = [tensor(layer.inputs_scale), tensor(layer.kernel_scale), tensor(layer.outputs_grad_scale)]
    histories = [tensor(h) for h in (layer.inputs_amax_history, layer.kernel_amax_history, layer.outputs_grad_amax_history)]
    histories = histories if training else [None, None, histories[2]]

    def product(name, _=None):
        y = delayed(x, kernel, scales, histories, bias, name, training)
        return y if shape is None else tf.reshape(y, shape)

    y = product(name)
    if name == "linear" and after is None:
        _made.keep(y, _made.Unfinished(x, "Float8Linear", "a product of float8", False, product))
    return y if after is None else after(y)
