import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, each, ones, plus, refusing, sums, twice, volume
from tfuse.cases.convolution import conv as floats
from tfuse.cases.elementwise.scale_bias_act import activated

_SHAPES = [*floats.PLANE, (2, 5, 6, 48, 40), (1, 7, 7, 64, 144)]


def _codes(shape):
    return Input(shape, lambda rng, own, _: rng.integers(-127, 128, own), "int8", gradient=False)


def _floats(shape, values=None):
    return Input(shape, values, "float32", gradient=False)


def _scales(rng, own, shape):
    """So that results are as large as what is added."""
    return rng.uniform(0.5, 2, own) / (73**2 * np.sqrt(max(9 * shape[-2], 1)))


def _kernel(geometry):
    return _codes(lambda shape: (shape[-1], *geometry.size, shape[-2] // geometry.groups))


def _last(kernel):
    """As tfuse.conv has it."""
    return np.moveaxis(np.asarray(kernel, float), 0, -1)


def _reference(geometry):
    def reference(x, kernel, scale, bias=None, residual=None, activation="linear", residual_scale=1.0, dtype=None):
        pre = plus(sums(geometry.forward, x.astype(float), _last(kernel)) * scale, bias)
        return activated(pre if residual is None else pre + residual * residual_scale, activation)

    return reference


def _naive(geometry):
    """As a stock network simulates 8 bits: both factors as floats, in the dtype of the results."""
    def naive(x, kernel, scale, bias=None, residual=None, activation="linear", residual_scale=1.0, dtype="float32"):
        kernel = tf.transpose(tf.cast(kernel, tf.float32) * scale[(..., *(tf.newaxis,) * (kernel.shape.rank - 1))],
                              [*range(1, kernel.shape.rank), 0])
        y = floats.naive(geometry, tf.cast(x, dtype), tf.cast(kernel, dtype))
        y = y if bias is None else y + tf.cast(bias, dtype)
        y = y if residual is None else y + tf.cast(tf.cast(residual, tf.float32) * residual_scale, dtype)
        return {"linear": tf.identity, "relu": tf.nn.relu, "silu": tf.nn.silu}[activation](y)

    return naive


def _case(name, geometry, inputs=("bias",), options=({},), shapes=_SHAPES, dtype="float32", wide=False, **more):
    """Inputs after x, kernel and scale by their names. dtype: of the results, and of the residual where that is wide."""
    options_of = {key: value for key, value in geometry.options().items() if key != "groups"}
    options = [{**each, **{"dtype": dtype}} if dtype != "float32" else each for each in options]
    out = floats.out_of(geometry)
    all_inputs = {"bias": _floats(lambda shape: shape[-1:]),
                  "residual": Input(out, dtype=dtype, gradient=False) if wide else _codes(out)}
    run = lambda x, kernel, scale, *given, **how: tfuse.quantized_conv(x, kernel, scale, **dict(zip(inputs, given)),
                                                                        **options_of, **how)
    named = lambda f: lambda x, kernel, scale, *given, **how: f(x, kernel, scale, **dict(zip(inputs, given)), **how)
    return Case(name=name, run=run, plain=named(_naive(geometry)), reference=named(_reference(geometry)),
                fit=floats.fit_of(len(geometry.size)), summed=lambda shape: 9 * shape[-2], special=False, shapes=shapes,
                inputs={"x": _codes(lambda shape: shape[:-1]), "kernel": _kernel(geometry),
                        "scale": _floats(lambda shape: shape[-1:], _scales), **{i: all_inputs[i] for i in inputs}},
                outputs={"value": Input(out, dtype=dtype, gradient=False)}, options=options, **more)


_STRIDED = floats.Geometry((3, 2), strides=2, padding=[(1, 2), (0, 1)])
_refused = refusing(tfuse.quantized_conv, x=ones(2, 5, 5, 4, dtype=tf.int8), kernel=ones(6, 3, 3, 4, dtype=tf.int8),
                    scale=ones(6))
CASES = [
    _case("quantized_conv", floats.Geometry((3, 3), padding="same"), options=each(
        "activation", ["linear", "relu", "silu"]), rejects=[
        _refused("quantized_conv: x must be int8, got float32", x=ones(2, 5, 5, 4)),
        _refused("quantized_conv: kernel must be int8.*got float32", kernel=ones(6, 3, 3, 4)),
        _refused("x must be .batch, spatial axes, channels. with one to three spatial axes, got shape .2, 4.",
                 x=ones(2, 4, dtype=tf.int8)),
        _refused("channels of x must be those of kernel, or as many for each of several groups, got 5 and kernel",
                 x=ones(2, 5, 5, 5, dtype=tf.int8)),
        _refused("scale must be a vector with one value per output, the first axis of kernel .6, 3, 3, 4., got shape .4.",
                 scale=ones(4)),
        _refused("bias must be a vector with one value per output, the first axis of kernel .6, 3, 3, 4., got shape .4.",
                 bias=ones(4)),
        _refused("residual must have the shape of the convolution, .2, 3, 3, 6., got .2, 5, 5, 6.",
                 residual=ones(2, 5, 5, 6, dtype=tf.int8)),
        _refused("residual must be int8, or float32 like the result, got bfloat16",
                 residual=ones(2, 3, 3, 6, dtype=tf.bfloat16)),
        _refused("dtype must be one of float32, float16, bfloat16, got float64; y_scale makes int8", dtype="float64"),
        _refused("with y_scale activation must be None or 'relu', got 'gelu'", activation="gelu", y_scale=1.0),
        _refused("kernel must have at most 131071 numbers for an output, since sums are int32",
                 x=ones(1, 1, 1, 1 << 17, dtype=tf.int8), kernel=ones(6, 1, 1, 1 << 17, dtype=tf.int8)),
    ]),
    _case("quantized_conv, residual", _STRIDED, ["bias", "residual"], [{"activation": "relu", "residual_scale": 0.02}],
          dtype="bfloat16"),
    _case("quantized_conv, residual of floats", _STRIDED, ["residual"], dtype="float16", wide=True),
    _case("quantized_conv, groups", floats.Geometry((3, 3), padding="same", dilation=2, groups=2), [], shapes=[
        (2, 9, 7, 8, 6), (1, 1, 1, 2, 2), (0, 4, 5, 4, 6), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34), (2, 9, 9, 64, 96)]),
    _case("quantized_conv, one axis", floats.Geometry((4,), padding="causal", dilation=3), shapes=[
        (2, 30, 8, 5), (1, 1, 1, 1), (0, 4, 5, 4), (3, 101, 32, 24)]),
    _case("quantized_conv, three axes", floats.Geometry((2, 3, 2), strides=(1, 2, 3)), [], shapes=[
        (2, 5, 7, 6, 8, 5), (1, 2, 3, 2, 1, 1), (1, 4, 9, 8, 6, 17)]),
]


# ---- what is timed ----


def _timed(name, geometry, sizes):
    """Results of int8. In elements of 16 bits, two of 8 bits are one. The rival is stock TensorFlow in bfloat16."""
    case = _case(name, geometry, options=[{"activation": "relu", "y_scale": 20.0}])
    out = floats.out_of(geometry)

    def rival(x, kernel, scale, bias, activation, y_scale):
        y = floats.by_stock(geometry, tf.cast(x, tf.bfloat16), tf.transpose(tf.cast(kernel, tf.bfloat16), [1, 2, 3, 0]))
        return tf.nn.relu(y + tf.cast(bias, tf.bfloat16))

    return Timed(case, sizes, rival=rival, cpu_sizes=[floats.cpu_size(geometry, sizes[0])],
                 elements=lambda shape: twice(
                     (volume(shape[:-1]) + volume(out(shape)) + volume(geometry.size) * volume(shape[-2:])) // 2),
                 flops=lambda shape, options: twice(2 * volume(out(shape)) * volume(geometry.size) * shape[-2]))


TIMES = [
    _timed("quantized_conv, ResNet 1x1", floats.Geometry((1, 1)), [(128, 56, 56, 64, 256), (128, 14, 14, 1024, 256)]),
    _timed("quantized_conv, ResNet 3x3", floats.Geometry((3, 3), padding="same"),
           [(128, 28, 28, 128, 128), (128, 7, 7, 512, 512)]),
]
