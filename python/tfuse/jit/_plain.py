"""Formulas in TensorFlow's own ops, all computed in R: casting to and from dtypes of tensors is the caller's."""

import functools

import tensorflow as tf

from tfuse._core._op import real
from tfuse.jit import _tree
from tfuse.jit._functions import FUNCTIONS

# Reductions that TensorFlow has, and what they begin with.
REDUCTIONS = {"add": (tf.reduce_sum, 0.0), "mul": (tf.reduce_prod, 1.0),
              "max": (tf.reduce_max, -float("inf")), "min": (tf.reduce_min, float("inf"))}


def arithmetic(tensors):
    """R: what tensors of these dtypes are computed in."""
    return tf.float64 if any(real(t.dtype) == tf.float64 for t in tensors) else tf.float32


def evaluate(roots, values, dtype):
    """The values of roots, where names have the given ones."""
    found = {}
    for node in _tree.order(roots):
        if node.op == "name":
            found[node] = values[node.value]
        elif node.op == "number":
            found[node] = tf.constant(node.value, dtype)
        else:
            found[node] = FUNCTIONS[node.op].tensorflow(*(found[a] for a in node.args))
    return [found[root] for root in roots]


def to_shape(y, tensors):
    """y in the shape that tensors broadcast to: a formula need not use all of its inputs."""
    shape = functools.reduce(tf.broadcast_static_shape, (t.shape for t in tensors))
    if shape.is_fully_defined():
        return y if y.shape == shape else tf.broadcast_to(y, shape)
    return tf.broadcast_to(y, functools.reduce(tf.broadcast_dynamic_shape, (tf.shape(t) for t in tensors)))


def known_reduction(reduce):
    """The token of a reduction that TensorFlow has, or None. reduce: a node in a and b."""
    both = {_tree.name("a"), _tree.name("b")}
    return reduce.op if reduce.op in REDUCTIONS and set(reduce.args) == both else None


def reduced(x, reduce, identity, dtype):
    """x [..., n] to [..., 1] by a node in a and b, beginning with a node `identity`."""
    combine = lambda a, b: evaluate([reduce], {"a": a, "b": b}, dtype)[0]
    first, = evaluate([identity], {}, dtype)
    known = known_reduction(reduce)
    if known:
        f, own = REDUCTIONS[known]
        y = f(x, -1, keepdims=True)
        return y if identity.op == "number" and identity.value == own else combine(y, first)
    return _by_halves(x, combine, first)


def _by_halves(x, combine, first):
    """Neighbours are combined until one is left. A size that is not known is made a power of 2 in a loop of its own."""
    def halve(x):
        more = tf.shape(x)[-1] % 2 if x.shape[-1] is None else x.shape[-1] % 2
        x = tf.concat([x, tf.fill(tf.concat([tf.shape(x)[:-1], [more]], 0), first)], -1)
        return combine(x[..., ::2], x[..., 1::2])

    if x.shape.rank is not None and x.shape[-1] is not None:
        if x.shape[-1] == 0:
            return tf.fill(tf.concat([tf.shape(x)[:-1], [1]], 0), first)
        while x.shape[-1] > 1:
            x = halve(x)
        return combine(x, first)
    any_size = tf.TensorShape([*x.shape[:-1], None]) if x.shape.rank is not None else tf.TensorShape(None)
    x = tf.concat([x, tf.fill(tf.concat([tf.shape(x)[:-1], [1]], 0), first)], -1)
    x, = tf.while_loop(lambda x: tf.shape(x)[-1] > 1, lambda x: [halve(x)], [x], [any_size])
    return tf.ensure_shape(x, any_size if any_size.rank is None else [*any_size[:-1], 1])
