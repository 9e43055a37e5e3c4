"""Expressions as nodes, and what all users of them share: their order, substitution, simplification and writing.

A node exists once: the same operation on the same nodes is the same object. So a formula is a graph in which what is
common to several places is computed once, without anybody looking for it.
"""

import threading
import weakref

_nodes, _lock = weakref.WeakValueDictionary(), threading.RLock()
DEEPEST = 12  # what is nested deeper gets a local: the CPU's stack and the compiler's parentheses stay few


class Node:
    """op is "number" or "name", with a value, or the token of a function, with arguments."""
    __slots__ = ("op", "args", "value", "__weakref__")

    def __init__(self, op, args, value):
        self.op, self.args, self.value = op, args, value


def _node(op, args=(), value=None):
    key = op, args, repr(value)
    with _lock:
        found = _nodes.get(key)
        if found is None:
            made = Node(op, args, value)
            found = _nodes.setdefault(key, made)  # a signal handler may have made it by now
    return found


def number(value):
    return _node("number", value=float(value))


def name(text):
    return _node("name", value=text)


ZERO, ONE = number(0), number(1)


def call(op, *args):
    """The node as it is written, but for pow with a small whole exponent, which costs 20 times a product."""
    if op == "pow" and args[1] in (number(2), number(3)):
        a, square = args[0], _node("mul", (args[0], args[0]))
        return square if args[1] is number(2) else _node("mul", (square, a))
    return _node(op, args)


_FOLDS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "neg": lambda a: -a}


def simplified(op, *args):
    """The node, or a simpler one of the same value where all values are finite: not for the user's text."""
    if op in _FOLDS and all(a.op == "number" for a in args):
        return number(_FOLDS[op](*(a.value for a in args)) or 0)
    a, b, c = (*args, None, None)[:3]
    if op == "mul":
        if ZERO in args:
            return ZERO
        if ONE in args:
            return b if a is ONE else a
    elif op == "add":
        if ZERO in args:
            return b if a is ZERO else a
        if b.op == "neg":
            return simplified("sub", a, *b.args)
    elif op == "sub" and b is ZERO or op == "div" and (a is ZERO or b is ONE) or op == "pow" and b is ONE:
        return a
    elif op == "sub" and a is ZERO:
        return simplified("neg", b)
    elif op == "neg" and a.op == "neg":
        return a.args[0]
    elif op == "pow" and b is ZERO:
        return ONE
    elif op == "select" and b is c:
        return b
    return call(op, *args)


def order(roots):
    """All nodes that roots are made of, each once, after its arguments."""
    done, todo = {}, list(reversed(roots))
    while todo:
        node = todo[-1]
        missing = [a for a in reversed(node.args) if a not in done]
        if missing:
            todo += missing
        else:
            done[todo.pop()] = None
    return list(done)


def names(roots):
    """The names that roots use."""
    return {node.value for node in order(roots) if node.op == "name"}


def substitute(roots, values, make=simplified):
    """roots with nodes in the place of names."""
    new = {}
    for node in order(roots):
        if node.op == "name":
            new[node] = values.get(node.value, node)
        else:
            new[node] = make(node.op, *(new[a] for a in node.args)) if node.args else node
    return [new[root] for root in roots]


def write(roots, symbols, number, call, store):
    """Text of roots: statements that compute locals t0, t1 …, for what is used more than once or nested deep, and an
    expression for each root. symbols: the text of each name; number(value), call(op, texts) and store(local, text) give
    text."""
    nodes, text, depth, lines = order(roots), {}, {}, []
    uses = {node: roots.count(node) for node in nodes}
    for node in nodes:
        for a in node.args:
            uses[a] += 1
    for node in nodes:
        if not node.args:
            text[node], depth[node] = symbols[node.value] if node.op == "name" else number(node.value), 0
            continue
        text[node], depth[node] = call(node.op, [text[a] for a in node.args]), 1 + max(depth[a] for a in node.args)
        if uses[node] > 1 or depth[node] == DEEPEST:
            local = "t%d" % len(lines)
            lines.append(store(local, text[node]))
            text[node], depth[node] = local, 0
    return lines, [text[root] for root in roots]
