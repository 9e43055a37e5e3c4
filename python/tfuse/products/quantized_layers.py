"""Keras's quantised Dense and EinsumDense, and tables of embeddings as heads, by quantized_linear.

Weights are read as Keras keeps them, and in the dtype that they are kept in: where a layer computes in bfloat16, Keras rounds
scales to it, and numbers of groups, which are then wrong beyond 256. Here a row's group is what was meant, i // block.
"""

import math

import keras
import tensorflow as tf

from tfuse._core import _made
from tfuse._core._explain import reason
from tfuse._core._layer import as_kept, not_computed_in
from tfuse._core._op import MOST_AXES, real
from tfuse.products.static_quantizer import StaticQuantizer, whole_numbers
from tfuse.elementwise.scale_bias_act import known_activation, scale_bias_act
from tfuse.products.einsum_dense import as_product, matrix_axes, why_not_einsum_dense
from tfuse.products.linear import why_not_dense
from tfuse.products.quantized_linear import EPSILON, quantized_linear

MODES = "int8", "int4", "gptq", "awq"
# From Keras 3.16 on, a strategy for each mode has what layers had before: the arithmetic, and the numbers of a configuration.
BY_STRATEGY = hasattr(keras.layers.Layer, "_quantization_geometry")


def value_of(variable):
    """As it is kept, not cast to what a layer computes in."""
    with as_kept():
        return tf.convert_to_tensor(variable.value)


# ---- what is kept ----


def _shape(layer):
    """That of the kernel, before it was packed."""
    if BY_STRATEGY:
        return tuple(layer.kernel_shape)
    if not isinstance(layer, keras.layers.EinsumDense):
        return layer.input_spec.axes[-1], layer.units
    return tuple(layer._kernel.shape if layer.quantization_mode == "int8" else layer.original_kernel_shape)


def _summed(layer):
    return matrix_axes(layer.equation)[0] if isinstance(layer, keras.layers.EinsumDense) else 1


def _blocks(layer):
    """Rows of an int4 kernel that share a scale, or None: all do."""
    if layer.quantization_mode != "int4":
        return None
    block = _resolved(layer, "block_size") if BY_STRATEGY else getattr(layer, "_int4_block_size", None)
    return None if block in (None, -1) else block


def _resolved(layer, name):
    """What a layer's configuration, or its dtype policy, says of its mode."""
    strategy = keras.src.quantizers.strategy_registry.get_strategy(layer.quantization_mode)
    return getattr(strategy, "resolve_" + name)(layer, layer.quantization_config)


@reason
def _why_not_rounded(quantizer, own_axis=False):
    """Why tfuse does not round inputs as a quantizer does. None: they are not rounded. own_axis: the quantizer's axis counts."""
    if quantizer is not None:
        if type(quantizer) is StaticQuantizer:
            return
        known = type(quantizer) is keras.quantizers.AbsMaxQuantizer and tuple(quantizer.value_range) == (-127, 127)
        known = known and quantizer.epsilon == EPSILON
        yield not known and "inputs are rounded by a %s of its own" % type(quantizer).__name__
        odd = own_axis and quantizer.axis not in (None, -1, (-1,))
        yield odd and "inputs are rounded along the axes %s" % (quantizer.axis,)


@reason
def why_not_kernel(layer, leading=False):
    """Why quantized_linear does not take a layer's kernel. leading: the kernel is [heads, inputs, size of a head]."""
    try:
        yield _odd_kernel(layer, leading)
    except AttributeError as error:
        yield "tfuse does not know how this Keras keeps its kernels: %s" % error


