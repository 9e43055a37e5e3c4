import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, of_terms

LONG = (1, 2**27)


def _along(f):
    """A function of an array whose first axis is scanned forward, as one of any axis and direction."""
    def scan(*arrays, axis=0, exclusive=False, reverse=False):
        arrays = [np.moveaxis(a, axis, 0) for a in arrays]
        y = f(*(a[::-1] if reverse else a for a in arrays), exclusive)
        return np.moveaxis(y[::-1] if reverse else y, 0, axis)
    return scan


def _before(y, first):
    """Each place's result as that of the place before."""
    return np.concatenate([np.full_like(y[:1], first), y[:-1]])


_sum = _along(lambda x, exclusive: _before(np.cumsum(x, 0), 0) if exclusive else np.cumsum(x, 0))
_prod = _along(lambda x, exclusive: _before(np.cumprod(x, 0), 1) if exclusive else np.cumprod(x, 0))
_max = _along(lambda x, exclusive: _before(np.maximum.accumulate(x, 0), -np.inf) if exclusive else (
    np.maximum.accumulate(x, 0)))
_lse = _along(lambda x, exclusive: _before(np.logaddexp.accumulate(x, 0), -np.inf) if exclusive else (
    np.logaddexp.accumulate(x, 0)))


def _sums(x, **options):
    """With the size of the terms, which cancel."""
    return of_terms(_sum(x, **options), _sum(x * x, **options))


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
    return lambda *arrays, **options: tf.nest.map_structure(np.float64, fine(*arrays, **options))


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
    lost = terms * terms * (1 + y * y)  # an exponent is off by what it is rounded to, and the exponential by that many times
    return [of_terms(np.exp(x) * _sum(terms, **back), np.exp(2 * x) * _sum(lost, **back))]


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
_bad = [("%s: x must be float32.*got bool", lambda f: f(tf.constant([True]))),
        ("%s: axis must be one of x .2, 3., got 2", lambda f: f(tf.ones([2, 3]), axis=2)),
        ("%s: axis must be one of x .*, got 0", lambda f: f(tf.constant(1.0))),
        ("%s: axis must be a number that is known", lambda f: f(tf.ones([2, 3]), axis=[0]))]


def _rejects(name, f):
    return [(pattern % name, lambda make=make: make(f)) for pattern, make in _bad]


CASES = [
    Case(name="cumsum", run=tfuse.cumsum, plain=tf.cumsum, reference=_sums, gradient=_sum_gradient,
         inputs={"x": lambda shape: shape}, options=_WAYS, passes=(2, 2), sizes=[(16384, 8192), (16383, 8191), LONG],
         summed=max, timed=[_LAST, {}], rejects=_rejects("cumsum", tfuse.cumsum), bars={
             (dtype, shape, (("axis", -1),)): {"forward": least} for dtype, shape, least in (
                 ("float32", (16384, 8192), 85), ("float32", LONG, 85))}),
    Case(name="cumprod", run=tfuse.cumprod, plain=tf.math.cumprod, reference=_finely(_prod), gradient=_prod_gradient,
         inputs={"x": Input(lambda shape: shape, _near_one)}, options=_WAYS, shapes=_SHAPES, sizes=[(4096, 4096)],
         special=False,  # what is infinite on the way to 0 depends on the order of the products
         summed=max, timed=[_LAST], rejects=_rejects("cumprod", tfuse.cumprod)),
    Case(name="cummax", run=tfuse.cummax, plain=_stock_max, reference=_max, gradient=_max_gradient,
         inputs={"x": lambda shape: shape}, options=_WAYS[:2] + [{"axis": -1, "reverse": True}], shapes=_SHAPES,
         sizes=[(4096, 4096)], summed=max, timed=[_LAST], rejects=_rejects("cummax", tfuse.cummax)),
    Case(name="cumulative_logsumexp", run=tfuse.cumulative_logsumexp, plain=tf.math.cumulative_logsumexp, reference=_lse,
         gradient=_lse_gradient, inputs={"x": lambda shape: shape}, options=_WAYS[:2] + [{"axis": -2, "reverse": True}],
         shapes=_SHAPES, sizes=[(4096, 4096)], summed=max, timed=[_LAST], rejects=[
             *_rejects("cumulative_logsumexp", tfuse.cumulative_logsumexp)[1:],
             ("cumulative_logsumexp: x must be float32, float16, bfloat16 or float64, got int32",
              lambda: tfuse.cumulative_logsumexp(tf.constant([1])))]),
]
