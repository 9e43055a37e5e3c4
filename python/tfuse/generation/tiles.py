"""Kernels of quantised layers in the order that GPUs read fastest, which are made once and stay beside a model.

Whether a kernel is still the one that its tiles were made of, all of its values say: they are compared, on the device, whenever
a model's weights are read.
"""

import threading
import weakref

import keras
import tensorflow as tf

from tfuse.generation.decoders import Quantized, Tiled, all_of, mapped
from tfuse.products.quantized_linear import pack_kernel

_kept = weakref.WeakKeyDictionary()  # by model: what each kernel's tiles were made of, and (tiles, scale)
_lock = threading.Lock()


def tiled(part, kernel, scale):
    """A quantised product in tiles."""
    return Tiled(kernel, scale, part.input_scale, part.bias, part.bits, part.group or 0, part.quantize_rows)


def decoder(model, parts):
    """A model's decoder with its quantised kernels in tiles."""
    kernels = all_of(parts, Quantized)
    found = {id(part): tiled(part, *made) for part, made in zip(kernels, of(model, kernels))}
    return mapped(parts, Quantized, lambda part: found[id(part)])


def of(model, kernels):
    """(tiles, scale) of each of a model's quantised kernels."""
    if not kernels:
        return []
    sources = [[t for t in (part.kernel, part.scale, part.zero) if t is not None] for part in kernels]
    with _lock:
        kept = _kept.get(model, [])
        alike = len(kept) == len(sources) and all(map(_are_like, (source for source, _ in kept), sources))
        same = _same([source for source, _ in kept], sources).numpy() if alike else [False] * len(sources)
        _kept[model] = [(source, before[1] if unchanged else _packed(part))
                        for part, source, unchanged, before in zip(kernels, sources, same, kept if alike else sources)]
        return [made for _, made in _kept[model]]


def _are_like(some, others):
    return [(t.dtype, t.shape, t.device) for t in some] == [(t.dtype, t.shape, t.device) for t in others]


@tf.function(autograph=False)
def _same(some, others):
    """Of each list of tensors, whether all values are those of the other one."""
    return tf.stack([tf.reduce_all([tf.reduce_all(tf.equal(a, b)) for a, b in zip(*pair)]) for pair in zip(some, others)])


def _packed(part):
    """Scales of many groups are read as often as codes, so they are kept in x's dtype."""
    kernel, columns = part.kernel, part.order == "columns"
    if part.halves:
        with tf.device("CPU"):
            inputs = kernel.shape[columns] * 2
            codes = keras.quantizers.unpack_int4(kernel, inputs, axis=int(columns))
            kernel = keras.quantizers.pack_int4(codes, axis=int(not columns))[0]
    zero = None if part.zero is None else tf.cast(part.zero, kernel.dtype)
    tiles, scale = pack_kernel(kernel, part.scale, zero, bits=part.bits, group=part.group, order=part.order, divide=part.divide)
    return tiles, scale if scale.shape[0] == 1 else tf.cast(scale, part.dtype)
