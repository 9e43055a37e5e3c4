"""What tfuse.enable() replaces of Keras's ops on arrays, as rows of a table: sums, means and extremes, running sums,
permutations, concatenations, sorting, sums of segments. On a GPU, and where a tensor is large enough that a kernel's speed counts.

These are called for the smallest things, so what is left to Keras is left without a word in tfuse.explain().
"""

import inspect
import math

import numpy as np
import tensorflow as tf

from tfuse._core import _library, _op
from tfuse._keras._replaced import Row, backend_module, not_taken, or_own
from tfuse.layout.concat import concat
from tfuse.layout.transpose import transpose
from tfuse.reductions.reduce import reduce_max, reduce_mean, reduce_min, reduce_sum
from tfuse.reductions.segment_sum import segment_sum, unsorted_segment_sum
from tfuse.scans.scan import cumsum
from tfuse.sorting.sort import sort
from tfuse.sorting.top_k import top_k

LEAST = 1 << 18  # elements, without the sizes that are not known; by reasoning: of so few, a launch takes as long as the work


def _worth(x):
    if _library.without_gpu() or not_taken(x) or tf.TensorShape(x.shape).rank is None:
        return False
    return math.prod(size or 1 for size in x.shape) >= LEAST


def _where_ahead(serve, alone=False):
    """Calls `serve`, which has the arguments of Keras's function, or leaves it to that, as where it returns None.

    XLA makes sums, extremes and permutations part of the kernel that makes their input, which is worth more than a fast kernel
    of its own: inside jit_compile=True only what stands alone there is served.
    """
    known = inspect.signature(serve)

    def where_ahead(x, *others, **options):
        if not _worth(x) or not alone and _op.inside_xla():
            return None
        try:
            known.bind(x, *others, **options)
        except TypeError:  # a later Keras may have more arguments
            return None
        return serve(x, *others, **options)

    return or_own(where_ahead)


def _reduction(reduce):
    """Over the last axes stock TensorFlow adds up float32 at the speed of memory, on an H200 3 to 5% ahead: that stays."""
    def instead(x, axis=None, keepdims=False):
        rank = len(x.shape)
        axes = set(range(rank)) if axis is None else {a % rank for a in np.ravel(axis)}
        last = axes == set(range(rank - len(axes), rank))
        return None if last and tf.as_dtype(x.dtype) == tf.float32 else reduce(x, axis, keepdims)

    return instead


def _extreme(reduce):
    return lambda x, axis=None, keepdims=False, initial=None: reduce(x, axis, keepdims) if initial is None else None


def _concatenate(own, xs, axis=0):
    """Of tensors of one dtype. Where a size is not known, as that of a batch, the result counts as large: of a small one both
    take as long as a launch. XLA makes concatenations part of the kernels around them."""
    several = isinstance(xs, (list, tuple)) and len(xs) > 1 and all(isinstance(x, tf.Tensor) for x in xs)
    if not several or not isinstance(axis, int) or _library.without_gpu() or not_taken(*xs) or _op.inside_xla():
        return own(xs, axis)
    alike = all(x.dtype == xs[0].dtype and x.shape.rank == xs[0].shape.rank for x in xs)
    elements = sum(LEAST if None in x.shape.as_list() else math.prod(x.shape) for x in xs)
    return concat(xs, axis) if alike and elements >= LEAST else own(xs, axis)


def _segment_sum(data, segment_ids, num_segments=None, sorted=False):
    if sorted:
        return segment_sum(data, segment_ids) if num_segments is None and not _op.inside_xla() else None
    return None if num_segments is None else unsorted_segment_sum(data, segment_ids, num_segments)


_NUMPY, _MATH = backend_module("numpy"), backend_module("math")
TABLE = [
    Row(_NUMPY, "sum", _where_ahead(_reduction(reduce_sum))),
    Row(_NUMPY, "mean", _where_ahead(_reduction(reduce_mean))),
    Row(_NUMPY, "max", _where_ahead(_extreme(reduce_max))),
    Row(_NUMPY, "min", _where_ahead(_extreme(reduce_min))),
    Row(_NUMPY, "transpose", _where_ahead(lambda x, axes=None: transpose(x, axes))),
    Row(_NUMPY, "concatenate", _concatenate),
    Row(_NUMPY, "cumsum", _where_ahead(lambda x, axis=None, dtype=None: (
        None if axis is None or dtype is not None else cumsum(x, axis)), alone=True)),
    Row(_NUMPY, "sort", _where_ahead(lambda x, axis=-1: None if axis is None else sort(x, axis), alone=True)),
    Row(_MATH, "top_k", _where_ahead(lambda x, k, sorted=True: top_k(x, k, sorted), alone=True)),
    Row(_MATH, "segment_sum", _where_ahead(_segment_sum, alone=True)),
]
