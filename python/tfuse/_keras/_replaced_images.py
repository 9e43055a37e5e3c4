"""What tfuse.enable() replaces of Keras's convolutions, pooling, batch norms, resizing, and products and dropout of images, as
rows of a table. Convolutions and pooling are served where there is a GPU: layers by their call, with bias and activation, and
what keras.ops has of them."""

import math

import keras
import tensorflow as tf

from tfuse._core import _library, _op, _sizes
from tfuse._core._explain import reason
from tfuse._core._op import FLOATS, MOST_AXES
from tfuse._keras import _look_back_images
from tfuse._keras._replaced import Row, backend_module, by_name, not_taken, on_a_gpu
from tfuse._keras._look_back_images import turn
from tfuse.convolution import depthwise_conv, pool, scale_channels
from tfuse.convolution import resize as resizing
from tfuse.convolution.batch_norm import normalise
from tfuse.convolution.channels_first import by_last, to_first
from tfuse.convolution.conv import conv, conv_transpose
from tfuse.convolution.conv_layers import conv_layer, conv_transpose_layer, depthwise_layer, separable_layer, why_not_conv
from tfuse.elementwise.scale_bias_act import scale_bias_act
from tfuse.reductions.reduce import reduce_max, reduce_mean

# ---- layers ----


def _conv(own, layer, inputs):
    x, padding = _look_back_images.padding_of(layer, inputs, any_padding=True)
    return conv_layer(layer, x, turn, padding=padding)


@reason
def _conv_guard(layer, inputs):
    """A layer may compute its convolution otherwise, by a method of its own."""
    theirs = getattr(keras.src.layers.convolutional.base_conv.BaseConv, "convolution_op", None)
    other = getattr(type(layer), "convolution_op", theirs) is not theirs
    yield other and "%s has a convolution_op of its own" % type(layer).__name__
    yield why_not_conv(layer, inputs)


def _by_depth(serve):
    """A depthwise or separable convolution."""
    def call(own, layer, inputs):
        x, padding = _look_back_images.padding_of(layer, inputs, any_padding=False)
        return serve(layer, x, turn=turn, padding=padding)

    return call


@reason
def _global_guard(layer, inputs, mask=None):
    yield mask is not None and "a mask says what is averaged"
    yield _op.inside_xla() and "XLA joins a reduction with what comes before it"
    yield pool.why_not_pool(layer, inputs)


def _batch_norm(own, layer, inputs, training=None, mask=None):
    inputs = keras.ops.convert_to_tensor(inputs)
    own_statistics, last, rank = training and layer.trainable, None, inputs.shape.rank
    if mask is None and layer.axis == 1 and rank > 2:
        last = _look_back_images.last_of(inputs)
    made = _look_back_images.convolution(inputs, last) if last is not None or layer.axis in (-1, rank - 1) else None
    x, bias, y = inputs if last is None else last, None, None
    if made is not None and not own_statistics:
        y = _look_back_images.folded(layer, made)
    elif made is not None and mask is None and not layer.synchronized and layer.beta is not None:
        x, bias = _look_back_images.without_bias(made) or (x, None)
    if y is None:
        y = normalise(layer, x, training, mask, layer.axis if last is None else -1, bias)
    return keras.ops.cast(y if last is None else to_first(y, turn), layer.compute_dtype)


@reason
def _batch_norm_guard(layer, inputs, training=None, mask=None):
    yield not_taken(inputs)
    yield len(inputs.shape) < 2 and "there are fewer than two dimensions"
    yield inputs.shape[layer.axis] is None and "the number of channels is not known"
    yield getattr(layer, "renorm", False) and "renorm=True corrects the statistics"
    yield tf.is_tensor(training) and "training is a tensor"
    odd = mask is not None and len(mask.shape) != len(inputs.shape) - 1
    yield odd and "the mask has not one axis less than the inputs"


def _layer_scale(own, layer, x):
    """Of ConvNeXt: a scale per channel."""
    return scale_bias_act(x, keras.ops.convert_to_tensor(layer.gamma, x.dtype))


