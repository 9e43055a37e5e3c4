"""Which sizes are surely equal, while a function is traced and not all of them are known.

A size is a number, or it has a name: that of the axis it first comes from. Ops are asked where the axes of their results come
from, back to where nobody can tell: an input of the function, a loop, an op that is not known here. What is there has a name of
its own. So two sizes of one name are one number whenever the function runs, and of two names nothing is known: one may be n
and the other 1, which TensorFlow stretches.
"""

import tensorflow as tf

from tfuse._core import _made, _op
from tfuse._core._size_rules import RULES
from tfuse._core._size_values import ONE, VALUES, number

_KEPT = "_tfuse_sizes"  # the graph's attribute: a Sizes
_MOST = 64  # sizes that are asked for one inside the other, each a few calls of Python


def same_shape(a, b):
    """Whether two tensors have one shape, with an axis or more, whatever the sizes will be."""
    if not (a.shape.rank and b.shape.rank) or a.shape.as_list() != b.shape.as_list():
        return False
    return all(same_size(a, axis, b, axis) for axis in range(a.shape.rank))


def same_size(a, of_a, b, of_b):
    """Whether an axis of one tensor is as large as an axis of another."""
    m, n = a.shape[of_a], b.shape[of_b]
    if m is not None or n is not None:
        return m == n
    if a.graph is not b.graph:
        return False
    sizes = _of(a.graph)
    return sizes.size(a, of_a % a.shape.rank) == sizes.size(b, of_b % b.shape.rank)


def _of(graph):
    if not hasattr(graph, _KEPT):
        setattr(graph, _KEPT, Sizes())
    return getattr(graph, _KEPT)


def _sized_by_node(x):
    """The _made.Sized of a result of a FusedOp's node; or None."""
    op = _op.of_node(x.op)
    if op is None:
        return None
    dims = op.dims_of(x.op)
    return _made.Sized(x.op.inputs, op, dims and dims[x.value_index])


class Sizes:
    """The sizes of a graph's tensors, found when they are asked for."""

    def __init__(self):
        self._sizes = {}  # by name of a tensor and axis
        self._values = {}  # by name of a tensor of integers
        self._names = {}  # what has a name, and that
        self._signed = set()  # the names of what may be less than 0
        self._depth = 0

    def size(self, x, axis):
        """Of an axis, counted from 0."""
        return self._found(x, axis)[0]

    def _found(self, x, axis):
        self._depth += 1
        try:
            return self._walk(x, axis)
        finally:
            self._depth -= 1

    def _walk(self, x, axis):
        """The size, and what is so wherever x is computed: pairs of sizes, of which the first is 1 or the second."""
        path, size, facts = [], None, frozenset()
        while size is None:
            if x.shape.rank is not None and x.shape[axis] is not None:
                size = number(x.shape[axis])
            elif (x.name, axis) in self._sizes:
                size, facts = self._sizes[x.name, axis]
            else:
                lost = x.shape.rank is None or self._depth > _MOST
                before, known = (None, frozenset()) if lost else self._before(x, axis)
                path.append(((x.name, axis), known))
                if isinstance(before, list) and len(before) == 1:
                    x, axis = before[0]
                elif isinstance(before, list):
                    sizes, all_facts = zip(*(self._found(*place) for place in before))
                    facts = frozenset().union(known, *all_facts)
                    size = self._stretched(set(sizes), facts)
                else:
                    size = self.named((x.name, axis)) if before is None else before
        for place, known in reversed(path):
            facts |= known
            self._sizes[place] = size, facts
        return size, facts

    def _before(self, x, axis):
        """Where a size comes from: a list of tensors and axes, of which those that are 1 are stretched; or the size; or None
        where that is not known. And what the op that made x takes for granted of others."""
        made = _made.of(x, _made.Sized) or _sized_by_node(x)
        if made is None:
            rule = RULES.get(x.op.type)
            return rule and rule(self, x, axis), frozenset()
        inputs, op, dims = made
        dim = dims and dims[axis]  # a number is none of a size that is not known
        places = dim if isinstance(dim, list) else [dim] if isinstance(dim, tuple) else []
        facts = frozenset((self.size(inputs[i], a), self.size(inputs[place[0]], place[1]))
                          for place in places for i, a in op.stretched_to(inputs, *place))
        return [(inputs[i], a) for i, a in places] or None, facts

    def _stretched(self, sizes, facts):
        more = sorted(sizes - {ONE})
        for size in list(more):
            if any((size, other) in facts for other in more if other != size):
                more.remove(size)
        return more[0] if len(more) == 1 else self.named(("stretched", *more)) if more else ONE

    def named(self, what, signed=False):
        """The size of what has no other: the same for the same."""
        name = self._names.setdefault(what, len(self._names))
        if signed:
            self._signed.add(name)
        return ((name,), 1),

    def may_be_negative(self, size):
        return any(factor < 0 or not self._signed.isdisjoint(names) for names, factor in size)

    def shape(self, x):
        return [self.size(x, axis) for axis in range(x.shape.rank)]

    def values(self, v):
        """The values of a tensor with one axis or none, as sizes; None where they are no integers, or nobody knows how many."""
        count = 1 if v.shape.rank == 0 else v.shape[0] if v.shape.rank == 1 else None
        if count is None or v.dtype not in (tf.int32, tf.int64):
            return None
        if v.name not in self._values:
            rule = VALUES.get(v.op.type)
            found = rule(self, v) if rule else None
            if found is None or len(found) != count:
                found = [self.named((v.name, "value", i), signed=True) for i in range(count)]
            self._values[v.name] = found
        return self._values[v.name]
