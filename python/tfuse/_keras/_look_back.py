"""Fusion by looking back. While a function is traced, what made a tensor is known. When an activation, a gate, a norm or a
loss is traced, and its input comes from an op that can be joined with it, the op that joins the two is called. The first one
then has no consumers, and is pruned: a tf.function leaves out what no result needs, and so does XLA.

Who will read a tensor later is not known. If somebody reads the first one after all, it is computed beside the joined op, and
results are the same. Where somebody has read it already, or a tape watches it, nothing is joined. A joined op is a function of
the first one's inputs, not of its result: a gradient with respect to that result is not found, unless the tape was told to
watch it. An Identity is not looked through, for recomputation (tf.recompute_grad, keras.remat) marks with it what a gradient
is taken with respect to.

tfuse.enable(look_back=False) leaves all of this out.
"""

import contextlib
import threading

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from tfuse._core import _explain, _library, _made, _philox, _sizes
from tfuse._core._op import FLOATS
from tfuse.elementwise.dropout import dropout
from tfuse.elementwise.gated import gated
from tfuse.products.linear import fused

on = True  # as enable() was told
_AND = " and another tensor"
_running = threading.local()  # .casts: see casts_by_keras()


# ---- what is joined ----


def activation(x, name):
    """act(x), joined with the product that made x, whatever shape it was brought into, or with the batch norm or convolution;
    None where there is no such."""
    made, residual = _unfinished(x)
    if made is not None:
        note(made.op, "%s of %s%s" % (name, made.words, "" if residual is None else _AND), made.x)
        return made.again(name, residual)
    product, shapes = product_before(x)
    if product is None or product.activation != "linear" or product.transposed:
        return None
    note("Linear", "%s of a product" % name, product.x)
    y = fused(product.x, product.kernel, product.bias, name, training=product.training)
    for shape in shapes:
        y = tf.reshape(y, shape)
    return y


def add(x1, x2):
    """x1 + x2, where one of them is a batch norm or convolution that can add the other; None where none is. An activation that
    follows is joined, too."""
    if not (_are_alike(x1, x2) and x1 is not x2):
        return None
    for x, other in (x1, x2), (x2, x1):
        made = _made.of(x, _made.Unfinished) if readers_of(x) == 0 else None
        if made is not None and made.adds:
            note(made.op, "the sum of %s%s" % (made.words, _AND), made.x)
            whole = lambda name, _=None: made.again(name, other)
            return _made.keep(whole("linear"), made._replace(words=made.words + _AND, adds=False, again=whole))
    return None


def gate(x1, x2):
    """x1 * x2, where one of them is an activation; None where none is."""
    return _gate(x1, x2, readers=0)


def _are_alike(a, b):
    """Whether both are made in this function, with one dtype and shape."""
    return on and in_graph(a) and in_graph(b) and a.dtype == b.dtype and _sizes.same_shape(a, b)


def gate_before(x):
    """x, or the same by one op where x is a * b, as Python writes it, and one of them is an activation. For what reads x."""
    if not (on and in_graph(x)):
        return x
    same = _made.of(x, _made.Same)
    if same is not None or x.op.type != "Mul" or readers_of(x):
        return x if same is None else same.tensor
    y = _gate(*x.op.inputs, readers=1)
    if y is None:
        return x
    _made.keep(x, _made.Same(y))
    return y


def _gate(a, b, readers):
    """gate(a, b), where so many have read each of the two."""
    if not _are_alike(a, b):
        return None
    for gating, other in (a, b), (b, a):
        x, name = _activated(gating, readers)
        if x is not None:
            note("Gated", "%s times another tensor" % name, x)
            return gated(x, other, name)
    return None


def dropped(x, rate, generator):
    """tfuse.dropout, which a norm of a sum with it takes in."""
    x, seed = gate_before(x), _philox.seed_tensor(generator)
    return _made.keep(dropout(x, rate, seed), _made.Dropped(x, rate, seed))


def norm(h, normalise):
    """normalise(h) for a norm over h's last axis; or normalise(x, residual)'s result, which is a pair of the norm and of the sum,
    where h is x + residual; or, with its options, that of dropout(x) + residual. Whoever adds to h next, and takes the norm of
    that, gets this sum in its place: so a whole chain of additions, as transformers have it, is run by their norms."""
    parts = _added(h)
    if parts is None:
        return normalise(h)
    x, residual, options = parts
    note("Norm", "the norm of a sum with dropout" if options else "the norm of a sum", h)
    y, total = normalise(x, residual, **options)
    _made.keep(h, _made.Same(total))
    return y


def uncast(x):
    """What x was made from by a cast to a wider dtype, while a function is traced; or x. An op that computes in the wider
    dtype gives the same result for both, and its gradient is cast to the narrower one in any case."""
    casts = on and in_graph(x) and _casts(x.op, widens=True) and _made.of(x, _made.Watched) is None
    return x.op.inputs[0] if casts else x


def unrounded(x):
    """What x was made from by a cast to a narrower dtype, while a function is traced; or x. For an op that rounds it itself."""
    rounds = on and in_graph(x) and _casts(x.op, widens=False) and _made.of(x, _made.Watched) is None
    return x.op.inputs[0] if rounds else x


def logits_before(x):
    """uncast(x) inside of casts_by_keras(True)."""
    return uncast(x) if getattr(_running, "casts", False) else x


