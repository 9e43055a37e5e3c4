"""Kernels of 8 and 4 bits: Keras's own formats, and the order that GPUs read."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse import cases
from tfuse.cases.products import quantized_linear

_RNG = np.random.default_rng(0)
_GPUS = tf.config.list_physical_devices("GPU")
_WGMMA = bool(_GPUS) and tf.config.experimental.get_device_details(_GPUS[0])["compute_capability"] == (9, 0)


def _float(*shape):
    return tf.constant(_RNG.normal(size=shape), tf.float32)


def _dense(mode, config, inputs, outputs):
    layer = keras.layers.Dense(outputs, bias_initializer="normal")
    layer.build([None, inputs])
    layer.quantize(mode, config=config)
    return layer


def _int8(inputs, outputs):
    layer = _dense("int8", None, inputs, outputs)
    return layer, (layer._kernel, layer.kernel_scale), dict(divide=True), dict(quantize_rows=True)


def _int4(inputs, outputs):
    layer = _dense("int4", keras.quantizers.Int4QuantizationConfig(block_size=-1), inputs, outputs)
    return layer, (layer._kernel, layer.kernel_scale), dict(bits=4, divide=True), {}


def _int4_blocks(inputs, outputs):
    layer = _dense("int4", keras.quantizers.Int4QuantizationConfig(block_size=32), inputs, outputs)
    return layer, (layer._kernel, layer.kernel_scale, layer.kernel_zero), dict(bits=4, group=32), {}


FORMATS = [_int8, _int4, _int4_blocks]


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("sizes", [(64, 128), (48, 67), (33, 10)])
def test_keras_formats(make, sizes):
    """The weights of a quantised Dense as they lie, and packed: what Keras computes of them."""
    layer, weights, how, rows = make(*sizes)
    x = _float(5, sizes[0])
    weights = [tf.convert_to_tensor(w) for w in weights]
    want = layer(x)
    got = tfuse.quantized_linear(x, *weights, bias=layer.bias.value, **how, **rows)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    if sizes[0] % 16 == 0:
        tiles, scales = tfuse.pack_kernel(*weights, **how)
        kept = {name: how[name] for name in ("bits", "group") if name in how}
        got = tfuse.quantized_linear(x, tiles, scales, bias=layer.bias.value, order="tiles", **kept, **rows)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def _gptq(bits, inputs, outputs, group):
    """Codes of the formats of gptq and awq, and what they stand for."""
    groups = -(-inputs // group)
    codes = _RNG.integers(0, 2**bits, (outputs, inputs)).astype(np.uint8)
    scale, zero = _RNG.uniform(0.1, 0.2, (outputs, groups)), _RNG.integers(0, 2**bits, (outputs, groups)).astype(np.uint8)
    of = np.arange(inputs) // group
    w = (codes - zero.astype(float)[:, of]) * scale[:, of]
    packed = keras.quantizers.pack_int4(tf.constant(codes), axis=0, dtype="uint8")[0] if bits == 4 else tf.constant(codes)
    return w.T, [packed, tf.constant(scale, tf.float32), tf.constant(zero)], dict(bits=bits, group=group, order="columns")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sizes", [(64, 66), (160, 65)])
def test_unsigned_columns(bits, sizes):
    w, weights, how = _gptq(bits, *sizes, 64)
    x = _float(3, sizes[0])
    want = x.numpy().astype(float) @ w
    np.testing.assert_allclose(tfuse.quantized_linear(x, *weights, **how), want, rtol=1e-4, atol=1e-3)
    tiles, scales = tfuse.pack_kernel(*weights, **how)
    got = tfuse.quantized_linear(x, tiles, scales, bits=bits, group=64, order="tiles")
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


# Rows, inputs, outputs, rows of a group: on an H200 one warpgroup has one unit or two, or both share one; inputs that are no
# whole stage, and those that a cluster shares; a last tile of columns and rows that is none.
_MANY = [(40, 64, 200, 64), (64, 4096, 136, 128), (50, 1104, 72, 32), (300, 208, 8200, 0), (600, 320, 8320, 32), (129, 80, 9600, 0)]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows, inputs, outputs, group", _MANY)
def test_many_rows(rows, inputs, outputs, group, bits):
    """Products of bfloat16 with tiles, for more rows than the kernel for few has."""
    groups, half = -(-inputs // (group or inputs)), 2 ** (bits - 1)
    codes = _RNG.integers(-half, half, (inputs, outputs)).astype(np.int8)
    scale = _RNG.uniform(0.5, 1, (groups, outputs)).astype(np.float32)
    zero = _RNG.integers(-2, 3, (groups, outputs)).astype(np.int8)
    of = np.arange(inputs) // (group or inputs)
    w = (codes - zero.astype(float)[of]) * scale[of]
    kernel = tf.constant(codes) if bits == 8 else keras.quantizers.pack_int4(tf.constant(codes), axis=-1)[0]
    tiles, table = tfuse.pack_kernel(kernel, scale, tf.constant(zero), bits=bits, group=group or None)
    x, bias = tf.cast(_float(rows, inputs), tf.bfloat16), tf.cast(_float(outputs), tf.bfloat16)
    residual = tf.cast(_float(rows, outputs), tf.bfloat16)
    wide = lambda t: tf.cast(t, tf.float64).numpy()
    run = lambda **more: wide(tfuse.quantized_linear(x, tiles, table, bits=bits, group=group or None, order="tiles", **more))
    want = wide(x) @ w
    size = np.sqrt(np.mean(want**2))
    assert np.sqrt(np.mean((run() - want) ** 2)) < 0.004 * size  # w and y are rounded to 8 bits
    got, want = run(bias=bias, residual=residual, activation="relu"), np.maximum(want + wide(bias), 0) + wide(residual)
    assert np.abs(got - want).max() < 0.03 * size + 0.01 * np.abs(want).max()
    if _WGMMA:
        assert tfuse.explain(last=1)[-1]["kernel"] == "many rows, tiles"


@pytest.mark.parametrize("rounded", [False, True], ids=["", "rounded"])
@pytest.mark.parametrize("order, dtype, bits", [
    ("rows", "int8", 8), ("rows", "int8", 4), ("rows", "uint8", 8), ("columns", "int8", 8), ("columns", "uint8", 8),
    ("columns", "uint8", 4), ("tiles", "uint8", 8), ("tiles", "uint8", 4)])
def test_wide_kernels_on_a_cpu(order, dtype, bits, rounded):
    """Enough columns for each way to read them. A row has the same bits whatever rows are beside it."""
    rng, inputs, outputs = np.random.default_rng(1), 96 if order == "tiles" else 97, 2101
    across = -(-outputs * bits // 8)
    shape = {"rows": (inputs, across), "columns": (across, inputs), "tiles": (-(-outputs // 64), inputs // 16, 128 * bits)}[order]
    x, kernel = rng.normal(size=(300, inputs)).astype("float32"), rng.integers(0, 256, shape).astype(dtype)
    scale = rng.uniform(0.5, 2, (1, 2, outputs) if order == "tiles" else outputs).astype("float32")
    if order == "tiles":
        scale[:, 1] = rng.integers(-3, 12, outputs)
    how = {"bits": bits, "order": order, "quantize_rows": rounded}
    with tf.device("CPU:0"):
        got = tfuse.quantized_linear(x, kernel, scale, **how)
        want = quantized_linear._reference(x, kernel, scale, **how)
        assert cases.error(got, want) <= cases.bound(want, "float32", inputs)
        for rows in (1, 8, 9, 65):
            np.testing.assert_array_equal(tfuse.quantized_linear(x[:rows], kernel, scale, **how), got[:rows])


def test_sums_beyond_int32():
    """Of so many inputs, products of int8 are not summed in whole numbers."""
    inputs = 140000
    kernel, x = tf.fill([inputs, 4], tf.constant(127, tf.int8)), tf.ones([3, inputs])
    y = tfuse.quantized_linear(x, kernel, tf.ones([4]), quantize_rows=True)
    np.testing.assert_allclose(y, np.full((3, 4), 127.0 * inputs), rtol=1e-4)


def test_pack_kernel_rejects():
    kernel, scale = tf.zeros([16, 6], tf.int8), tf.ones([6])
    with pytest.raises(ValueError, match="inputs must be a multiple of 16, got shape .15, 6."):
        tfuse.pack_kernel(kernel[1:], scale)
    with pytest.raises(ValueError, match="order must be 'rows' or 'columns', got 'tiles'"):
        tfuse.pack_kernel(kernel, scale, order="tiles")
    with pytest.raises(tf.errors.InvalidArgumentError, match="kernel of 8 bits must have 7 bytes for the 7 outputs of scale"):
        tfuse.pack_kernel(kernel, tf.ones([7]))
