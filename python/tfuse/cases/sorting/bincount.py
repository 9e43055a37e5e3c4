import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, of_terms

_SIZE = 200  # bins; there are ids beyond them
_LENGTHS = {"minlength": _SIZE, "maxlength": _SIZE}
_draw = lambda rng, own, shape: rng.integers(0, _SIZE + 20, own)
_ids = Input(lambda shape: shape, _draw, "int32", False)
# TensorFlow hands int32 tensors on from the forward function to the backward one in the host's memory.
_wide_ids = Input(lambda shape: shape, _draw, "int64", False)


def _sums(ids, weights, axis=None):
    """The sum of the weights of each bin, and of their squares."""
    ids, weights = (x.reshape((-1, x.shape[-1]) if axis == -1 else (1, -1)) for x in (ids, weights))
    rows = [(np.bincount(i[i < _SIZE], w[i < _SIZE], _SIZE), np.bincount(i[i < _SIZE], w[i < _SIZE]**2, _SIZE))
            for i, w in zip(ids, weights)]
    sums, squares = (np.reshape(x, (-1, _SIZE)) for x in zip(*rows)) if rows else (np.zeros((0, _SIZE)),) * 2
    return (sums, squares) if axis == -1 else (sums.sum(0), squares.sum(0))


def _counts(ids, axis=None, binary_output=False):
    counts = _sums(ids, np.ones(ids.shape), axis)[0]
    counts = np.minimum(counts, 1) if binary_output else counts
    return counts.reshape(*ids.shape[:-1], _SIZE) if axis == -1 else counts


def _weighted(ids, weights, axis=None):
    sums, squares = _sums(ids, weights, axis)
    shape = (*ids.shape[:-1], _SIZE) if axis == -1 else (_SIZE,)
    return of_terms(sums.reshape(shape), squares.reshape(shape))


def _weights_gradient(dy, ids, weights, axis=None):
    taken = np.minimum(ids, _SIZE - 1)
    d = np.take_along_axis(dy, taken, -1) if axis == -1 else dy[taken]
    return [np.where(ids < _SIZE, d, 0)]


def _plain(ids, axis=None, binary_output=False):
    """The op behind tf.math.bincount, which has to be told the size for XLA. Its rows are those of a matrix."""
    rows = tf.reshape(ids, [-1] if axis is None else [-1, tf.shape(ids)[-1]])
    counts = tf.raw_ops.DenseBincount(input=rows, size=_SIZE, weights=tf.constant([], tf.int32), binary_output=binary_output)
    return counts if axis is None else tf.reshape(counts, tf.concat([tf.shape(ids)[:-1], [_SIZE]], 0))


def _plain_weighted(ids, weights, axis=None):
    """In stock TensorFlow, a sum of segments; bincount has no gradient."""
    rows = tf.reshape(tf.range(tf.size(ids)) // tf.shape(ids)[-1], tf.shape(ids)) if axis == -1 else 0
    number = tf.size(ids) // tf.shape(ids)[-1] if axis == -1 else 1
    segments = tf.where(ids < _SIZE, ids + _SIZE * rows, -1)
    sums = tf.math.unsorted_segment_sum(weights, segments, number * _SIZE)
    return tf.reshape(sums, tf.concat([tf.shape(ids)[:-1], [_SIZE]], 0)) if axis == -1 else sums


_rows_or_all = lambda shape: (_SIZE,)
CASES = [
    Case(name="bincount", run=lambda ids, **o: tfuse.bincount(ids, **_LENGTHS, **o), plain=_plain, reference=_counts,
         gradient=lambda dy, ids, **o: [], inputs={"arr": _ids}, outputs={"counts": Input(_rows_or_all, dtype="int32")},
         options=[{}, {"binary_output": True}], special=False, passes=(1, 0), sizes=[(1 << 27,)], timed=[{}],
         cpu_sizes=[(4096, 4096)], rejects=[
             ("bincount: axis must be None, 0 or -1, got 1", lambda: tfuse.bincount(tf.constant([[1]]), axis=1)),
             ("bincount: binary_output must be False where weights are given",
              lambda: tfuse.bincount([1], [1.0], binary_output=True)),
             ("bincount: weights must have the shape of arr", lambda: tfuse.bincount([1, 2], tf.ones([3])))]),
    Case(name="bincount, rows", run=lambda ids: tfuse.bincount(ids, axis=-1, **_LENGTHS), plain=lambda ids: _plain(ids, -1),
         reference=lambda ids: _counts(ids, -1), gradient=lambda dy, ids: [], inputs={"arr": _ids}, special=False, sizes=[],
         outputs={"counts": Input(lambda shape: (*shape[:-1], _SIZE), dtype="int32")}),
    Case(name="bincount, weights", run=lambda ids, w: tfuse.bincount(ids, w, **_LENGTHS), plain=_plain_weighted,
         reference=_weighted, gradient=_weights_gradient, inputs={"arr": _wide_ids, "weights": lambda shape: shape},
         outputs={"sums": _rows_or_all}, summed=lambda shape: int(np.prod(shape)), special=False, passes=(2, 2),
         sizes=[(1 << 20,)], cpu_sizes=[(4096, 4096)]),
    Case(name="bincount, rows of weights", run=lambda ids, w: tfuse.bincount(ids, w, axis=-1, **_LENGTHS), special=False,
         plain=lambda ids, w: _plain_weighted(ids, w, -1), reference=lambda ids, w: _weighted(ids, w, -1), sizes=[],
         gradient=lambda dy, ids, w: _weights_gradient(dy, ids, w, -1), inputs={"arr": _ids, "weights": lambda shape: shape},
         outputs={"sums": lambda shape: (*shape[:-1], _SIZE)}, summed=lambda shape: shape[-1]),
]