@reason
def _layer_scale_guard(layer, x):
    yield not_taken(x)
    yield list(x.shape[-1:]) != list(layer.gamma.shape) and "the scale is not per channel"


_MOST_REPEATED = 1 << 20  # positions of a result: up to there, the nearest one in float32 is the one that repeats


def _upsample(own, layer, inputs):
    factors = layer.size if isinstance(layer.size, tuple) else (layer.size,)
    interpolation = getattr(layer, "interpolation", "nearest")
    return by_last("resize", lambda x: resizing.upsample(x, factors, interpolation), _layer_format(layer), inputs, turn=turn)


def _layer_format(layer):
    return getattr(layer, "data_format", "channels_last")


@reason
def _upsample_guard(layer, inputs):
    yield not_taken(inputs)
    factors = layer.size if isinstance(layer.size, tuple) else (layer.size,)
    yield len(inputs.shape) != len(factors) + 2 and "the inputs have %d axes" % len(inputs.shape)
    first = 1 if _layer_format(layer) == "channels_last" else 2
    sizes = zip(inputs.shape[first:], factors)
    odd = any(n is not None and not 1 <= n * factor <= _MOST_REPEATED for n, factor in sizes)
    yield odd and "an axis of the result has none or more than %d positions" % _MOST_REPEATED
    interpolation = getattr(layer, "interpolation", "nearest")
    yield interpolation not in resizing.INTERPOLATIONS and "interpolation is %s" % interpolation


# ---- functions of the backend, which keras.ops calls ----


def _resize_op(own, images, size, interpolation="bilinear", antialias=False, crop_to_aspect_ratio=False,
               pad_to_aspect_ratio=False, fill_mode="constant", fill_value=0.0, data_format=None):
    images = keras.ops.convert_to_tensor(images)
    return by_last("resize", lambda x: resizing.resize(x, tuple(size), interpolation, antialias),
                   _data_format(data_format) if images.shape.rank == 4 else "channels_last", images, turn=turn)


@reason
def _resize_op_guard(a):
    yield not_taken(a.images)
    yield a.interpolation not in resizing.INTERPOLATIONS and "interpolation is %s" % a.interpolation
    yield a.crop_to_aspect_ratio and "crop_to_aspect_ratio=True cuts before it resizes"
    yield a.pad_to_aspect_ratio and "pad_to_aspect_ratio=True pads before it resizes"
    yield a.fill_mode != "constant" and "fill_mode is %s" % a.fill_mode
    rank = len(a.images.shape)
    yield rank not in (3, 4) and "the images have %d axes" % rank
    first = _data_format(a.data_format) != "channels_last"
    yield first and rank == 3 and "channels come first in a single image"
    yield len(a.size) != 2 and "size has %d numbers" % len(a.size)
    odd = any(isinstance(n, int) and not 1 <= n <= resizing.MOST for n in a.size)
    yield odd and "size is %s" % (a.size,)
    empty = any(n == 0 for n in a.images.shape[1 + first if rank == 4 else 0:][:2])
    yield empty and "the images are empty"


@reason
def _image_guard(x, kernels, padding, data_format, spatial=(1, 2, 3)):
    """Of what is common to all of them; kernels: [spatial axes, channels, outputs]."""
    tensors = x, *kernels
    yield not_taken(*tensors)
    odd = len(x.shape) - 2 not in spatial or any(len(kernel.shape) != len(x.shape) for kernel in kernels)
    yield odd and "shapes of %s are not those of images" % " and ".join(str(list(t.shape)) for t in tensors)
    yield len({keras.backend.standardize_dtype(t.dtype) for t in tensors}) > 1 and "dtypes differ"
    yield padding.lower() not in ("valid", "same") and "padding is %s" % padding
    yield _channels(x, data_format) is None and "the number of channels is not known"


def _channels(x, data_format):
    return x.shape[-1 if _data_format(data_format) == "channels_last" else 1]


