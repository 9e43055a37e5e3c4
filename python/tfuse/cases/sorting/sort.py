import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, bars, ones, refusing

_DIRECTIONS = [{}, {"direction": "DESCENDING"}]
_SIZES = [(1 << 20, 1024), (1, 1 << 27)]


def order(x, direction="ASCENDING"):
    """The indices of each row's values in order; NaN is the greatest, and of equal values the lower index comes first."""
    if direction == "ASCENDING":
        return np.argsort(x, -1, kind="stable")
    turned = np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]
    return x.shape[-1] - 1 - turned


def _gradient(dy, x, direction="ASCENDING"):
    dx = np.zeros_like(x)
    np.put_along_axis(dx, order(x, direction), dy, -1)
    return [dx]


_sort, _argsort = (refusing(f, values=[1.0]) for f in (tfuse.sort, tfuse.argsort))
CASES = [
    Case(name="sort", run=tfuse.sort, plain=tf.sort, gradient=_gradient, inputs={"values": lambda shape: shape},
         reference=lambda x, **o: np.take_along_axis(x, order(x, **o), -1), options=_DIRECTIONS, special=False, rejects=[
             _sort("sort: values must be float32, float16, bfloat16, float64, int32 or int64, got bool",
                   values=ones(1, dtype=tf.bool)),
             _sort("values must have at least one dimension, got a single number", values=1.0),
             _sort("sort: axis must be one or several axes of x .2, 3., got 2", values=ones(2, 3), axis=2),
             _sort("sort: direction must be 'ASCENDING' or 'DESCENDING', got 'UP'", direction="UP")]),
    Case(name="argsort", run=tfuse.argsort, plain=lambda x, **o: tf.argsort(x, stable=True, **o), reference=order,
         inputs={"values": Input(lambda shape: shape, gradient=False)},
         outputs={"indices": Input(lambda shape: shape, dtype="int32")}, options=_DIRECTIONS, special=False, rejects=[
             _argsort("argsort: values must be .*got bool", values=ones(1, dtype=tf.bool)),
             _argsort("argsort: axis must be .*got -3", values=ones(2, 3), axis=-3),
             _argsort("argsort: direction must be .*got None", direction=None)]),
]
TIMES = [Timed(case, _SIZES, [{}], cpu_sizes=[(4096, 4096)], bars=limits) for case, limits in zip(
    CASES, [bars(*_SIZES, dtypes=["float32"], torch=1.0), {}])]
