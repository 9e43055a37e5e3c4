"""What made a tensor, while a function is traced. TensorFlow's own ops can be asked for their inputs; calls of tfuse are kept
beside the graph by their results' names, since inside XLA they are modules that nothing can be read from."""

import collections

import tensorflow as tf
from tensorflow.python.eager import context

# act(x . kernel + bias), with the kernel as it is, or transposed. training as tfuse.linear takes it.
Product = collections.namedtuple("Product", "x kernel bias activation transposed training", defaults=[False, None])
# act(x), by the name of the activation.
Activation = collections.namedtuple("Activation", "x name")
# A batch norm or a convolution of x without activation, by the op's name and in words: again(activation, residual) is the same
# with an activation, and with a tensor that is added before it, or None; where `adds` is False it must be None.
Unfinished = collections.namedtuple("Unfinished", "x op words adds again")
# A convolution of x, its bias not given or a tensor; again(kernel, bias) is the same with others.
Convolved = collections.namedtuple("Convolved", "x kernel bias again")
# The same tensor with its channels last, where they are the second axis.
Turned = collections.namedtuple("Turned", "last")
# x with every element of an axis repeated so often.
Repeated = collections.namedtuple("Repeated", "x count axis")
# Whether a mask is causal.
Causal = collections.namedtuple("Causal", "mask answer")
# Dropout of x, by its rate and its seed, an int64 tensor of shape [].
Dropped = collections.namedtuple("Dropped", "x rate seed")
# Another tensor with the same values.
Same = collections.namedtuple("Same", "tensor")
# A result of a FusedOp inside XLA: where each of its sizes comes from, as _xla.custom_call takes it.
Sized = collections.namedtuple("Sized", "inputs op dims")
# A tape watches it: what made it is of no interest.
Watched = collections.namedtuple("Watched", "")
_KEPT = "_tfuse_made"  # the graph's attribute: {name of a tensor: {kind: what made it}}


def keep(y, what):
    """Returns y, and remembers what made it: of tensors. Of one that has a value already there is nothing to remember."""
    if not context.executing_eagerly() and isinstance(y, tf.Tensor) and all(
            isinstance(x, tf.Tensor) for x in tf.nest.flatten(what[:1])):
        if not hasattr(y.graph, _KEPT):
            setattr(y.graph, _KEPT, {})
        made = getattr(y.graph, _KEPT)
        made[y.name] = {**({} if isinstance(what, Watched) else made.get(y.name, {})), type(what): what}
    return y


def of(y, kind):
    """What made y, if something of this kind is remembered; or None."""
    return getattr(y.graph, _KEPT, {}).get(y.name, {}).get(kind)


def addends(y):
    """(a, b) where y is the sum of two tensors of one shape and dtype, whatever shape it was brought into, and nobody else has
    read it so far; both in y's shape. Else, and where y has a value already, None. TensorFlow adds up gradients like that."""
    if context.executing_eagerly() or not hasattr(y, "graph") or y.graph is not tf.compat.v1.get_default_graph():
        return None
    shapes, readers = [], 0
    while len(y.consumers()) == readers and of(y, Watched) is None:
        if y.op.type == "Reshape":
            shapes.append(y.op.inputs[1])
            y, readers = y.op.inputs[0], 1
            continue
        a, b = y.op.inputs if len(y.op.inputs) == 2 else (None, None)
        same = y.op.type == "AddN" or y.op.type == "AddV2" and a.shape.is_fully_defined() and a.shape == b.shape
        if not same or a is None or a is b:
            return None
        for shape in reversed(shapes):
            a, b = tf.reshape(a, shape), tf.reshape(b, shape)
        return a, b
    return None
