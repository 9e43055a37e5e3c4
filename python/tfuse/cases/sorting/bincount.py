import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, ones, refusing, sums, volume

_SIZE = 200  # bins; there are ids beyond them
_LENGTHS = {"minlength": _SIZE, "maxlength": _SIZE}
_draw = lambda rng, own, shape: rng.integers(0, _SIZE + 20, own)
_ids = Input(lambda shape: shape, _draw, "int32", False)
# TensorFlow hands int32 tensors on from the forward function to the backward one in the host's memory.
_wide_ids = Input(lambda shape: shape, _draw, "int64", False)


def _sums(ids, weights, axis=None):
    """The sum of the weights of each bin."""
    ids, weights = (x.reshape((-1, x.shape[-1]) if axis == -1 else (1, -1)) for x in (ids, weights))
    rows = [np.bincount(i[i < _SIZE], w[i < _SIZE], _SIZE) for i, w in zip(ids, weights)]
    return np.reshape(rows, (-1, _SIZE))


def _shaped(sums, ids, axis):
    return sums.reshape((*ids.shape[:-1], _SIZE) if axis == -1 else (_SIZE,))


def _counts(ids, axis=None, binary_output=False):
    counts = _shaped(_sums(ids, np.ones(ids.shape), axis), ids, axis)
    return np.minimum(counts, 1) if binary_output else counts


def _weighted(ids, weights, axis=None):
    return sums(lambda weights: _shaped(_sums(ids, weights, axis), ids, axis), weights)


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


def _case(name, axis, ids, inputs, outputs, plain, reference, gradient=None, **more):
    """Over all, or along the last axis."""
    given = {} if axis is None else {"axis": axis}
    of = lambda f: lambda *inputs, **options: f(*inputs, **given, **options)
    return Case(name=name, run=of(functools.partial(tfuse.bincount, **_LENGTHS)), plain=of(plain), reference=of(reference),
                gradient=gradient and of(gradient), inputs={"arr": ids, **inputs}, special=False,
                outputs={result: Input(lambda shape: (*shape[:-1], _SIZE) if given else (_SIZE,), dtype=dtype)
                         for result, dtype in outputs.items()}, **more)


_WEIGHTS = {"weights": lambda shape: shape}
_refused = refusing(tfuse.bincount)
CASES = [
    _case("bincount", None, _ids, {}, {"counts": "int32"}, _plain, _counts, options=[{}, {"binary_output": True}], rejects=[
        _refused("bincount: axis must be None, 0 or -1, got 1", arr=[[1]], axis=1),
        _refused("bincount: binary_output must be False where weights are given", arr=[1], weights=[1.0], binary_output=True),
        _refused("bincount: weights must have the shape of arr", arr=[1, 2], weights=ones(3))]),
    _case("bincount, rows", -1, _ids, {}, {"counts": "int32"}, _plain, _counts),
    _case("bincount, weights", None, _wide_ids, _WEIGHTS, {"sums": None}, _plain_weighted, _weighted, _weights_gradient,
          summed=volume),
    _case("bincount, rows of weights", -1, _ids, _WEIGHTS, {"sums": None}, _plain_weighted, _weighted, _weights_gradient,
          summed=lambda shape: shape[-1]),
]
TIMES = [Timed(CASES[0], [(1 << 27,)], [{}], cpu_sizes=[(4096, 4096)], passes=(1, 0)),
         Timed(CASES[2], [(1 << 20,)], cpu_sizes=[(4096, 4096)], passes=(2, 2))]
