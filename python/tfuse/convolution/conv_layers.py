"""Keras's convolution layers by tfuse.conv and tfuse.conv_transpose: same arguments, weights and results."""

import keras
import tensorflow as tf

from tfuse._core._op import FLOATS, real
from tfuse.convolution.channels_first import by_last, to_last
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
    return ""


def _kernel(layer, dtype):
    """A layer's kernel as it is kept, where tfuse.conv takes it so beside data of a dtype: without a cast, and another for its
    gradient. Else in that dtype."""
    with keras.src.backend.AutocastScope(None):
        kernel = tf.convert_to_tensor(layer.kernel)
    return kernel if kernel.dtype == real(dtype) else tf.cast(kernel, dtype)


def _of_layer(f, layer, x, turn=to_last, **options):
    """f with a layer's weights and activation, which is applied behind it where it is not in the table. turn: as to_last."""
    try:
        name, after = activation_name(layer.activation), None
    except ValueError:
        name, after = "linear", layer.activation
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


@keras.saving.register_keras_serializable("tfuse")
class Conv1D(keras.layers.Conv1D):
    """keras.layers.Conv1D by tfuse.conv. An activation that is not in tfuse's table is applied behind it.

    Example:
      layer = tfuse.Conv1D(64, 3, padding="causal", activation="relu")
    """

    def call(self, inputs):
        return super().call(inputs) if why_not_conv(self, inputs) else conv_layer(self, inputs)


@keras.saving.register_keras_serializable("tfuse")
class Conv2D(keras.layers.Conv2D):
    """keras.layers.Conv2D by tfuse.conv. An activation that is not in tfuse's table is applied behind it.

    Example:
      layer = tfuse.Conv2D(64, 3, padding="same", activation="relu")
    """

    def call(self, inputs):
        return super().call(inputs) if why_not_conv(self, inputs) else conv_layer(self, inputs)


@keras.saving.register_keras_serializable("tfuse")
class Conv3D(keras.layers.Conv3D):
    """keras.layers.Conv3D by tfuse.conv. An activation that is not in tfuse's table is applied behind it.

    Example:
      layer = tfuse.Conv3D(64, 3, strides=2)
    """

    def call(self, inputs):
        return super().call(inputs) if why_not_conv(self, inputs) else conv_layer(self, inputs)


@keras.saving.register_keras_serializable("tfuse")
class Conv1DTranspose(keras.layers.Conv1DTranspose):
    """keras.layers.Conv1DTranspose by tfuse.conv_transpose. An activation that is not in tfuse's table is applied behind it.

    Example:
      layer = tfuse.Conv1DTranspose(64, 3, strides=2)
    """

    def call(self, inputs):
        return super().call(inputs) if why_not_conv(self, inputs) else conv_transpose_layer(self, inputs)


@keras.saving.register_keras_serializable("tfuse")
class Conv2DTranspose(keras.layers.Conv2DTranspose):
    """keras.layers.Conv2DTranspose by tfuse.conv_transpose. An activation that is not in tfuse's table is applied behind it.

    Example:
      layer = tfuse.Conv2DTranspose(64, 3, strides=2, padding="same")
    """

    def call(self, inputs):
        return super().call(inputs) if why_not_conv(self, inputs) else conv_transpose_layer(self, inputs)


@keras.saving.register_keras_serializable("tfuse")
class Conv3DTranspose(keras.layers.Conv3DTranspose):
    """keras.layers.Conv3DTranspose by tfuse.conv_transpose. An activation that is not in tfuse's table is applied behind it.

    Example:
      layer = tfuse.Conv3DTranspose(64, 2, strides=2)
    """

    def call(self, inputs):
        return super().call(inputs) if why_not_conv(self, inputs) else conv_transpose_layer(self, inputs)