@reason
def _odd_kernel(layer, leading):
    mode = layer.quantization_mode
    yield mode not in MODES and "tfuse has no %s products" % mode
    shape = _shape(layer)
    if leading:
        yield mode != "int8" and "of a kernel [heads, inputs, size], %s mixes the axes" % mode
        shape = shape[1], shape[0], shape[2]
    rows = math.prod(shape[:1 if leading else _summed(layer)])
    columns = math.prod(shape) // max(rows, 1)
    other = "tfuse does not know how this Keras keeps %s kernels of shape %s" % (mode, shape)
    if mode in ("gptq", "awq"):
        calibrated = not layer.calibration_pending if BY_STRATEGY else getattr(layer, "is_%s_calibrated" % mode)
        yield not calibrated and "it is not calibrated yet, and its kernel is float"
        packed = -(-columns // 2) if _bits(layer) == 4 else columns
        yield tuple(layer.quantized_kernel.shape) != ((rows, packed) if BY_STRATEGY else (packed, rows)) and other
        return
    yield tuple(layer._kernel.shape) != (_shape(layer) if mode == "int8" else (rows, -(-columns // 2))) and other
    yield math.prod(layer.kernel_scale.shape) != columns * -(-rows // (_blocks(layer) or max(rows, 1))) and other
    if mode == "int8" or _blocks(layer) is None:
        yield _why_not_rounded(layer.inputs_quantizer)
    yield BY_STRATEGY and mode == "int4" and layer.inputs_quantizer is not None and "inputs are rounded beside a kernel of 4 bits"


def kernel_of(layer, leading=False):
    """A layer's kernel, by the names that quantized_linear's arguments have."""
    mode, scale = layer.quantization_mode, value_of(layer.kernel_scale)
    _read_groups(layer)
    if mode in ("gptq", "awq"):
        return _calibrated(layer, mode, scale)
    kernel, block = value_of(layer._kernel), _blocks(layer)
    if leading:
        kernel, rows = tf.transpose(kernel, [1, 0, 2]), kernel.shape[1]
    else:
        rows = math.prod(_shape(layer)[:_summed(layer)])
    if mode == "int4" and block is not None:
        return dict(kernel=kernel, scale=scale, zero=value_of(layer.kernel_zero), bits=4, group=block)
    return dict(kernel=tf.reshape(kernel, [rows, -1]), scale=tf.reshape(scale, [-1]), bits=8 if mode == "int8" else 4,
                divide=True, quantize_rows=layer.inputs_quantizer is not None and not is_static(layer))


def _read_groups(layer):
    """Although nobody needs them: of an exported model, the functions have the variables that they read."""
    if getattr(layer, "g_idx", None) is not None:
        value_of(layer.g_idx)


def is_static(layer):
    """Whether inputs are rounded by a scale that stays, which tfuse.calibrate has found. Then kernel_of() is for whole numbers:
    that scale is not in it."""
    rounds = layer.quantization_mode == "int8" or layer.quantization_mode == "int4" and _blocks(layer) is None
    return rounds and type(layer.inputs_quantizer) is StaticQuantizer


def _rounded(quantizer, x):
    """Whole numbers, which x's dtype has, with the gradient of x * scale."""
    rounded = lambda x: tf.cast(whole_numbers(x, quantizer.scale), x.dtype)
    return tf.custom_gradient(lambda x: (rounded(x), lambda dy: dy * tf.cast(quantizer.scale, dy.dtype)))(x)


def _calibrated(layer, mode, scale):
    """A gptq or awq kernel. Up to Keras 3.15 it is [outputs, inputs], from then on [inputs, outputs]."""
    found = dict(kernel=value_of(layer.quantized_kernel), scale=scale, zero=value_of(layer.kernel_zero),
                 order="rows" if BY_STRATEGY else "columns", bits=4 if _bits(layer) == 4 else 8, group=_group_size(layer))
    if mode == "awq":
        found["input_scale"] = value_of(layer.awq_scales)
    elif scale.shape[0 if BY_STRATEGY else 1] > 1 and getattr(layer.quantization_config, "activation_order", True):
        found["groups"] = value_of(layer.g_idx)
    return found


def _group_size(layer):
    """Rows that share a scale, or None: all do."""
    if BY_STRATEGY:
        size = _resolved(layer, "group_size")
    else:
        core = keras.src.quantizers.gptq_core if layer.quantization_mode == "gptq" else keras.src.quantizers.awq_core
        size = core.get_group_size_for_layer(layer, None)
    return None if size in (None, -1) else size


def _bits(layer):
    """Of a gptq or awq kernel; those of 3 and 8 bits lie in bytes, as those of 2 bits do up to Keras 3.15."""
    if BY_STRATEGY:
        return _resolved(layer, "weight_bits")
    return keras.src.quantizers.gptq_core.get_weight_bits_for_layer(layer, None) if layer.quantization_mode == "gptq" else 4


# ---- Dense and EinsumDense ----


@reason
def why_not(layer, x):
    """Why tfuse does not serve a quantised layer, for this input."""
    yield (why_not_einsum_dense if isinstance(layer, keras.layers.EinsumDense) else why_not_dense)(layer, x)
    yield why_not_kernel(layer)


def serve(layer, x):
    """What a quantised Dense or EinsumDense computes."""
    # What gptq and awq have quantised is the sum of the kernel and its LoRA weights.
    added = _of_lora(layer, x) if layer.lora_enabled and layer.quantization_mode in ("int8", "int4") else None
    if isinstance(layer, keras.layers.EinsumDense):
        x, bias, shape = as_product(layer, x, _shape(layer))
    else:
        x, bias, shape = x, None if layer.bias is None else keras.ops.convert_to_tensor(layer.bias, x.dtype), None
    (name, after), kernel = known_activation(layer.activation), kernel_of(layer)
    if is_static(layer):
        scale = tf.cast(kernel["scale"], real(x.dtype))  # 16 bits have neither the digits of the product nor its size
        x, kernel["scale"] = _rounded(layer.inputs_quantizer, x), scale * layer.inputs_quantizer.scale
    shaped = lambda y: y if shape is None else tf.reshape(y, shape)
    if added is None:
        again = lambda name, _=None: shaped(quantized_linear(x, bias=bias, activation=name, **kernel))
        y = again(name)
        if name == "linear":
            _made.keep(y, _made.Unfinished(x, "QuantizedLinear", "a quantised product", False, again))
    else:
        y = quantized_linear(x, **kernel) + tf.reshape(added, tf.concat([tf.shape(x)[:-1], [-1]], 0))
        y = shaped(scale_bias_act(y, bias=bias, activation=name))
    return y if after is None else after(y)


def _of_lora(layer, x):
    """What LoRA weights add to the product, as Keras computes it."""
    if isinstance(layer, keras.layers.EinsumDense):
        inner = keras.ops.einsum(layer.equation, x, layer.lora_kernel_a)
    else:
        inner = keras.ops.matmul(x, layer.lora_kernel_a)
    return keras.ops.cast(_lora_factor(layer) * keras.ops.matmul(inner, layer.lora_kernel_b), layer.compute_dtype)


def _lora_factor(layer):
    """Before Keras 3.10, there is no alpha."""
    return getattr(layer, "lora_alpha", layer.lora_rank) / layer.lora_rank


# ---- heads that are tables of embeddings ----


@reason
def why_not_head(layer):
    yield layer.quantization_mode not in ("int8", "int4") and "tfuse has no %s heads" % layer.quantization_mode
    quantizer = getattr(layer, "inputs_quantizer", None)
    yield type(quantizer) is StaticQuantizer and "inputs of a head are rounded by a scale that stays"
    yield _why_not_rounded(quantizer, own_axis=True)


def head_of(layer):
    """What a quantised ReversibleEmbedding multiplies with, by the names that quantized_linear's arguments have; and `halves`,
    where two inputs share a byte, which that does not take."""
    tied, block = getattr(layer, "tie_weights", True), None
    name = "embeddings" if tied else "reverse_embeddings"
    found = dict(kernel=value_of(layer._embeddings if tied else layer.reverse_embeddings),
                 scale=value_of(getattr(layer, name + "_scale")), order="columns" if tied else "rows",
                 quantize_rows=layer.inputs_quantizer is not None)
    if layer.quantization_mode == "int4":
        block = _blocks(layer)
        found.update(bits=4, group=block, halves=True)
    if block is None:
        return dict(found, divide=True)
    return dict(found, zero=value_of(getattr(layer, name + "_zero")))


@reason
def why_not_reversed(layer, inputs, reverse=False):
    """Why the product of a quantised ReversibleEmbedding is left to Keras; looking up rows is no product."""
    if reverse:
        yield not_computed_in(layer, inputs)
        yield not (inputs.shape.rank and 2 <= inputs.shape.rank <= MOST_AXES) and "tfuse takes 2 to %d dimensions" % MOST_AXES
        yield layer.quantization_mode == "int4" and "an int4 table has two numbers of one row in each byte"
        other = BY_STRATEGY and layer.reverse_dtype not in (None, layer.compute_dtype)
        yield other and "logits are computed in %s" % layer.reverse_dtype
        yield BY_STRATEGY and layer.tie_weights and layer.lora_enabled and "LoRA weights are a part of the logits"
        yield why_not_head(layer)


def serve_reversed(layer, inputs):
    """The logits of a quantised ReversibleEmbedding."""
    logits, cap = quantized_linear(inputs, **head_of(layer)), layer.logit_soft_cap
    return logits if cap is None else keras.ops.multiply(keras.ops.tanh(keras.ops.divide(logits, cap)), cap)


def looked_up(layer, inputs):
    """Rows of an int8 or int4 embedding: those that are asked for become numbers, not the table."""
    ids = inputs if keras.backend.standardize_dtype(inputs.dtype) in ("int32", "int64") else keras.ops.cast(inputs, "int32")
    return _dequantized(layer, lambda weight: _rows(weight, ids))


def whole_table(layer):
    """All rows of an int8 or int4 embedding."""
    return _dequantized(layer, value_of)


def _rows(weight, ids):
    """TensorFlow gathers words of 32 bits on a GPU, and bytes on the CPU alone, to which it would copy all of them."""
    if keras.backend.standardize_dtype(weight.dtype) not in ("int8", "uint8") or weight.shape[-1] % 4:
        return keras.ops.take(weight, ids, axis=0)
    table, (rows, width) = value_of(weight), weight.shape
    words = tf.gather(tf.bitcast(tf.reshape(table, [rows, width // 4, 4]), tf.int32), ids)
    return tf.reshape(tf.bitcast(words, table.dtype), tf.concat([tf.shape(ids), [width]], 0))


def _dequantized(layer, take):
    """Rows as Keras computes them, of the ones that take() gives of a weight."""
    block, rows, scale = None, tf.cast(take(layer._embeddings), layer.compute_dtype), take(layer.embeddings_scale)
    if layer.quantization_mode == "int4":
        _read_groups(layer)
        block, rows = _blocks(layer), _pairs(rows, layer.output_dim)
    if block is None:
        rows = keras.ops.divide(rows, keras.ops.expand_dims(scale, -1))
    else:
        groups = keras.ops.arange(layer.output_dim, dtype="int32") // block
        of = lambda table: keras.ops.take(table, groups, axis=-1)
        zero = of(keras.ops.cast(take(layer.embeddings_zero), scale.dtype))
        rows = keras.ops.multiply(keras.ops.subtract(rows, zero), of(scale))  # in a mixed policy, of float32
    if layer.lora_enabled:
        added = keras.ops.matmul(take(layer.lora_embeddings_a), layer.lora_embeddings_b)
        rows = keras.ops.cast(keras.ops.add(rows, _lora_factor(layer) * added), layer.compute_dtype)
    return rows


def _pairs(packed, outputs):
    """The two signed numbers of 4 bits in each byte, the low one first. All floats have the digits, and GPUs the ops."""
    high = tf.floor(packed / 16)
    low = packed - 16 * high  # without its sign
    both = tf.stack([low - 16 * tf.floor(low / 8), high], -1)
    return tf.reshape(both, tf.concat([tf.shape(packed)[:-1], [2 * packed.shape[-1]]], 0))[..., :outputs]


def why_not_looked_up(layer):
    width = -(-layer.output_dim // 2) if layer.quantization_mode == "int4" else layer.output_dim
    known = getattr(layer, "_embeddings", None) is not None and tuple(layer._embeddings.shape) == (layer.input_dim, width)
    return "" if known else "tfuse does not know how this Keras keeps %s tables" % layer.quantization_mode
