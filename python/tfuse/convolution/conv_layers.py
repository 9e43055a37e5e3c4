"""Keras's convolution layers by tfuse.conv and tfuse.conv_transpose: same arguments, weights and results."""

import keras
import tensorflow as tf

from tfuse._core._layer import layer_of
from tfuse._core._op import real
from tfuse.convolution.channels_first import by_last, to_last
from tfuse.convolution.conv import conv, conv_transpose
from tfuse.convolution.depthwise_conv import why_not_conv
from tfuse.elementwise.scale_bias_act import known_activation


def _kernel(layer, dtype):
    """A layer's kernel as it is kept, where tfuse.conv takes it so beside data of a dtype: without a cast, and another for its
    gradient. Else in that dtype."""
    with keras.src.backend.AutocastScope(None):
        kernel = tf.convert_to_tensor(layer.kernel)
    return kernel if kernel.dtype == real(dtype) else tf.cast(kernel, dtype)


def _of_layer(f, layer, x, turn=to_last, **options):
    """f with a layer's weights and activation, which is applied behind it where it is not in the table. turn: as to_last."""
    name, after = known_activation(layer.activation)
    kernel, bias = _kernel(layer, x.dtype), None if layer.bias is None else keras.ops.convert_to_tensor(layer.bias, x.dtype)
    options = {"strides": layer.strides, "padding": layer.padding, "dilation": layer.dilation_rate, **options}
    y = by_last(f.__name__, lambda x: f(x, kernel, bias, name, **options), layer.data_format, x, turn=turn)
    return y if after is None else after(y)


def conv_layer(layer, x, turn=to_last, **options):
    """What a Keras convolution layer computes; options of tfuse.conv that are not the layer's."""
    return _of_layer(conv, layer, x, turn, groups=layer.groups, **options)


def conv_transpose_layer(layer, x, turn=to_last):
    """What a Keras layer of transposed convolution computes."""
    return _of_layer(conv_transpose, layer, x, turn, output_padding=layer.output_padding)


_TEXT = "by tfuse.%s. An activation that is not in tfuse's table is applied behind it."


def _conv(name, example):
    return layer_of(name, why_not_conv, lambda layer, inputs: conv_layer(layer, inputs), _TEXT % "conv", example)


def _transpose(name, example):
    serve = lambda layer, inputs: conv_transpose_layer(layer, inputs)
    return layer_of(name, why_not_conv, serve, _TEXT % "conv_transpose", example)


Conv1D = _conv("Conv1D", '64, 3, padding="causal", activation="relu"')
Conv2D = _conv("Conv2D", '64, 3, padding="same", activation="relu"')
Conv3D = _conv("Conv3D", "64, 3, strides=2")
Conv1DTranspose = _transpose("Conv1DTranspose", "64, 3, strides=2")
Conv2DTranspose = _transpose("Conv2DTranspose", '64, 3, strides=2, padding="same"')
Conv3DTranspose = _transpose("Conv3DTranspose", "64, 2, strides=2")
