"""Kernels of quantised layers in the order that GPUs read fastest, which are made once and stay beside a model.

A kernel is still the one that its tiles were made of where it lies where it lay: the tensors of then are kept, so TensorFlow puts
what their variable is assigned elsewhere (copy on write). Of a kernel that has moved the values are compared, on the device.
"""

import dataclasses
import threading
import typing
import weakref

import keras
import tensorflow as tf

from tfuse._core._address import address
from tfuse.generation.decoders import Quantized, Tiled, all_of, mapped
from tfuse.products.quantized_linear import pack_kernel

_kept = weakref.WeakKeyDictionary()  # by model: a _Kept for each kernel
_lock = threading.RLock()  # inside of it, a signal handler makes the same tiles once more


@dataclasses.dataclass
class _Kept:
    source: list  # the tensors that tiles were made of, or others of the same values
    places: list  # where these lie
    made: typing.Tuple[tf.Tensor, tf.Tensor]  # tiles and scale


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
    places = [list(map(address, source)) for source in sources]
    with _lock:
        kept = _kept.get(model, [])
        if len(kept) != len(kernels):
            kept = [None] * len(kernels)
        moved = [i for i, before in enumerate(kept) if before is None or before.places != places[i]]
        same = dict(zip(moved, _have_same_values([kept[i] for i in moved], [sources[i] for i in moved])))
        _kept[model] = [_Kept(sources[i], places[i], kept[i].made if same.get(i, True) else _packed(part))
                        for i, part in enumerate(kernels)]
        return [one.made for one in _kept[model]]


def _have_same_values(kept, sources):
    """Of each kernel, whether there is one kept whose values the tensors have."""
    alike = [before is not None and _are_like(before.source, source) for before, source in zip(kept, sources)]
    pairs = [(before.source, source) for before, source, is_like in zip(kept, sources, alike) if is_like]
    same = iter(_same(*map(list, zip(*pairs))).numpy() if pairs else [])
    return [is_like and bool(next(same)) for is_like in alike]


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
