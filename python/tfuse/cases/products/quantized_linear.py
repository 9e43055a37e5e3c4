import functools

import keras
import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, by_name, each, fitting, longest_axis, ones, plus, refusing, sums, twice, volume
from tfuse.cases.elementwise.scale_bias_act import activated, plain_epilogue, slopes
from tfuse.cases.products.linear import naive_product, out
from tfuse.products.quantized_linear import EPSILON, dequantized

# A case's shape is (…, inputs, outputs): x is all of it but the last. Groups are of 32 rows, so that the last may be shorter.
_GROUP = 32
_SHAPES = [(2, 3, 8, 5), (1, 1, 1, 1), (0, 4, 8, 5), (2, 3, 8, 0), (1, 7, 3, 129), (1, 129, 130, 67), (3, 43, 257, 16)]
_TILED = [(2, 3, 16, 5), (1, 1, 64, 1), (0, 4, 16, 5), (1, 7, 32, 129), (1, 129, 128, 67), (1, 16, 512, 192), (2, 40, 256, 200),
          (1, 5, 48, 72), (1, 29, 1104, 88)]
_fit = fitting(4, lambda rows, columns: (min(rows, 2), min(rows, 33), min(columns, 128) // 64 * 64 + 64, 130))


# ---- inputs ----


def _codes(shape, low, high, dtype):
    return Input(shape, lambda rng, own, _: rng.integers(low, high, own), dtype, gradient=False)


def _scales(shape, dividing=False, size=1.0):
    """So that results are as large as what they are made of."""
    def values(rng, own, case):
        by = rng.uniform(0.5, 2, own) * size / np.sqrt(max(case[-2], 1))
        return 1 / by if dividing else by
    return Input(shape, values, "real", gradient=False)


def _halves(n):
    return -(-n // 2)


def _groups(shape):
    return -(-shape[-2] // _GROUP)


_X, _BIAS, _RESIDUAL = {"x": lambda shape: shape[:-1]}, {"bias": lambda shape: shape[-1:]}, {"residual": out}
_INT8 = {"kernel": _codes(lambda s: s[-2:], -127, 128, "int8"), "scale": _scales(lambda s: s[-1:], True, 1 / 73)}
_INT4 = {"kernel": _codes(lambda s: (s[-2], _halves(s[-1])), -128, 128, "int8"),
         "scale": _scales(lambda s: (_groups(s), s[-1]), size=1 / 5),
         "zero": _codes(lambda s: (_groups(s), s[-1]), -8, 8, "int8")}
_GPTQ = {"kernel": _codes(lambda s: (_halves(s[-1]), s[-2]), 0, 256, "uint8"),
         "scale": _scales(lambda s: (s[-1], _groups(s)), size=1 / 5),
         "zero": _codes(lambda s: (s[-1], _groups(s)), 0, 16, "uint8")}
_AWQ = {"input_scale": Input(lambda s: s[-2:-1], lambda rng, own, _: rng.uniform(0.5, 2, own), gradient=False)}
_INDEX = {"groups": Input(lambda s: s[-2:-1], lambda rng, own, s: rng.integers(0, max(_groups(s), 1), own), "float32",
                          gradient=False)}


def _tiles(bits):
    bytes_ = 16 * 64 * bits // 8
    return {"kernel": _codes(lambda s: (-(-s[-1] // 64), s[-2] // 16, bytes_), 0, 256, "uint8")}


def _tables(groups, size, zero, dtype="real"):
    """Scales of groups, and what is subtracted, whole numbers."""
    def values(rng, own, case):
        by = rng.uniform(0.5, 2, own) * size / np.sqrt(case[-2])
        return np.where(np.arange(2)[:, None] == 0, by, rng.integers(*zero, own))
    return {"scale": Input(lambda s: (groups(s), 2, s[-1]), values, dtype, gradient=False)}


_TILES = {8: {**_tiles(8), **_tables(lambda s: 1, 1 / 73, (-3, 3))}, 4: {**_tiles(4), **_tables(_groups, 1 / 5, (4, 12))}}


# ---- the truth ----


def _place(bits, inputs, outputs):
    """Of all rows and columns of a kernel, which number of its tiles they are (kernels/products/quantized_kernel.h)."""
    i, o = np.arange(inputs)[:, None], np.arange(outputs)
    r, c = i % 16, o % 64
    h, t, e, g, block = r // 8, r % 8 // 2, r % 2, c % 8, c // 8
    within = (block // 4 * 512 + (4 * g + t) * 16 + block % 4 * 4 + 2 * e + h if bits == 8 else
              (4 * g + t) * 32 + block // 2 * 8 + 4 * e + 2 * (block % 2) + h)
    return (o // 64 * (inputs // 16) + i // 16) * 1024 + within


def _numbers(kernel, bits, order, inputs, outputs):
    """kernel[inputs][outputs], as numbers."""
    flat = kernel.reshape(-1).astype(np.int64) & 255
    if order == "tiles":
        flat = flat if bits == 8 else np.stack([flat & 15, flat >> 4], -1).reshape(-1)
        found = flat[_place(bits, inputs, outputs)]
        return (found ^ 128) - 128 if bits == 8 else found
    if bits == 4:
        axis = int(order == "rows")
        two = np.stack([kernel.astype(np.int64) & 15, kernel.astype(np.int64) >> 4 & 15], 1 + axis)
        kernel = two.reshape([n * (2 if a == axis else 1) for a, n in enumerate(kernel.shape)])
        kernel = np.take(kernel, range(outputs), axis)
        kernel = (kernel ^ 8) - 8 if order == "rows" else kernel
    return kernel.astype(np.float64) if order == "rows" else kernel.T.astype(np.float64)


def _weights(kernel, scale, zero=None, input_scale=None, groups=None, bits=8, group=0, order="rows", divide=False):
    outputs = scale.shape[0] if order == "columns" else scale.shape[-1]
    inputs = kernel.shape[1] * 16 if order == "tiles" else kernel.shape[order == "columns"]
    of = np.arange(inputs) // (group or max(inputs, 1)) if groups is None else groups.astype(int)
    each_row = lambda table: (table[None] if table.ndim == 1 else table.T if order == "columns" else table)[of]
    q, by = _numbers(kernel, bits, order, inputs, outputs), each_row(scale)
    if order == "tiles":
        w = (q - by[:, 1]) * by[:, 0]
        return w if input_scale is None else w / input_scale[:, None]
    q = q - (0 if zero is None else each_row(zero.astype(np.float64)))
    w = q / by if divide else q * by
    return w if input_scale is None else w / input_scale[:, None]


def _rounded(x):
    """Rounded as the op does it: in float32, where x is one."""
    narrow = x.astype(np.float32)
    wide = narrow if np.array_equal(narrow, x) else x
    by = wide.dtype.type(127) / (np.abs(wide).max(-1, keepdims=True, initial=0) + wide.dtype.type(EPSILON))
    return np.rint(wide * by).astype(np.float64) / by


def _reference(x, *weights, bias=None, residual=None, activation="linear", quantize_rows=False, **how):
    pre = plus(sums(np.matmul, _rounded(x) if quantize_rows else x, _weights(*weights, **how)), bias)
    return plus(activated(pre, activation), residual)


def _gradient(dy, x, *weights, bias=None, residual=None, activation="linear", quantize_rows=False, **how):
    w = _weights(*weights, **how)
    g = slopes(dy, plus(sums(np.matmul, _rounded(x) if quantize_rows else x, w), bias), activation)
    dbias = [] if bias is None else [sums(lambda g: g.reshape(volume(g.shape[:-1]), g.shape[-1]).sum(0), g)]
    return [sums(np.matmul, g, w.T), *dbias, *[dy] * (residual is not None)]


def _naive(x, kernel, scale, zero=None, input_scale=None, groups=None, bias=None, residual=None, activation="linear",
           quantize_rows=False, **how):
    """As Keras's layers compute it."""
    none = lambda t, dtype: tf.zeros([0], dtype) if t is None else t
    w = tf.stop_gradient(dequantized(x.dtype, kernel, scale, none(zero, kernel.dtype), none(input_scale, scale.dtype),
                                     none(groups, tf.float32), **how))
    if quantize_rows:
        by = 127 / (tf.reduce_max(tf.abs(x), -1, keepdims=True) + EPSILON)
        x = x + tf.stop_gradient(tf.round(x * by) / by - x)
    y = plain_epilogue(naive_product(x, w), bias, activation)
    return y if residual is None else y + residual


# ---- the cases ----


def _case(name, inputs, how=None, run=tfuse.quantized_linear, more_options=({},), **more):
    inputs, how = {**_X, **inputs}, how or {}
    names = list(inputs)
    def with_names(f):
        def call(*values, **options):
            given, before = dict(zip(names, values[-len(names):])), values[:-len(names)]
            x, kernel, scale = (given.pop(n) for n in ("x", "kernel", "scale"))
            return f(*before, x, kernel, scale, **given, **how, **options)
        return call
    return Case(name=name, run=by_name(run, names, **how), plain=with_names(_naive), reference=with_names(_reference),
                gradient=with_names(_gradient), fit=_fit, special=False, inputs=inputs, outputs={"value": out},
                summed=longest_axis, **{"shapes": _SHAPES, "options": list(more_options), **more})


_refused = refusing(tfuse.quantized_linear, x=ones(2, 16), kernel=ones(16, 6, dtype=tf.int8), scale=ones(6))
_ACTIVATIONS = each("activation", ["linear", "silu", "relu", "gelu"])

CASES = [
    _case("quantized_linear", {**_INT8, **_BIAS}, dict(divide=True), more_options=_ACTIVATIONS, rejects=[
        _refused("bits must be 8 or 4, got 3", bits=3),
        _refused("group must be rows of the kernel, or 0 where all are one group, got -1", group=-1),
        _refused("16 inputs in groups of 4 must have 4 groups of scales, got scale of shape .6.", group=4),
        _refused("kernel of 4 bits must have 3 bytes for the 6 outputs of scale, got shapes .16, 6. and .6.", bits=4),
        _refused("kernel in the order of rows must be .inputs, outputs., got shape .6.", kernel=ones(6, dtype=tf.int8)),
        _refused("scale must be .outputs. or .groups, outputs., got shape .1, 1, 6.", scale=ones(1, 1, 6)),
        _refused("the last axis of x must be of size 16, as kernel and scale have it, got shape .2, 15.", x=ones(2, 15)),
        _refused("x must have two dimensions or more, got shape .16.", x=ones(16)),
        _refused("zero must have the shape of scale, .6., got .5.", zero=ones(5, dtype=tf.int8)),
        _refused("zero must be int8.*got float32", zero=ones(6)),
        _refused("kernel must be int8 or uint8, got float32", kernel=ones(16, 6)),
        _refused("bias must be a vector with one value per output, 6, got shape .5.", bias=ones(5)),
        _refused("input_scale must be a vector with one value per input, 16, got shape .6.", input_scale=ones(6)),
        _refused("groups must have scales, got scale of shape .0, 6.", groups=ones(16), scale=ones(0, 6)),
        _refused("groups must be a vector with one value per input, 16, got shape .6.", groups=ones(6)),
        _refused("residual must have the shape of x . kernel, .2, 6., got .2, 5.", residual=ones(2, 5)),
        _refused("kernel in the order of tiles must be .tiles across, tiles down, bytes., got shape .16, 6.", order="tiles"),
        _refused("activation must be one of linear, relu, .*got 'swoosh'", activation="swoosh"),
    ]),
    _case("quantized_linear, rounded rows", {**_INT8, **_BIAS, **_RESIDUAL}, dict(divide=True, quantize_rows=True),
          more_options=_ACTIVATIONS[:2]),
    _case("quantized_linear, 4 bits", _INT4, dict(bits=4, group=_GROUP)),
    _case("quantized_linear, groups by index", {**_INT4, **_INDEX}, dict(bits=4, group=_GROUP)),
    _case("quantized_linear, columns", {**_GPTQ, **_AWQ, **_BIAS}, dict(bits=4, group=_GROUP, order="columns")),
    _case("quantized_linear, tiles", {**_TILES[8], **_BIAS, **_RESIDUAL}, dict(order="tiles"), shapes=_TILED,
          more_options=[*_ACTIVATIONS[:2], {"quantize_rows": True}]),
    _case("quantized_linear, tiles of 4 bits", {**_TILES[4], **_AWQ}, dict(bits=4, group=_GROUP, order="tiles"), shapes=_TILED),
    _case("quantized_linear, tiles of 4 bits, narrow scales",
          {**_tiles(4), **_tables(lambda s: -(-s[-2] // 64), 1 / 5, (4, 12), None)},
          dict(bits=4, group=64, order="tiles"), shapes=_TILED),
]


# ---- what is timed ----


def _elements(bits):
    """In x's dtype, of 16 bits; the gradient reads the kernel again."""
    def elements(shape):
        *rows, inputs, outputs = shape
        return 2 * [volume(rows) * (inputs + outputs) + inputs * outputs * bits // 16]
    return elements


@functools.lru_cache(1)
def _kernel_like(x, outputs):
    """A kernel of x's dtype, made once: outside of the graph that calls this."""
    with tf.init_scope():
        return tf.random.normal([x.shape[-1], outputs], stddev=0.02, dtype=x.dtype)


def _in_16_bits(x, kernel, scale):
    return tfuse.linear(x, _kernel_like(tf.TensorSpec(x.shape, x.dtype), scale.shape[-1]))


def _as_int8_layers(x, kernel, scale):
    """The product as Keras's int8 layers have it. The kernel's bytes are taken for rows: what they say does not matter here."""
    kernel, by = tf.reshape(tf.bitcast(kernel, tf.int8), [x.shape[-1], scale.shape[-1]]), tf.cast(1 / scale[0, 0], x.dtype)

    @tf.custom_gradient
    def product(x):
        codes, x_by = keras.quantizers.abs_max_quantize(x, -1)
        y = tf.cast(keras.ops.matmul(codes, kernel), x.dtype) / (x_by * by)
        return y, lambda dy: tf.matmul(dy, tf.cast(kernel, dy.dtype) / by, transpose_b=True)

    return product(x)


def _timed(name, bits, sizes, limits, group=128, how={}, **more):
    table = _tables(lambda s: s[-2] // group if group else 1, 1 / 9, (0, 1) if bits == 8 else (4, 12), None)
    case = _case(name, {**_tiles(bits), **table}, dict(bits=bits, order="tiles", group=group, **how))
    return Timed(case, sizes, elements=_elements(bits), flops=lambda shape, options: twice(2 * volume(shape)), pace=_in_16_bits,
                 cpu_sizes=[(1, 768, 768)], bars={("bfloat16", size): limit for size, limit in zip(sizes, limits)}, **more)


_DECODE = [(rows, 4096, 14336) for rows in (1, 8, 64, 512)]
_AT_MEMORYS_RATE, _AS_FAST_AS_16_BITS = {"forward": 80}, {"of_matmul": 100}
TIMES = [
    _timed("quantized_linear, 8 bits, speed", 8, _DECODE, 2 * [_AT_MEMORYS_RATE]),
    _timed("quantized_linear, 4 bits, speed", 4, _DECODE, 2 * [{**_AT_MEMORYS_RATE, "of_matmul": 300}] + 2 * [_AS_FAST_AS_16_BITS]),
    _timed("quantized_linear, 8 bits by 8 bits, speed", 8, [(8192, 8192, 4096)], [{"tflops": 1000, "of_XLA": 1.0}], group=0,
           how=dict(quantize_rows=True), rival=_as_int8_layers, stock_can=lambda shape: shape[0] == 1, xla_can="alone"),
]
