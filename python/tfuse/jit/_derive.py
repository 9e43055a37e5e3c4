"""Derivatives: nodes to nodes, backwards through the formula.

A gradient goes only where its value was used: that of "c ? a : b" goes to a where c holds, and to b elsewhere. So every
gradient comes with its *region*, a condition, or None for everywhere. Derivatives are multiplied inside of the region, and
what is outside is left out at the end, by a select: there the branch that was not taken may have any derivative, NaN as well.
"""

import functools

from tfuse.jit import _tree
from tfuse.jit._functions import FUNCTIONS
from tfuse.jit._parse import template


def derive(seeds, names):
    """The gradients of names, a list of nodes; a node ZERO where there is none.

    Args:
      seeds: [(node, its gradient), …]: what the formula gives, and the gradients that come in for it.
      names: of which variables.
    """
    gradients = {}  # of each node, by region

    def add(node, region, d):
        while d.op == "select" and _tree.ZERO in d.args[1:]:
            condition, then, other = d.args
            taken = other is _tree.ZERO
            region, d = _within(region, condition if taken else _opposite(condition)), then if taken else other
        if d is not _tree.ZERO:
            own = gradients.setdefault(node, {})
            own[region] = _tree.simplified("add", own[region], d) if region in own else d

    for node, seed in seeds:
        add(node, None, seed)
    for node in reversed(_tree.order([node for node, _ in seeds])):
        if node in gradients and node.args:
            region, d = _in_one_region(_merged(gradients[node]))
            values = dict(zip("abc", node.args), y=node, d=d)
            for argument, text in zip(node.args, FUNCTIONS[node.op].gradients):
                if argument.op != "number":
                    add(argument, region, _tree.substitute([template(text)], values)[0])
    return [_sum(_merged(gradients.get(_tree.name(name), {}))) for name in names]


def _within(region, condition):
    return condition if region is None else _tree.call("and", region, condition)


def _opposite(condition):
    return condition.args[0] if condition.op == "not" else _tree.call("not", condition)


def _split(region):
    """The region that this one is a part of, and the condition that cuts it out."""
    return region.args if region.op == "and" else (None, region)


def _merged(terms):
    """The same gradients, where those of two regions that make up a larger one are one of that."""
    terms, todo = dict(terms), list(terms)
    while todo:
        region = todo.pop()
        if region is None or region not in terms:
            continue
        whole, condition = _split(region)
        other = _within(whole, _opposite(condition))
        if other not in terms:
            continue
        a, b = terms.pop(region), terms.pop(other)
        both = _tree.simplified("select", condition.args[0], b, a) if condition.op == "not" else _tree.simplified(
            "select", condition, a, b)
        terms[whole] = _tree.simplified("add", terms[whole], both) if whole in terms else both
        todo.append(whole)
    return terms


def _in_one_region(terms):
    """Their common region, and their sum inside of it."""
    if len(terms) == 1:
        return next(iter(terms.items()))
    region = None if None in terms else functools.reduce(functools.partial(_tree.call, "or"), terms)
    return region, _sum(terms)


def _sum(terms):
    masked = [d if region is None else _tree.call("select", region.args[0], _tree.ZERO, d) if region.op == "not" else
              _tree.call("select", region, d, _tree.ZERO) for region, d in terms.items()]
    return functools.reduce(functools.partial(_tree.simplified, "add"), masked, _tree.ZERO)
