import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, cancelling, each, ones, refusing, total

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
        return total(x if kind == "sum" else x / x.shape[axis], axis)
    with np.errstate(all="ignore"):
        return {"max": np.max, "min": np.min, "prod": np.prod, "logsumexp": _lse, "variance": np.var, "std": np.std,
                "l2": lambda x, axis: np.sqrt(np.sum(x * x, axis))}[kind](x, axis)


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


def _case(name, kinds, axis=-1, left=lambda shape: shape[:-1], values=None, **more):
    return Case(name=name, run=_run, plain=_plain, reference=_exact, gradient=_gradient,
                inputs={"x": Input(lambda shape: shape, values)}, outputs={"value": left}, summed=max,
                options=[{"kind": kind, **({} if axis == -1 else {"axis": axis})} for kind in kinds], **more)


def _timed(case, size, percent, **more):
    """The sum is asked to be fast."""
    return Timed(case, [size], passes=(1, 1), bars={
        (dtype, size, tuple(case.options[0].items())): {"forward": percent} for dtype in ("float32", "bfloat16")}, **more)


def _near_one(rng, shape, case):
    """Factors of which even many have a product that every type can hold."""
    return np.exp(rng.normal(size=shape) * 0.5 / np.sqrt(max(shape[-1], 1))) * rng.choice([-1, 1], shape)


_MANY = [(7, 3), (4, 8), (0, 8), (3, 5, 129), (513, 1030)]
CASES = [
    _case("reduce", ["sum", "max", "mean", "min", "logsumexp", "variance", "l2"], rejects=[
        refusing(tfuse.reduce_sum)("reduce_sum: axis must be one or several axes of x .2, 3., got 2",
                                   input_tensor=ones(2, 3), axis=2),
        refusing(tfuse.reduce_max)(r"reduce_max: axis must be one or several axes of x .2, 3., got \(1, -1\)",
                                   input_tensor=ones(2, 3), axis=(1, -1)),
        refusing(tfuse.reduce_std)("reduce_std: input_tensor must be float32, float16, bfloat16 or float64, got int32",
                                   input_tensor=ones(2, dtype=tf.int32)),
        refusing(tfuse.reduce_sum)("reduce_[a-z0-9]+: input_tensor must be float32, float16, bfloat16, float64, int32 or int64"
                                   ", got bool", input_tensor=ones(1, dtype=tf.bool)),
    ]),
    _case("reduce, std", ["std"], shapes=_MANY),
    _case("reduce, product", ["prod"], shapes=_MANY, values=_near_one, special=False),
    _case("reduce, columns", ["sum", "l2"], axis=0, left=lambda shape: shape[1:],
          shapes=[(7, 3), (3, 5, 129), (513, 1030), (4099, 2), (4100, 1)]),
]
# The last ones are what the tests of the family have with other axes.
TIMES = [
    _timed(CASES[0], _SIZE, 92, options=each("kind", ["sum", "max", "logsumexp", "variance"])),
    _timed(CASES[3], _SIZE, 92),
    _timed(_case("reduce, all", ["sum", "max"], (0, 1), lambda shape: ()), _SIZE, 92),
    _timed(_case("reduce, middle axis", ["sum"], 1, lambda shape: (shape[0], shape[2])), _CUBE, 80),
    _timed(_case("reduce, axes 0 and 2", ["sum"], (0, 2), lambda shape: (shape[1],)), _CUBE, 80),
    _timed(_case("reduce, narrow columns", ["sum"], (0, 1, 2), lambda shape: (shape[3],)), _CLASSES, 60),
]
