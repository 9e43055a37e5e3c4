import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, Timed, of_terms, ones, refusing, sums

LONG = (1, 2**27)


def _along(f):
    """A function of an array whose first axis is scanned forward, as one of any axis and direction."""
    def scan(*arrays, axis=0, exclusive=False, reverse=False):
        arrays = [np.moveaxis(a, axis, 0) for a in arrays]
        y = f(*(a[::-1] if reverse else a for a in arrays), exclusive)
        return np.moveaxis(y[::-1] if reverse else y, 0, axis)
    return scan


def _accumulated(function, first):
    """The running result; where it is exclusive, each position's as that of the position before."""
    def scan(x, exclusive):
        y = function.accumulate(x, 0)
        return np.concatenate([np.full_like(y[:1], first), y[:-1]]) if exclusive else y
    return _along(scan)


_sum, _prod = _accumulated(np.add, 0), _accumulated(np.multiply, 1)
_max, _lse = _accumulated(np.maximum, -np.inf), _accumulated(np.logaddexp, -np.inf)


def _sums(x, **options):
    return sums(lambda x: _sum(x, **options), x)


def _back(options):
    return {**options, "reverse": not options.get("reverse", False)}


def _sum_gradient(dy, x, **options):
    return [_sums(dy, **_back(options))]


def _recur(step):
    """h_i = step(x_i, h_{i-1}) along the first axis, from 0 on."""
    def scan(*arrays):
        exclusive, arrays = arrays[-1], arrays[:-1]
        y, h = np.zeros_like(arrays[0]), np.zeros_like(arrays[0][:1])[0] if len(arrays[0]) else None
        for i in range(len(y)):
            if exclusive:
                y[i] = h
            h = step(*(a[i] for a in arrays), h)
            if not exclusive:
                y[i] = h
        return y
    return _along(scan)


_recurrence = _recur(lambda factor, x, h: factor * h + x)


def _finely(f):
    """f, computed with more digits than float64 has: a product of many factors is off by as many roundings there."""
    fine = lambda *arrays, **options: f(*(np.asarray(a, np.longdouble) for a in arrays), **options)
    return lambda *arrays, **options: tf.nest.map_structure(lambda v: np.asarray(v, np.float64), fine(*arrays, **options))


@_finely
def _prod_gradient(dy, x, exclusive=False, **options):
    before = _prod(x, exclusive=True, **options)
    back = _back(options)
    if exclusive:
        return [before * _recurrence(x, dy, exclusive=True, **back)]
    return [before * (dy + _recurrence(x, x * dy, exclusive=True, **back))]


def _max_gradient(dy, x, exclusive=False, **options):
    grown = (x > _max(x, exclusive=True, **options)).astype(np.float64)
    back = _back(options)
    if exclusive:
        return [grown * _recurrence(1 - grown, dy, exclusive=True, **back)]
    return [grown * (dy + _recurrence(1 - grown, (1 - grown) * dy, exclusive=True, **back))]


def _lse_gradient(dy, x, **options):
    y, back = _lse(x, **options), _back(options)
    terms = np.exp(-y) * dy
    off = terms * terms * (1 + np.where(np.isfinite(y), y, 0)**2)  # exp(-y) of a rounded y is off by y times as much
    return [of_terms(np.exp(x) * _sum(terms, **back), np.exp(2 * x) * _sum(off, **back))]


def _stock_max(x, axis=0, exclusive=False, reverse=False):
    """Stock TensorFlow has none: by doubling."""
    y = tf.reverse(x, [axis]) if reverse else x
    low = tf.constant(float("-inf"), x.dtype)
    length = x.shape[axis]
    some = lambda n: tf.fill([n if a == axis % len(x.shape) else s for a, s in enumerate(x.shape)], low)
    shift = lambda v, n: tf.concat([some(n), tf.gather(v, tf.range(length - n), axis=axis)], axis)
    y = shift(y, 1) if exclusive and length else y
    for k in range(max(length - 1, 0).bit_length()):
        other = shift(y, min(1 << k, length))
        y = tf.where(tf.logical_or(other >= y, other != other), other, y)
    return tf.reverse(y, [axis]) if reverse else y


def _near_one(rng, shape, case):
    """Whose products stay near one."""
    return np.exp(0.3 * rng.normal(size=shape) / np.sqrt(max(1, *shape))) * rng.choice([-1, 1], size=shape)


_LAST = {"axis": -1}
_WAYS = [{}, _LAST, {"axis": -1, "exclusive": True, "reverse": True}, {"axis": -2, "exclusive": True}]
_SHAPES = [(4, 8), (1, 1), (7, 3), (0, 8), (3, 5, 129), (33, 1030), (4099, 2), (1, 10003)]


def _case(name, run, dtypes=("float32.*", "bool"), **more):
    refused = refusing(run, x=ones(2, 3))
    return Case(name=name, run=run, summed=max, rejects=[
        refused("%s: x must be %s, got %s" % (name, *dtypes), x=ones(1, dtype=dtypes[1])),
        refused(name + ": axis must be one of x .2, 3., got 2", axis=2),
        refused(name + ": axis must be one of x .*, got 0", x=ones()),
        refused(name + ": axis must be a number that is known", axis=[0])], **more)


CASES = [
    _case("cumsum", tfuse.cumsum, plain=tf.cumsum, reference=_sums, gradient=_sum_gradient, options=_WAYS),
    _case("cumprod", tfuse.cumprod, plain=tf.math.cumprod, reference=_finely(_prod), gradient=_prod_gradient,
          inputs={"x": Input(lambda shape: shape, _near_one)}, options=_WAYS, shapes=_SHAPES,
          special=False),  # what is infinite on the way to 0 depends on the order of the products
    _case("cummax", tfuse.cummax, plain=_stock_max, reference=_max, gradient=_max_gradient,
          options=_WAYS[:2] + [{"axis": -1, "reverse": True}], shapes=_SHAPES),
    _case("cumulative_logsumexp", tfuse.cumulative_logsumexp, ("float32, float16, bfloat16 or float64", "int32"),
          plain=tf.math.cumulative_logsumexp, reference=_lse, gradient=_lse_gradient,
          options=_WAYS[:2] + [{"axis": -2, "reverse": True}], shapes=_SHAPES),
]
TIMES = [
    Timed(CASES[0], [(16384, 8192), (16383, 8191), LONG], [_LAST, {}], passes=(2, 2), bars={
        ("float32", shape, (("axis", -1),)): {"forward": 85} for shape in ((16384, 8192), LONG)}),
    *(Timed(case, [(4096, 4096)], [_LAST]) for case in CASES[1:]),
]
