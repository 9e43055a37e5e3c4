import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, bars

_DIRECTIONS = [{}, {"direction": "DESCENDING"}]
_SIZES = [(1 << 20, 1024), (1, 1 << 27)]


def order(x, direction="ASCENDING"):
    """The places of each row's values in order; NaN is the greatest, and of equal values the lower place comes first."""
    if direction == "ASCENDING":
        return np.argsort(x, -1, kind="stable")
    turned = np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]
    return x.shape[-1] - 1 - turned


def _gradient(dy, x, direction="ASCENDING"):
    dx = np.zeros_like(x)
    np.put_along_axis(dx, order(x, direction), dy, -1)
    return [dx]


CASES = [
    Case(name="sort", run=tfuse.sort, plain=tf.sort, gradient=_gradient, inputs={"values": lambda shape: shape},
         reference=lambda x, **o: np.take_along_axis(x, order(x, **o), -1), options=_DIRECTIONS, special=False, sizes=_SIZES,
         timed=[{}], cpu_sizes=[(4096, 4096)], bars=bars(*_SIZES, dtypes=["float32"], torch=1.0), rejects=[
             ("sort: values must be float32, float16, bfloat16, float64, int32 or int64, got bool",
              lambda: tfuse.sort(tf.constant([True]))),
             ("values must have at least one dimension, got a single number", lambda: tfuse.sort(tf.constant(1.0))),
             ("sort: axis must be one or several axes of x .2, 3., got 2", lambda: tfuse.sort(tf.ones([2, 3]), axis=2)),
             ("sort: direction must be 'ASCENDING' or 'DESCENDING', got 'UP'", lambda: tfuse.sort([1.0], direction="UP"))]),
    Case(name="argsort", run=tfuse.argsort, plain=lambda x, **o: tf.argsort(x, stable=True, **o), reference=order,
         gradient=lambda dy, x, **o: [], inputs={"values": Input(lambda shape: shape, gradient=False)},
         outputs={"places": Input(lambda shape: shape, dtype="int32")}, options=_DIRECTIONS, special=False, sizes=_SIZES,
         timed=[{}], cpu_sizes=[(4096, 4096)], rejects=[
             ("argsort: values must be .*got bool", lambda: tfuse.argsort(tf.constant([True]))),
             ("argsort: axis must be .*got -3", lambda: tfuse.argsort(tf.ones([2, 3]), axis=-3)),
             ("argsort: direction must be .*got None", lambda: tfuse.argsort([1.0], direction=None))]),
]