@contextlib.contextmanager
def casts_by_keras(does):
    """Inside, whether Keras casts logits itself: nobody else sees the result, or asks for a gradient by it."""
    _running.casts = does
    try:
        yield
    finally:
        _running.casts = False


def note(op, why, x):
    _explain.note(op, "joined by looking back", why, [x])


# ---- looking back ----


def product_before(y, widened=False, readers=0):
    """(_made.Product, shapes): y is the product, brought into these shapes one after the other; (None, []) where it is none.
    widened: y may be cast to a wider dtype on the way. readers: how many of y's, who are known to go, there may be."""
    shapes = []
    while on and in_graph(y) and readers_of(y) <= readers and not _library.without_gpu():
        product = _made.of(y, _made.Product) or _stock_product(y.op)
        if product is not None:
            return (product, shapes[::-1]) if product.x.dtype in FLOATS else (None, [])
        if y.op.type == "Reshape":
            shapes.append(y.op.inputs[1])
        elif not (widened and _casts(y.op, widens=True)):
            break
        y, readers = y.op.inputs[0], 1
    return None, []


def _added(h):
    """(a, b, {}) where h is a + b, two tensors of one shape; (a, b, options) where it is dropout(a) + b; or None."""
    if not (on and in_graph(h) and h.op.type == "AddV2" and readers_of(h) == 0 and h.dtype in FLOATS):
        return None
    a, b = h.op.inputs
    if a is b or not _sizes.same_shape(a, b):
        return None
    now = lambda x: _made.of(x, _made.Same).tensor if _made.of(x, _made.Same) else x
    for x, residual in (b, a), (a, b):
        made = _made.of(x, _made.Dropped) if readers_of(x) == 1 else None
        if made is not None:
            return made.x, now(residual), {"dropout": made.rate, "seed": made.seed}
    return now(b), now(a), {}


def _unfinished(y):
    """(_made.Unfinished, residual): y is a batch norm or convolution, and residual None; or the sum of the two. Else
    (None, None)."""
    if not (on and in_graph(y) and readers_of(y) == 0):
        return None, None
    if y.op.type != "AddV2" or not _sizes.same_shape(*y.op.inputs):
        return _made.of(y, _made.Unfinished), None
    for x, other in (y.op.inputs, y.op.inputs[::-1]):
        made = _made.of(x, _made.Unfinished) if readers_of(x) == 1 else None
        if made is not None and made.adds and other is not x:
            return made, other
    return None, None


def _activated(y, readers):
    """(x, name of an activation): y is act(x), and so many have read it. Or (None, ""). Between the two, x may be cast to a wider
    dtype, and back."""
    if readers_of(y) != readers:
        return None, ""
    product = _made.of(y, _made.Product)
    if product is not None and product.activation != "linear":
        return fused(product.x, product.kernel, product.bias), product.activation
    wide = y.op.inputs[0] if _casts(y.op, widens=False) and readers_of(y.op.inputs[0]) == 1 else y
    made = _made.of(wide, _made.Activation)
    if made is None:
        return None, ""
    x = made.x if wide is y else uncast(made.x)
    return (x, made.name) if x.dtype == y.dtype else (None, "")


def readers_of(x):
    """How many ops and tapes read a tensor so far. Inside XLA, what carries the gradient of a call takes its inputs, too, by
    IdentityN."""
    return sum(op.type != "IdentityN" for op in x.consumers()) + (_made.of(x, _made.Watched) is not None)


def in_graph(x):
    """Whether x is made in the function that is being traced, not in one around it: a loop would join in every iteration."""
    return isinstance(x, tf.Tensor) and not isinstance(x, EagerTensor) and x.graph == tf.compat.v1.get_default_graph()


def _casts(op, widens):
    """Whether an op makes a wider float of a float, or a narrower one."""
    if op.type != "Cast":
        return False
    source, result = op.inputs[0].dtype, op.outputs[0].dtype
    return source in FLOATS and result in FLOATS and source != result and (source.size < result.size) == widens


def _stock_product(op):
    """Of TensorFlow's own ops: the product of x with one matrix, and a bias added to it. Else None."""
    bias = None
    if op.type in ("BiasAdd", "AddV2") and op.inputs[1].shape.rank == 1 and readers_of(op.inputs[0]) == 1:
        if op.type == "BiasAdd" and op.get_attr("data_format") != b"NHWC":
            return None
        op, bias = op.inputs[0].op, op.inputs[1]
    turns = {"MatMul": ("transpose_a", "transpose_b"), "BatchMatMulV2": ("adj_x", "adj_y")}.get(op.type)
    if not turns or op.get_attr(turns[0]):
        return None
    x, kernel = op.inputs
    if x.shape.rank is None or x.shape.rank < 2 or kernel.shape.rank != 2:
        return None
    kernel, transposed = _matrix(kernel, op.get_attr(turns[1]))
    if bias is not None and not _sizes.same_size(bias, 0, kernel, 0 if transposed else 1):
        return None
    return _made.Product(x, kernel, bias, "linear", transposed)


def _matrix(kernel, transposed):
    """A matrix as it lies in memory, and whether it is multiplied transposed."""
    while True:
        op = kernel.op
        if op.type == "Transpose" and np.array_equal(tf.get_static_value(op.inputs[1]), [1, 0]):
            transposed = not transposed
        elif not (op.type == "Reshape" and kernel.shape.is_fully_defined() and _sizes.same_shape(kernel, op.inputs[0])):
            return kernel, transposed
        kernel = op.inputs[0]
