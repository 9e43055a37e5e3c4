import ml_dtypes
import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, by_name, each, fitting, longest_axis, ones, plus, refusing, sums, twice, volume
from tfuse.cases.elementwise.scale_bias_act import activated, plain_epilogue, slopes
from tfuse.cases.products.linear import gradients, naive_product, out, product, weights
from tfuse.products.float8_linear import E4M3, E5M2, LARGEST, delayed, row_scales, rounded, values_of

# A case's shape is (…, inputs, outputs): x is all of it but the last. Products are in float8 where both are multiples of 16.
_SHAPES = [(2, 3, 16, 32), (1, 1, 1, 1), (0, 4, 16, 16), (2, 3, 8, 0), (1, 7, 3, 129), (1, 129, 144, 80), (3, 43, 256, 16),
           (2, 40, 96, 208)]
_fit = fitting(4, lambda rows, columns: (min(rows, 2), min(rows, 33), min(columns, 128) // 16 * 16 + 16, 112))
_KINDS = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}

# ---- the truth ----


def _wide(v):
    """What the op computes in: float32, where v is one."""
    narrow = v.astype(np.float32)
    return narrow if np.array_equal(narrow, v) else v


def _rounded(v, scale=None, to=E4M3):
    """By a scale, or row by row."""
    wide = _wide(v)
    if scale is None:
        scale = np.abs(wide).max(-1, keepdims=True, initial=0) * wide.dtype.type(1 / LARGEST[to])
        scale = np.where(scale > 0, scale, 1)
    inside = np.clip(wide / np.asarray(scale).astype(wide.dtype), -LARGEST[to], LARGEST[to])
    return inside.astype(_KINDS[to]).astype(np.float64) * np.asarray(scale, np.float64)


def _decoded(kernel, scale):
    """Of [outputs, inputs]."""
    values = kernel.astype(np.uint8).view(_KINDS[E4M3]).astype(np.float64)
    return (values * (scale[:, None] if scale.ndim else scale)).T


def _reference(x, kernel, scale, x_scale=None, bias=None, residual=None, activation="linear"):
    pre = plus(sums(np.matmul, _rounded(x, x_scale), _decoded(kernel, scale)), bias)
    return plus(activated(pre, activation), residual)


def _gradient(dy, x, kernel, scale, x_scale=None, bias=None, residual=None, activation="linear"):
    w = _decoded(kernel, scale)
    g = slopes(dy, plus(sums(np.matmul, _rounded(x, x_scale), w), bias), activation)
    dbias = [] if bias is None else [sums(lambda g: g.reshape(volume(g.shape[:-1]), g.shape[-1]).sum(0), g)]
    return [sums(np.matmul, g, w.T), *dbias, *[dy] * (residual is not None)]


def _naive(x, kernel, scale, x_scale=None, bias=None, residual=None, activation="linear"):
    scale = scale[:, None] if scale.shape.rank else scale
    w = tf.cast(tf.transpose(values_of(kernel, tf.float32) * tf.cast(scale, tf.float32)), x.dtype)
    y = plain_epilogue(naive_product(rounded(x, row_scales(x) if x_scale is None else x_scale, E4M3), w), bias, activation)
    return y if residual is None else y + residual


# ---- delayed scaling ----

_STATE = ["x_scale", "kernel_scale", "dy_scale", "x_history", "kernel_history", "dy_history"]


def _by_delayed(x, kernel, bias, *state, activation="linear"):
    return delayed(x, kernel, state[:3], state[3:], bias, activation)


def _delayed(x, kernel, bias, x_scale, kernel_scale, *_, activation="linear"):
    return activated(product(_rounded(x, x_scale), _rounded(kernel, kernel_scale), bias), activation)


def _delayed_gradient(dy, x, kernel, bias, *state, activation="linear"):
    left, right = _rounded(x, state[0]), _rounded(kernel, state[1])
    g = slopes(dy, product(left, right, bias), activation)
    return [*gradients(_rounded(g, state[2], E5M2), left, right), gradients(g, left, right, bias)[2]]


def _delayed_naive(x, kernel, bias, *state, activation="linear"):
    """As Keras's layers compute it."""
    @tf.custom_gradient
    def backward(v, scale):
        return tf.identity(v), lambda dv: (rounded(dv, scale, E5M2), None)

    y = naive_product(rounded(x, state[0], E4M3), rounded(kernel, state[1], E4M3))
    return plain_epilogue(backward(y, state[2]), bias, activation)


def _scale(size):
    """So that some numbers are beyond the largest. What takes its place is no gradient; tests/products has a test of it."""
    return Input(lambda s: (), lambda rng, own, _: rng.uniform(0.5, 1) * size, "float32", gradient=False)


def _history(length):
    return Input(lambda s: (length,), lambda rng, own, _: rng.uniform(0.5, 4, own), "float32", gradient=False)


def _delayed_case(name, histories, **more):
    state = dict(zip(_STATE, [_scale(1 / 64), _scale(1 / 200), _scale(1e-4), *histories]))
    return Case(name=name, run=_by_delayed, plain=_delayed_naive, reference=_delayed, gradient=_delayed_gradient, fit=_fit,
                special=False, outputs={"value": out}, summed=longest_axis, shapes=[s for s in _SHAPES if volume(s)],
                inputs={"x": lambda s: s[:-1], "kernel": Input(lambda s: s[-2:], weights), "bias": lambda s: s[-1:], **state},
                **more)


# ---- the cases ----

_CODES = [code for code in range(256) if code % 128 < 120]  # up to 240
_KERNEL = Input(lambda s: (s[-1], s[-2]), lambda rng, own, _: rng.choice(_CODES, own), "uint8", gradient=False)
_X, _BIAS, _RESIDUAL = {"x": lambda shape: shape[:-1]}, {"bias": lambda shape: shape[-1:]}, {"residual": out}


def _scales(shape):
    """So that results are as large as what they are made of."""
    def values(rng, own, case):
        return rng.uniform(0.5, 2, own) / 60 / np.sqrt(max(case[-2], 1))
    return {"scale": Input(shape, values, "float32", gradient=False)}


_X_SCALE = {"x_scale": Input(lambda s: (), lambda rng, own, _: rng.uniform(0.01, 0.02), "float32", gradient=False)}
_EACH, _ONE = _scales(lambda s: s[-1:]), _scales(lambda s: ())


def _case(name, inputs, how, more_options=({},), **more):
    inputs = {**_X, "kernel": _KERNEL, **inputs}
    names = list(inputs)
    def with_names(f):
        return lambda *values, **options: f(*values[:-len(names)], **dict(zip(names, values[-len(names):])), **options)
    return Case(name=name, run=by_name(tfuse.quantized_linear, names, float8=True, order="columns", **how), fit=_fit,
                plain=with_names(_naive), reference=with_names(_reference), gradient=with_names(_gradient), special=False,
                inputs=inputs, outputs={"value": out}, summed=longest_axis,
                **{"shapes": _SHAPES, "options": list(more_options), **more})


_refused = refusing(tfuse.quantized_linear, x=ones(2, 16), kernel=ones(16, 6, dtype=tf.uint8), scale=ones(6), float8=True,
                    quantize_rows=True)

CASES = [
    _case("float8_linear", {**_EACH, **_BIAS}, dict(quantize_rows=True),
          more_options=each("activation", ["linear", "silu", "relu", "gelu_tanh"]), rejects=[
        _refused("kernel must be .inputs, outputs., got shape .6.", kernel=ones(6, dtype=tf.uint8)),
        _refused("the last axis of x must be of size 16, as kernel has it, got shapes .2, 15. and .16, 6.", x=ones(2, 15)),
        _refused("the last axis of x must be of size 6, as kernel has it, got shapes .2, 16. and .16, 6.", order="columns"),
        _refused("x must be ...., inputs. with two dimensions or more, got shape .16.", x=ones(16)),
        _refused("kernel_scale must be a scalar or a vector with one value per output, got shape .5.", scale=ones(5)),
        _refused("x_scale must be a scalar, got shape .2.", x_scale=ones(2), quantize_rows=False),
        _refused("x_scale must be positive, got 0", x_scale=0, quantize_rows=False),
        _refused("bias must be a vector with one value per output, 6, got shape .5.", bias=ones(5)),
        _refused("residual must have the shape of x . kernel, .2, 6., got .2, 5.", residual=ones(2, 5)),
        _refused("kernel must be uint8 or float8_e4m3fn where float8 is true, got int8", kernel=ones(16, 6, dtype=tf.int8)),
        _refused("a kernel in float8 has no group, got 4", group=4),
        _refused("a kernel in float8 is of 8 bits, in the order 'rows' or 'columns', got bits=4", bits=4),
        _refused("x is rounded either by x_scale or with quantize_rows=True, got x_scale=None", quantize_rows=False),
        _refused("x_scale is for a kernel in float8, got one of uint8", float8=False, x_scale=0.5),
        _refused("activation must be one of linear, relu, .*got 'swoosh'", activation="swoosh"),
    ]),
    _case("float8_linear, one scale each", {**_ONE, **_X_SCALE, **_BIAS, **_RESIDUAL}, {},
          more_options=each("activation", ["linear", "silu"])),
    _case("float8_linear, scales of outputs", {**_EACH, **_X_SCALE}, {}),
    _delayed_case("float8_linear, delayed scaling", [_history(5), _history(1), _history(3)],
                  options=each("activation", ["linear", "relu"])),
]


# ---- what is timed ----


def _speed(name, inputs, how):
    """Beside linear's own times of this size, in bfloat16."""
    def elements(shape):  # in x's dtype, of 16 bits; the gradient reads the kernel again
        *rows, inputs, outputs = shape
        return 2 * [volume(rows) * (inputs + outputs) + inputs * outputs // 2]
    rival = lambda x, kernel, *_: tf.matmul(x, tf.transpose(values_of(kernel, x.dtype)))
    return Timed(_case(name, inputs, how), [(8192, 4096, 16384)], elements=elements, rival=rival,
                 flops=lambda shape, options: twice(2 * volume(shape)), cpu_sizes=[(128, 768, 768)],
                 pace=lambda x, kernel, *_: tf.matmul(x, tf.zeros([kernel.shape[1], kernel.shape[0]], x.dtype)),
                 bars={("bfloat16", (8192, 4096, 16384)): {"of_matmul": 150}})


TIMES = [
    _speed("float8_linear, rows, speed", _EACH, dict(quantize_rows=True)),
    _speed("float8_linear, one scale each, speed", {**_ONE, **_X_SCALE}, {}),
]
