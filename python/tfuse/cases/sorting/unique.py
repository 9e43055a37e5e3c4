import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, ones, refusing, volume
from tfuse.sorting.unique import _plain

_vector = lambda shape: (volume(shape),)


def _reference(x):
    _, first, idx, count = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    by_first = np.argsort(first)
    rank = np.empty_like(by_first)
    rank[by_first] = np.arange(len(by_first))
    y, counts = np.zeros_like(x), np.zeros(x.shape, np.int64)
    y[:len(first)], counts[:len(first)] = x[first[by_first]], count[by_first]
    return [y, rank[idx] if len(x) else idx, counts]


CASES = [
    Case(name="unique_with_counts", run=lambda x: list(tfuse.unique_with_counts(x, padded=True)),
         plain=lambda x: _plain(x)[:3], reference=_reference, special=False,
         inputs={"x": Input(_vector, lambda rng, own, shape: rng.integers(-99, 99, own), gradient=False)},
         outputs={"y": _vector, "idx": Input(_vector, dtype="int32"), "count": Input(_vector, dtype="int32")}, rejects=[
             refusing(tfuse.unique_with_counts)("x must be a vector, got shape .2, 3.", x=ones(2, 3)),
             refusing(tfuse.unique_counts)("unique_counts: x must be .*got bool", x=ones(1, dtype=tf.bool))]),
]
TIMES = [Timed(CASES[0], [(1 << 24,)], cpu_sizes=[(4096, 4096)], passes=(3, 0))]
