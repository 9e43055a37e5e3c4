import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, cancelling, total

_SIZE, _CUBE, _CLASSES = (16384, 8192), (64, 4096, 512), (32, 256, 256, 21)


def _run(x, kind="sum", axis=-1):
    return getattr(tfuse, "reduce_" + kind)(x, axis)


def _plain(x, kind="sum", axis=-1):
    if kind == "l2":
        return tf.sqrt(tf.reduce_sum(tf.square(x), axis))
    return getattr(tf.math, "reduce_" + kind)(x, axis)


def _exact(x, kind="sum", axis=-1):
    """The result with its axes, in float64."""
    if kind in ("sum", "mean"):
        result = total(x if kind == "sum" else x / x.shape[axis], axis)
        return result
    with np.errstate(all="ignore"):
        return {"max": lambda: np.max(x, axis), "min": lambda: np.min(x, axis), "prod": lambda: np.prod(x, axis),
                "logsumexp": lambda: _lse(x, axis), "variance": lambda: np.var(x, axis), "std": lambda: np.std(x, axis),
                "l2": lambda: np.sqrt(np.sum(x * x, axis))}[kind]()


def _lse(x, axis):
    top = np.max(x, axis, keepdims=True)
    return np.squeeze(np.log(np.sum(np.exp(x - top), axis, keepdims=True)) + top, axis)


def _gradient(dy, x, kind="sum", axis=-1):
    wide = lambda v: np.expand_dims(np.asarray(v), axis)
    dy, n, y = wide(dy), x.shape[axis], wide(_exact(x, kind, axis))
    if kind in ("sum", "mean"):
        return [dy / (n if kind == "mean" else 1) * np.ones_like(x)]
    if kind in ("max", "min"):
        return [dy * (x == y) / np.sum(x == y, axis, keepdims=True)]
    if kind == "prod":  # no zeros here
        return [dy * y / x]
    if kind == "logsumexp":
        return [dy * np.exp(x - y)]
    if kind == "l2":
        return [dy * x / y]
    factor = 2 * dy / n if kind == "variance" else dy / (n * y)
    return [cancelling(factor * x, -factor * np.mean(x, axis, keepdims=True))]


def _case(name, kinds, axis=-1, left=lambda shape: shape[:-1], passes=(1, 1), values=None, **more):
    options = [{"kind": kind, **({} if axis == -1 else {"axis": axis})} for kind in kinds]
    return Case(name=name, run=_run, plain=_plain, reference=_exact, gradient=_gradient,
                inputs={"x": Input(lambda shape: shape, values)}, outputs={"value": left}, options=options, passes=passes,
                summed=max, **more)


def _bars(shape, percent, axis=-1):
    options = (("kind", "sum"), *([] if axis == -1 else [("axis", axis)]))
    return {(dtype, shape, options): {"forward": percent} for dtype in ("float32", "bfloat16")}


def _near_one(rng, shape, case):
    """Factors of which even many have a product that every type can hold."""
    return np.exp(rng.normal(size=shape) * 0.5 / np.sqrt(max(shape[-1], 1))) * rng.choice([-1, 1], shape)


_MANY = [(7, 3), (4, 8), (0, 8), (3, 5, 129), (513, 1030)]
CASES = [
    _case("reduce", ["sum", "max", "mean", "min", "logsumexp", "variance", "l2"], sizes=[_SIZE], bars=_bars(_SIZE, 92),
          timed=[{"kind": kind} for kind in ("sum", "max", "logsumexp", "variance")], rejects=[
        ("reduce_sum: axis must be one or several axes of x .2, 3., got 2", lambda: tfuse.reduce_sum(tf.ones([2, 3]), 2)),
        (r"reduce_max: axis must be one or several axes of x .2, 3., got \(1, -1\)",
         lambda: tfuse.reduce_max(tf.ones([2, 3]), (1, -1))),
        ("reduce_std: input_tensor must be float32, float16, bfloat16 or float64, got int32",
         lambda: tfuse.reduce_std(tf.constant([1, 2]))),
        ("reduce_[a-z0-9]+: input_tensor must be float32, float16, bfloat16, float64, int32 or int64, got bool",
         lambda: tfuse.reduce_sum(tf.constant([True]))),
    ]),
    _case("reduce, std", ["std"], shapes=_MANY, sizes=[]),
    _case("reduce, product", ["prod"], shapes=_MANY, values=_near_one, special=False, sizes=[]),
    _case("reduce, columns", ["sum", "l2"], axis=0, left=lambda shape: shape[1:], sizes=[_SIZE],
          shapes=[(7, 3), (3, 5, 129), (513, 1030), (4099, 2), (4100, 1)], bars=_bars(_SIZE, 92, 0)),
    # What the tests of the family have with other axes, to be timed.
    _case("reduce, all", ["sum", "max"], axis=(0, 1), left=lambda shape: (), shapes=[], sizes=[_SIZE],
          bars=_bars(_SIZE, 92, (0, 1))),
    _case("reduce, middle axis", ["sum"], axis=1, left=lambda shape: (shape[0], shape[2]), shapes=[], sizes=[_CUBE],
          bars=_bars(_CUBE, 80, 1)),
    _case("reduce, axes 0 and 2", ["sum"], axis=(0, 2), left=lambda shape: (shape[1],), shapes=[], sizes=[_CUBE],
          bars=_bars(_CUBE, 80, (0, 2))),
    _case("reduce, narrow columns", ["sum"], axis=(0, 1, 2), left=lambda shape: (shape[3],), shapes=[], sizes=[_CLASSES],
          bars=_bars(_CLASSES, 60, (0, 1, 2))),
]
