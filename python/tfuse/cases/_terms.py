"""Results that know the size of the terms they are sums of, and what error is fair in them."""

import numpy as np
import tensorflow as tf


def as64(tensor):
    """As an array, floats in float64."""
    return np.asarray(tf.cast(tensor, tf.float64) if tensor.dtype.is_floating else tensor)


def error(got, want):
    """The largest difference, relative to the largest value."""
    if np.size(want) == 0:
        return 0.0
    return float(np.max(np.abs(as64(got) - want)) / max(np.max(np.abs(want)), 1e-30))


class _Total(np.ndarray):
    """A sum that remembers the size of its terms."""


def of_terms(value, squares):
    """A sum made elsewhere, and the sum of its terms' squares."""
    result = np.asarray(value).view(_Total)
    result.terms = np.sqrt(squares)
    return result


def squares(value):
    """Of the terms of a sum, added up; of what is no sum, its own."""
    return np.square(getattr(value, "terms", np.asarray(value)))


def sums(f, *values):
    """f of values, linear in each of them: sums of products."""
    return of_terms(f(*map(np.asarray, values)), f(*map(squares, values)))


def plus(*values):
    """Values added up, of which some may be None."""
    given = [value for value in values if value is not None]
    return of_terms(sum(map(np.asarray, given)), sum(map(squares, given)))


def _in_pairs(terms, axis):
    """Their sum. NumPy adds along the last axis in pairs, and along others one after the other, which loses as much as a naive
    composition does: a reference has to lose less than what it is held against."""
    if axis is None:
        return np.ravel(terms).sum()
    axes = np.atleast_1d(axis)
    last = np.moveaxis(terms, axes, range(-len(axes), 0))
    kept = last.shape[:-len(axes)]
    return np.ascontiguousarray(last).reshape(*kept, np.size(terms) // max(int(np.prod(kept)), 1)).sum(-1)


def total(terms, axis=None):
    """A sum in a reference, whose terms may cancel."""
    result = of_terms(_in_pairs(terms, axis), np.sum(terms * terms, axis))
    result.count = np.size(terms) // max(result.size, 1)
    return result


def cancelling(*terms):
    """The same, elementwise: the sum of a few arrays."""
    return total(np.stack(np.broadcast_arrays(*terms)), 0)


def allowed(naive, want, dtype, typical=0.0):
    """Twice the error of the naive composition, here (None is none) or on a `typical` sample, where luck plays no part.

    Where luck made both exact, twice one rounding of the result; of a sum, measured against its terms (the root of
    their squares' sum), as no order of adding does better when they cancel.
    """
    if np.size(want) == 0:
        return 0.0
    errors = 0.0 if naive is None else error(naive, want), typical, _EPSILON.get(dtype, 0.0) * _size(want)
    return 2 * max(e for e in errors if not np.isnan(e))  # some stock products are NaN on some machines


def _size(want):
    """Of the terms that a result is summed from, relative to the largest result; at least 1."""
    return max(float(np.max(np.abs(getattr(want, "terms", want))) / max(np.max(np.abs(want)), 1e-30)), 1.0)


# How many half units in the last place arithmetic may lose, whatever the order of its steps.
# _STORED, of the dtype itself: inputs, what a gradient reads again, and results are rounded to it.
# _STEPS, of the type of arithmetic: two or three functions of a formula, of which a GPU's quick ones are off by two units, and
# the products around them.
# _SUM, of that type, times sqrt(n) for a sum of n terms: each addition is off by at most half a unit of the sum so far. Such
# errors add up like a random walk, with a deviation of 0.4 sqrt(n) half units of the sum, or of the root of its terms'
# squares where they cancel; and of some thousand results one is four deviations off.
_STORED, _STEPS, _SUM = 4, 12, 2
_HALF_UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8,
               "float64": 2.0**-52}  # the reference is in float64, too, and loses as much
_EPSILON = {**_HALF_UNITS, "float64": 2.0**-49}  # eight, as the reference is rounded at every step
_TF32 = 8 * 2.0**-11  # each of two factors may lose a unit, and a product of products twice that


def bound(want, dtype, summed=1, tf32=False):
    """The largest error that arithmetic explains in a result of some dtype, by the length of its sums and the size of their
    terms. Integers are exact.

    Args:
      want: what the reference says.
      summed: how many terms the sums behind it have.
      tf32: whether factors may be rounded to TF32 on the way.
    """
    if np.size(want) == 0 or dtype not in _HALF_UNITS:
        return 0.0
    terms, arithmetic = max(summed, getattr(want, "count", 1)), min(_HALF_UNITS[dtype], _HALF_UNITS["float32"])
    lost = _STORED * _HALF_UNITS[dtype] + (_STEPS + _SUM * np.sqrt(terms)) * arithmetic
    return float(lost + _TF32 * tf32) * _size(want)