def _data_format(given):
    return keras.backend.image_data_format() if given is None else given.lower()


def _served(f, x, kernels, data_format, **options):
    x, *kernels = (keras.ops.convert_to_tensor(t) for t in (x, *kernels))
    return by_last(f.__name__, lambda x: f(x, *kernels, **options), _data_format(data_format), x, turn=turn)


def _conv_op(own, inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
    return _served(conv, inputs, [kernel], data_format, strides=strides, padding=padding.lower(), dilation=dilation_rate,
                   groups=_channels(inputs, data_format) // kernel.shape[-2])


@reason
def _conv_op_guard(a):
    yield _image_guard(a.inputs, [a.kernel], a.padding, a.data_format)
    first = 1 if _data_format(a.data_format) == "channels_last" else 2
    rates = [a.dilation_rate] * 3 if isinstance(a.dilation_rate, int) else a.dilation_rate
    sizes = zip(a.inputs.shape[first:first + len(a.inputs.shape) - 2], a.kernel.shape, rates)
    beyond = a.padding.lower() == "valid" and any(n is not None and n < (k - 1) * d + 1 for n, k, d in sizes)
    yield beyond and "the window does not fit into the input"
    own = a.kernel.shape[-2]
    yield not (own and _channels(a.inputs, a.data_format) % own == 0) and "the channels are not those of the kernel"


def _conv_transpose_op(own, inputs, kernel, strides=1, padding="valid", output_padding=None, data_format=None, dilation_rate=1):
    return _served(conv_transpose, inputs, [kernel], data_format, strides=strides, padding=padding.lower(),
                   output_padding=output_padding, dilation=dilation_rate)


def _depthwise_op(own, inputs, kernel, strides=1, padding="valid", data_format=None, dilation_rate=1):
    return _served(depthwise_conv.depthwise_conv, inputs, [kernel], data_format, strides=strides, padding=padding,
                   dilation=dilation_rate)


def _separable_op(own, inputs, depthwise_kernel, pointwise_kernel, strides=1, padding="valid", data_format=None,
                  dilation_rate=1):
    return _served(depthwise_conv.separable_conv, inputs, [depthwise_kernel, pointwise_kernel], data_format, strides=strides,
                   padding=padding, dilation=dilation_rate)


def _pool_op(op, f):
    def serve(own, inputs, pool_size, strides=None, padding="valid", data_format=None):
        x, padding = _look_back_images.pool_padding_of(op, inputs, padding, _data_format(data_format))
        return _served(f, x, [], data_format, size=pool_size, strides=strides, **padding)

    return serve


def _pool_op_guard(a):
    return _image_guard(a.inputs, [], a.padding, a.data_format)


def _max_pool_op_guard(a):
    elements = a.pool_size ** (len(a.inputs.shape) - 2) if isinstance(a.pool_size, int) else math.prod(a.pool_size)
    large = elements > pool.MOST_ELEMENTS
    return _pool_op_guard(a) or ("a window has more than %d elements" % pool.MOST_ELEMENTS if large else "")


# ---- images times numbers ----


def scaled(x1, x2):
    """x1 * x2, where one of them has a number for each image and channel, as squeeze-and-excitation has it; or None."""
    if _library.without_gpu() or not all(isinstance(x, tf.Tensor) and x.dtype in FLOATS for x in (x1, x2)):
        return None
    for x, scale in (x1, x2), (x2, x1):
        if scale_channels.fits(x, scale) and _sizes.same_size(x, 0, scale, 0):
            return scale_channels.scale_channels(x, scale)
    return None


def _drop(own, inputs, rate, noise_shape=None, seed=None):
    """Keras's dropout of whole images: what it leaves of ones says which, and by what the others are multiplied."""
    if not (rate and noise_shape is not None and _drops_images(inputs, noise_shape)):
        return own(inputs, rate, noise_shape, seed)
    batch = inputs.shape[0] or tf.shape(inputs)[0]
    kept = own(tf.ones([batch, *[1] * (inputs.shape.rank - 1)], inputs.dtype), rate, None, seed)
    return scale_channels.drop_images(inputs, kept)


def _drops_images(x, noise_shape):
    if _library.without_gpu() or not isinstance(x, tf.Tensor) or x.dtype not in FLOATS or x.shape.rank is None:
        return False
    if not 3 <= x.shape.rank == len(noise_shape) <= MOST_AXES or x.shape[-1] is None:
        return False
    batch, *others = noise_shape
    known = batch is None or isinstance(batch, int) and batch == x.shape[0]  # it may be a tensor
    return known and all(isinstance(size, int) and size == 1 for size in others)


# ---- the table ----

_NN, _LAYERS = backend_module("nn"), "keras.src.layers."
SERVED = [  # module and attribute, what serves it, the guard, what it is where there is no GPU
    (_LAYERS + "convolutional.base_conv", "BaseConv.call", _conv, _conv_guard, "convolution"),
    (_LAYERS + "convolutional.conv1d", "Conv1D.call", _conv, _conv_guard, "convolution"),
    (_LAYERS + "convolutional.base_conv_transpose", "BaseConvTranspose.call", lambda own, layer, inputs: (
        conv_transpose_layer(layer, inputs, turn)), why_not_conv, "convolution"),
    (_LAYERS + "convolutional.base_depthwise_conv", "BaseDepthwiseConv.call", _by_depth(depthwise_layer),
     why_not_conv, "convolution"),
    (_LAYERS + "convolutional.base_separable_conv", "BaseSeparableConv.call", _by_depth(separable_layer),
     why_not_conv, "convolution"),
    (_LAYERS + "pooling.global_average_pooling1d", "GlobalAveragePooling1D.call",
     lambda own, layer, inputs, mask=None: pool.global_pool(layer, inputs), _global_guard, "mean"),
    *((_LAYERS + "pooling.global_%s_pooling%dd" % (kind.lower(), axes), "Global%sPooling%dD.call" % (kind, axes),
       lambda own, layer, inputs, reduce=reduce: pool.global_pool(layer, inputs, reduce), _global_guard, what)
      for kind, reduce, what in (("Average", reduce_mean, "mean"), ("Max", reduce_max, "maximum"))
      for axes in (1, 2, 3) if (kind, axes) != ("Average", 1)),
    *((_NN, name, serve, by_name(serve, why_not), what) for name, serve, why_not, what in (
        ("conv", _conv_op, _conv_op_guard, "convolution"),
        ("conv_transpose", _conv_transpose_op, lambda a: _image_guard(a.inputs, [a.kernel], a.padding, a.data_format),
         "convolution"),
        ("depthwise_conv", _depthwise_op, lambda a: _image_guard(a.inputs, [a.kernel], a.padding, a.data_format, (1, 2)),
         "convolution"),
        ("separable_conv", _separable_op, lambda a: _image_guard(
            a.inputs, [a.depthwise_kernel, a.pointwise_kernel], a.padding, a.data_format, (1, 2)), "convolution"),
        ("max_pool", _pool_op("MaxPool", pool.max_pool), _max_pool_op_guard, "pooling"),
        ("average_pool", _pool_op("AveragePool", pool.average_pool), _pool_op_guard, "pooling"))),
]
TABLE = [
    Row(_LAYERS + "normalization.batch_normalization", "BatchNormalization.call", _batch_norm, _batch_norm_guard),
    Row("keras.src.applications.convnext", "LayerScale.call", _layer_scale, _layer_scale_guard),
    Row("keras.src.backend.tensorflow.random", "dropout", _drop),
    *(Row("%sreshaping.up_sampling%dd" % (_LAYERS, axes), "UpSampling%dD.call" % axes, _upsample, _upsample_guard)
      for axes in (1, 2, 3)),
    Row(backend_module("image"), "resize", _resize_op, by_name(_resize_op, _resize_op_guard)),
    *(Row(module, attribute, serve, on_a_gpu(guard, what)) for module, attribute, serve, guard, what in SERVED),
]
