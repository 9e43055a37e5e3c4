"""Keras's convolution layers by tfuse's convolutions: same arguments, weights and results."""

import keras
import tensorflow as tf

from tfuse._core._explain import reason
from tfuse._core._layer import as_kept, layer_of, not_computed_in
from tfuse._core._op import real
from tfuse.convolution.channels_first import by_last, to_last
from tfuse.convolution.conv import conv, conv_transpose
from tfuse.convolution.depthwise_conv import fused, separable
from tfuse.elementwise.scale_bias_act import known_activation


@reason
def why_not_conv(layer, x):
    """Why tfuse does not serve a convolution layer of Keras's, for this input."""
    yield not_computed_in(layer, x)
    yield x.shape.rank != layer.rank + 2 and "the layer takes %d dimensions, got %s" % (layer.rank + 2, x.shape.rank)


def _kernel(layer, x):
    """A layer's kernel as it is kept, where tfuse.conv takes it so beside x: without a cast, and another for its gradient. Else
    in the dtype of x."""
    with as_kept():
        kernel = tf.convert_to_tensor(layer.kernel)
    return kernel if kernel.dtype == real(x.dtype) else tf.cast(kernel, x.dtype)


def _of_layer(f, layer, x, kernels, turn, **options):
    """f with a layer's weights and activation, which is applied after it where it is not in the table. turn: as to_last;
    options: those that are not the layer's, too."""
    name, after = known_activation(layer.activation)
    bias = None if layer.bias is None else keras.ops.convert_to_tensor(layer.bias, x.dtype)
    options = {"strides": layer.strides, "padding": layer.padding, "dilation": layer.dilation_rate, **options}
    y = by_last(f.__name__, lambda x: f(x, *kernels, bias, name, **options), layer.data_format, x, turn=turn)
    return y if after is None else after(y)


def conv_layer(layer, x, turn=to_last, **options):
    return _of_layer(conv, layer, x, [_kernel(layer, x)], turn, groups=layer.groups, **options)


def conv_transpose_layer(layer, x, turn=to_last):
    return _of_layer(conv_transpose, layer, x, [_kernel(layer, x)], turn, output_padding=layer.output_padding)


def depthwise_layer(layer, x, turn=to_last, **options):
    return _of_layer(fused, layer, x, [keras.ops.convert_to_tensor(layer.kernel, x.dtype)], turn, **options)


def separable_layer(layer, x, turn=to_last, **options):
    kernels = [keras.ops.convert_to_tensor(kernel, x.dtype) for kernel in (layer.depthwise_kernel, layer.pointwise_kernel)]
    return _of_layer(separable, layer, x, kernels, turn, **options)


def _layers(serve, text, **examples):
    return (layer_of(name, why_not_conv, serve, text, example) for name, example in examples.items())


_TEXT = "by tfuse.%s. An activation that is not in tfuse's table is applied behind it."
_BY_DEPTH = "by tfuse: same arguments, weights and results."
Conv1D, Conv2D, Conv3D = _layers(
    lambda layer, inputs: conv_layer(layer, inputs), _TEXT % "conv", Conv1D='64, 3, padding="causal", activation="relu"',
    Conv2D='64, 3, padding="same", activation="relu"', Conv3D="64, 3, strides=2")
Conv1DTranspose, Conv2DTranspose, Conv3DTranspose = _layers(
    lambda layer, inputs: conv_transpose_layer(layer, inputs), _TEXT % "conv_transpose", Conv1DTranspose="64, 3, strides=2",
    Conv2DTranspose='64, 3, strides=2, padding="same"', Conv3DTranspose="64, 2, strides=2")
DepthwiseConv1D, DepthwiseConv2D = _layers(
    lambda layer, inputs, training=None: depthwise_layer(layer, inputs, training=training), _BY_DEPTH,
    DepthwiseConv1D='4, padding="same"', DepthwiseConv2D='7, padding="same"')
SeparableConv1D, SeparableConv2D = _layers(
    lambda layer, inputs, training=None: separable_layer(layer, inputs, training=training), _BY_DEPTH,
    SeparableConv1D='64, 3, activation="relu"', SeparableConv2D='64, 3, activation="relu"')
