"""Keras's convolution layers by tfuse.conv and tfuse.conv_transpose: same arguments, weights and results."""

import keras
import tensorflow as tf

from tfuse._core._op import FLOATS
from tfuse.convolution.conv import conv, conv_transpose
from tfuse.elementwise.scale_bias_act import activation_name


def why_not_conv(layer, x):
    """Why tfuse does not serve a convolution layer of Keras's, for this input; or nothing."""
    if not isinstance(x, tf.Tensor):
        return "a %s is not dense" % type(x).__name__
    if x.dtype not in FLOATS or x.dtype != layer.compute_dtype:
        return "the input is %s, the layer computes in %s" % (x.dtype.name, layer.compute_dtype)
    if x.shape.rank != layer.rank + 2:
        return "the layer takes %d dimensions, got %s" % (layer.rank + 2, x.shape.rank)
    if max(layer.strides) > 1 and max(layer.dilation_rate) > 1:
        return "Keras has no strides with dilation"
    return ""


def _of_layer(f, layer, x, **options):
    """f with a layer's weights and activation, which is applied behind it where it is not in the table."""
    try:
        name, after = activation_name(layer.activation), None
    except ValueError:
        name, after = "linear", layer.activation
    kernel, bias = (None if w is None else keras.ops.convert_to_tensor(w, x.dtype) for w in (layer.kernel, layer.bias))
    y = f(x, kernel, bias, name, strides=layer.strides, padding=layer.padding, dilation=layer.dilation_rate,
          data_format=layer.data_format, **options)
    return y if after is None else after(y)


def conv_layer(layer, x):
    """What a Keras convolution layer computes."""
    return _of_layer(conv, layer, x, groups=layer.groups)


def conv_transpose_layer(layer, x):
    """What a Keras layer of transposed convolution computes."""
    return _of_layer(conv_transpose, layer, x, output_padding=layer.output_padding)


def _layer(own, compute, example):
    """A class like Keras's own whose call is computed here."""

    def call(self, inputs):
        return own.call(self, inputs) if why_not_conv(self, inputs) else compute(self, inputs)

    text = """keras.layers.%s by tfuse.%s: same arguments, weights and results.

    An activation that is not in tfuse's table is applied behind it.

    Example:
      layer = tfuse.%s(%s)
    """ % (own.__name__, "conv" if compute is conv_layer else "conv_transpose", own.__name__, example)
    made = type(own.__name__, (own,), {"call": call, "__doc__": text, "__module__": __name__})
    return keras.saving.register_keras_serializable("tfuse")(made)


Conv1D = _layer(keras.layers.Conv1D, conv_layer, '64, 3, padding="causal", activation="relu"')
Conv2D = _layer(keras.layers.Conv2D, conv_layer, '64, 3, padding="same", activation="relu"')
Conv3D = _layer(keras.layers.Conv3D, conv_layer, '64, 3, strides=2')
Conv1DTranspose = _layer(keras.layers.Conv1DTranspose, conv_transpose_layer, '64, 3, strides=2')
Conv2DTranspose = _layer(keras.layers.Conv2DTranspose, conv_transpose_layer, '64, 3, strides=2, padding="same"')
Conv3DTranspose = _layer(keras.layers.Conv3DTranspose, conv_transpose_layer, '64, 2, strides=2')
