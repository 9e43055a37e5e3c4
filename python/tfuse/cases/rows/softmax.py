import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, bars, cancelling, ones, refusing, total

SWEEP = [(2**27 // columns, columns) for columns in (64, 1024, 4096, 16384, 65536, 262144)]


def exact(x, mask=None, scale=1.0):
    """log(softmax(x * scale + mask))."""
    z = x * scale
    if mask is not None:
        z = np.where(mask, z, -np.inf) if mask.dtype == bool else z + mask
    z = z - np.max(z, -1, keepdims=True)
    return z - np.log(np.sum(np.exp(z), -1, keepdims=True))


def gradient(dy, x, mask=None, scale=1.0, log=False):
    y = exact(x, mask, scale)
    p = np.exp(y)
    if log:
        terms = [scale * dy, -scale * p * np.sum(dy, -1, keepdims=True)]
    else:
        terms = [scale * p * dy, -scale * p * np.sum(dy * p, -1, keepdims=True)]
    dx = cancelling(*terms)
    return [dx] if mask is None or mask.dtype == bool else [dx, total(np.concatenate(terms) / scale, 0)]


def _plain(x, mask=None, scale=1.0, log=False):
    z = x if scale == 1 else x * scale
    if mask is not None:
        z = tf.where(mask, z, z.dtype.min) if mask.dtype == tf.bool else z + mask
    return tf.nn.log_softmax(z) if log else tf.nn.softmax(z)


def _run(x, mask=None, log=False, **options):
    return (tfuse.log_softmax if log else tfuse.softmax)(x, mask=mask, **options)


def _case(name, inputs={}, log=False, **more):
    fixed = {"log": log} if log else {}
    return Case(name=name, run=lambda *a, **o: _run(*a, **fixed, **o), plain=lambda *a, **o: _plain(*a, **fixed, **o),
                reference=lambda *a, **o: exact(*a, **o) if log else np.exp(exact(*a, **o)),
                gradient=lambda *a, **o: gradient(*a, **fixed, **o), inputs={"x": lambda shape: shape, **inputs},
                summed=lambda shape: shape[-1], options=[{}, {"scale": 0.125}], **more)


def _some(rng, shape, case):
    """A mask that keeps the first of each row and some others."""
    kept = rng.random(shape) < 0.7
    kept[..., :1] = True
    return kept


_refused = refusing(tfuse.softmax, x=ones(2, 3))
CASES = [
    _case("softmax", rejects=[
        _refused("softmax: x must be float32, float16, bfloat16 or float64, got int32", x=ones(1, 1, dtype=tf.int32)),
        _refused("softmax: mask must be bool or float32, got float64; cast it", mask=ones(3, dtype=tf.float64)),
        _refused("softmax: mask must be bool or float32, got int32; cast it", mask=ones(3, dtype=tf.int32)),
        _refused("mask must broadcast to the shape of x, .2, 3., got .2.", mask=ones(2)),
        _refused("x must have at least one dimension", x=ones()),
        _refused("softmax: axis must be one or several axes of x .2, 3., got 2", axis=2),
        refusing(tfuse.log_softmax)(r"log_softmax: axis must be one or several axes of x .2, 3., got \(1, -1\)",
                                    x=ones(2, 3), axis=(1, -1)),
    ]),
    _case("log_softmax", log=True),
    _case("softmax, boolean mask", {"mask": Input(lambda shape: shape, _some, "bool", gradient=False)}),
    _case("softmax, mask", {"mask": lambda shape: shape[1:]}),
    _case("log_softmax, mask", {"mask": lambda shape: shape[1:]}, log=True),
]
TIMES = [Timed(CASES[0], [(16384, 8192)], [{}], sweep=SWEEP, bars={
    **bars((16384, 8192), forward=92, floor=1.25), **bars(*SWEEP, dtypes=["bfloat16"], forward=80)})]
