import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Timed, bars, ones, refusing
from tfuse.cases.sorting.sort import order


def _indices(x, k):
    return order(x, "DESCENDING")[..., :k]


def _gradient(dy, x, k):
    dx = np.zeros_like(x)
    np.put_along_axis(dx, _indices(x, k), dy, -1)
    return [dx]


def _case(name, k, **options):
    """A case of the k greatest; of shorter rows, all."""
    def of(shape, x=None):
        known = x is None or x.shape.rank is not None and x.shape[-1] is not None
        return min(k, shape[-1]) if known else tf.minimum(k, tf.shape(x)[-1])

    return Case(name=name, run=lambda x: tfuse.top_k(x, of(x.shape, x)).values,
                plain=lambda x: tf.math.top_k(x, of(x.shape, x)).values,
                reference=lambda x: np.take_along_axis(x, _indices(x, of(x.shape)), -1),
                gradient=lambda dy, x: _gradient(dy, x, of(x.shape)), inputs={"input": lambda shape: shape},
                outputs={"values": lambda shape: (*shape[:-1], of(shape))}, special=False, **options)


_refused = refusing(tfuse.top_k, input=ones(2, 3), k=1)
CASES = [
    _case("top_k", 50, rejects=[
        _refused("k must be at most 3, the size of the last axis of input .2, 3., got 4", k=4),
        _refused("top_k: k must not be less than 0, got -1", k=-1),
        _refused("input must have at least one dimension, got a single number", input=1.0),
        _refused("top_k: input must be .*got bool", input=ones(1, dtype=tf.bool))]),
    _case("top_k, many", 3000),
]
TIMES = [Timed(CASES[0], [(8192, 50304)], cpu_sizes=[(4096, 4096)], passes=(1, 1),
               bars=bars((8192, 50304), dtypes=["float32"], forward=50, torch=0.5))]
