"""Derivatives: nodes to nodes, backwards through the formula."""

from tfuse.jit import _tree
from tfuse.jit._functions import FUNCTIONS
from tfuse.jit._parse import template


def derive(seeds, names):
    """The gradients of names, a list of nodes; a node ZERO where there is none.

    Args:
      seeds: [(node, its gradient), …]: what the formula gives, and the gradients that come in for it.
      names: of which variables.
    """
    gradients = {}

    def add(node, d):
        if d is not _tree.ZERO:
            gradients[node] = _tree.simplified("add", gradients[node], d) if node in gradients else d

    for node, seed in seeds:
        add(node, seed)
    for node in reversed(_tree.order([node for node, _ in seeds])):
        if node in gradients and node.args:
            values = dict(zip("abc", node.args), y=node, d=gradients[node])
            for argument, text in zip(node.args, FUNCTIONS[node.op].gradients):
                if argument.op != "number":
                    add(argument, _tree.substitute([template(text)], values)[0])
    return [gradients.get(_tree.name(name), _tree.ZERO) for name in names]
