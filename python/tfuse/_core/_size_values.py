"""Sizes as numbers and names, and where the integers come from that shapes are made of. See _sizes.py.

A size is a polynomial: terms (names, factor) in order, where names are integers in order and stand for their product. 0 is no
term. So [batch * time, channels], which is made undone by a -1, and n + 1 - 1 are what they were.
"""

import collections

from tensorflow.python.framework import tensor_util

# ---- arithmetic ----


def number(n):
    return (((), n),) if n else ()


ONE = number(1)


def _of(terms):
    total = collections.Counter()
    for names, factor in terms:
        total[names] += factor
    return tuple(sorted((names, factor) for names, factor in total.items() if factor))


def plus(*sizes):
    return _of(term for size in sizes for term in size)


def times(*sizes):
    found = ONE
    for size in sizes:
        found = _of((tuple(sorted(a + b)), m * n) for a, m in found for b, n in size)
    return found


def minus(size):
    return times(number(-1), size)


def quotient(size, by):
    """size / by, where `by` is one term that every term of size is a multiple of; else None."""
    if len(by) != 1:
        return None
    (less, n), found = by[0], []
    for names, factor in size:
        rest = collections.Counter(names)
        rest.subtract(less)
        if factor % n or any(count < 0 for count in rest.values()):
            return None
        found.append((tuple(sorted(rest.elements())), factor // n))
    return _of(found)


# ---- by type of an op: a function of the Sizes and the tensor, that returns a list of sizes, or None ----


def constant(v):
    """The values of a constant as a list, or None."""
    return tensor_util.MakeNdarray(v.op.get_attr("value")).ravel().tolist() if v.op.type == "Const" else None


def _shape_of(sizes, v):
    x = v.op.inputs[0]
    return None if x.shape.rank is None else sizes.shape(x)


def _listed(sizes, v):
    """Of a Pack or a ConcatV2."""
    parts = [sizes.values(x) for x in v.op.inputs[:len(v.op.inputs) - (v.op.type == "ConcatV2")]]
    return None if None in parts else [size for part in parts for size in part]


def _picked(sizes, v):
    """Of a StridedSlice with one slice or index."""
    x, *limits = v.op.inputs
    values, limits = sizes.values(x), [constant(limit) for limit in limits]
    if values is None or x.shape.rank != 1 or None in limits or any(len(limit) != 1 for limit in limits):
        return None
    (begin,), (end,), (step,) = limits
    if v.op.get_attr("ellipsis_mask") or v.op.get_attr("new_axis_mask"):
        return None
    if v.op.get_attr("shrink_axis_mask"):
        return [values[begin]] if -len(values) <= begin < len(values) else None
    first, last = v.op.get_attr("begin_mask"), v.op.get_attr("end_mask")
    return values[slice(None if first else begin, None if last else end, step)]


def _unpacked(sizes, v):
    x = v.op.inputs[0]
    values = sizes.values(x)
    return None if values is None or x.shape.rank != 1 else [values[v.value_index]]


def _gathered(sizes, v):
    x, indices, _ = v.op.inputs
    values, places = sizes.values(x), constant(indices)
    if values is None or places is None or x.shape.rank != 1 or not all(0 <= i < len(values) for i in places):
        return None
    return [values[i] for i in places]


def _multiplied(sizes, v):
    """Of a Prod of all values."""
    values = sizes.values(v.op.inputs[0])
    return None if values is None or v.shape.rank else [times(*values)]


def _count(sizes, v):
    x = v.op.inputs[0]
    return None if x.shape.rank is None else [times(*sizes.shape(x))]


def _each(compute):
    """Of two tensors, of which one may be a single number; or of one."""
    def rule(sizes, v):
        parts = [sizes.values(x) for x in v.op.inputs]
        if None in parts:
            return None
        count = max(map(len, parts))
        return [compute(sizes, *each) for each in zip(*(part if len(part) == count else part * count for part in parts))]

    return rule


def _floor_div(sizes, a, b):
    """The same for all ways to write it, of which (n - 1) // s + 1, -(-n // s) and (n + s - 1) // s are usual."""
    if len(b) != 1 or b[0][0] or b[0][1] < 0:
        return sizes.named(("//", a, b), signed=True)
    n = b[0][1]
    if next((factor for names, factor in a if names), 1) < 0:
        return minus(_floor_div(sizes, plus(minus(a), number(n - 1)), b))
    whole = _of((names, factor // n) for names, factor in a)
    rest = _of((names, factor % n) for names, factor in a)
    if all(not names for names, _ in rest):  # less than n
        return whole
    return plus(whole, sizes.named(("//", rest, n), signed=sizes.may_be_negative(rest)))


def _truncate_div(sizes, a, b):
    return sizes.named(("/", a, b), signed=True) if sizes.may_be_negative(a) else _floor_div(sizes, a, b)


def _maximum(sizes, a, b):
    for size, other in (a, b), (b, a):
        if not size and not sizes.may_be_negative(other):
            return other
    return sizes.named(("max", *sorted((a, b))), signed=sizes.may_be_negative(a) and sizes.may_be_negative(b))


VALUES = {
    "Const": lambda sizes, v: [number(n) for n in constant(v)], "Shape": _shape_of, "Pack": _listed, "ConcatV2": _listed,
    "StridedSlice": _picked, "GatherV2": _gathered, "Unpack": _unpacked, "Prod": _multiplied, "Size": _count,
    "FloorDiv": _each(_floor_div), "TruncateDiv": _each(_truncate_div), "Maximum": _each(_maximum),
    "AddV2": _each(lambda sizes, a, b: plus(a, b)), "Sub": _each(lambda sizes, a, b: plus(a, minus(b))),
    "Mul": _each(lambda sizes, a, b: times(a, b)), "Neg": _each(lambda sizes, a: minus(a)),
    # What casts, or changes no more than the shape.
    **dict.fromkeys(["Cast", "EnsureShape", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"],
                    lambda sizes, v: sizes.values(v.op.inputs[0])),
}
