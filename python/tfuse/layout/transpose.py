"""Axes in another order: transpose, and what is a transposition between two reshapes."""

import numpy as np
import tensorflow as tf

from tfuse._core import _explain, _rows
from tfuse._core._op import MOST_AXES, FusedOp, composite


def _word(perm):
    """A permutation as the op takes it: four bits for each axis, the lowest for the first."""
    return sum(axis << 4 * i for i, axis in enumerate(perm))


def _axes(word, rank):
    return [word >> 4 * i & 15 for i in range(rank)]


_transpose = FusedOp(
    "Transpose", plain=lambda x, perm: tf.transpose(x, _axes(perm, x.shape.rank)), gradient=lambda node, dy: _transpose(
        dy, perm=_word(np.argsort(_axes(node.attr("perm"), node.inputs[0].shape.rank)).tolist())))


def _joined(x, perm):
    """x with fewer axes and the permutation that is then the same: those of one element are dropped, and neighbours that
    stay neighbours are one."""
    sizes, runs = _rows.sizes(x), []
    for axis in perm:
        if isinstance(sizes[axis], int) and sizes[axis] == 1:
            continue
        if runs and runs[-1][-1] + 1 == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    places = sorted(range(len(runs)), key=lambda i: runs[i][0])
    return (tf.reshape(x, [_rows.product([sizes[a] for a in runs[i]]) for i in places]),
            [places.index(i) for i in range(len(runs))])


def _transposed(a, perm):
    """a with its axes in the order of perm, a list; any number of axes."""
    if len(perm) <= MOST_AXES:
        return _transpose(a, perm=_word(perm))
    fewer, order = _joined(a, perm)
    if len(order) > MOST_AXES:
        raise ValueError("transpose: a has %d axes; at most %d that move apart are supported, got %d" % (
            len(perm), MOST_AXES, len(order)))
    sizes = _rows.sizes(a)
    return tf.reshape(_transpose(fewer, perm=_word(order)) if order else fewer, [sizes[axis] for axis in perm])


@composite
def transpose(a, perm=None, conjugate=False, name=None):
    """Returns a with its axes in another order, as tf.transpose does: axis i of the result is axis perm[i] of a.

    Args:
      a: tensor of float32, float16, bfloat16, float64, int32, int64 or bool; others are left to TensorFlow.
      perm: each axis once; None: all in reverse.
      conjugate: whether complex numbers are conjugated.
      name: of no effect.

    Example:
      x = tf.random.normal([2, 3, 4])
      y = tfuse.transpose(x, [0, 2, 1])
    """
    a = tf.convert_to_tensor(a)
    if _is_left("transpose", a):
        return tf.transpose(a, perm, conjugate)
    rank, order = a.shape.rank, perm if perm is None else tf.get_static_value(tf.convert_to_tensor(perm))
    if order is None and (perm is not None or rank is None):  # known when the function runs, and not before
        return tf.transpose(a, perm)
    order = list(range(rank))[::-1] if perm is None else np.asarray(order).tolist()
    if not isinstance(order, list) or not all(isinstance(axis, int) for axis in order) or (
            rank is not None and len(order) != rank):
        raise ValueError("transpose: perm must have one entry for each axis of a %s, got %s" % (a.shape, perm))
    axes = [axis + len(order) if axis < 0 else axis for axis in order]
    if sorted(axes) != list(range(len(order))):
        raise ValueError("transpose: perm must name each axis of a %s once, got %s" % (a.shape, order))
    if rank is None:
        a = tf.ensure_shape(a, [None] * len(axes))
    return _transposed(a, axes) if axes else tf.identity(a)


def _is_left(op, x):
    """Whether an op is left to TensorFlow, which has it for all dtypes."""
    left = x.dtype not in _transpose.first_dtypes
    if left:
        _explain.note(op, "plain TensorFlow", "tfuse has no kernels for %s" % x.dtype.name, [x], "called")
    return left


def _blocks(op, x, block, data_format, inward):
    """tf.nn.space_to_depth where `inward`, else tf.nn.depth_to_space, as a transposition between two reshapes."""
    x = tf.convert_to_tensor(x)
    if _is_left(op, x):
        return getattr(tf.nn, op)(x, block, data_format)
    if data_format not in ("NHWC", "NCHW"):
        raise ValueError("%s: data_format must be 'NHWC' or 'NCHW', got %r" % (op, data_format))
    if not isinstance(block, (int, np.integer)) or block < 2:
        raise ValueError("%s: block_size must be an integer of at least 2, got %r" % (op, block))
    if x.shape.rank is None:
        x = tf.ensure_shape(x, [None] * 4)
    if x.shape.rank != 4:
        raise ValueError("%s: input must have 4 axes, %s, got shape %s" % (op, data_format, x.shape))
    sizes = dict(zip(data_format, _rows.sizes(x)))
    divided = {"height": ("H", block), "width": ("W", block)} if inward else {"depth": ("C", block * block)}
    for what, (axis, by) in divided.items():
        if isinstance(sizes[axis], int) and sizes[axis] % by:
            raise ValueError("%s: input's %s must be a multiple of %d, got %d" % (op, what, by, sizes[axis]))
    n, h, w, c = (sizes[axis] for axis in "NHWC")
    if inward:
        h, w = h // block, w // block
        before, after = {"NHWC": [n, h, block, w, block * c], "NCHW": [n, c, h, block, w, block]}, (h, w, c * block * block)
    else:
        c = c // (block * block)
        before, after = {"NHWC": [n, h, w, block, block * c], "NCHW": [n, block, block, c, h, w]}, (h * block, w * block, c)
    order = [0, 1, 3, 2, 4] if data_format == "NHWC" else [0, 3, 5, 1, 2, 4] if inward else [0, 3, 4, 1, 5, 2]
    sizes = dict(zip("NHWC", (n, *after)))
    return tf.reshape(_transposed(tf.reshape(x, before[data_format]), order), [sizes[axis] for axis in data_format])


@composite
def space_to_depth(input, block_size, data_format="NHWC", name=None):
    """Returns squares of block_size * block_size pixels as pixels of as many times the depth, as tf.nn.space_to_depth does.

    Args:
      input: tensor [batch, height, width, depth], or [batch, depth, height, width] for "NCHW".
      block_size: at least 2; height and width are multiples of it.
      data_format: "NHWC" or "NCHW".
      name: of no effect.

    Example:
      y = tfuse.space_to_depth(tf.random.normal([1, 4, 6, 3]), 2)     # [1, 2, 3, 12]
    """
    return _blocks("space_to_depth", input, block_size, data_format, inward=True)


@composite
def depth_to_space(input, block_size, data_format="NHWC", name=None):
    """Returns pixels as squares of block_size * block_size pixels of less depth, as tf.nn.depth_to_space does.

    Args:
      input: tensor [batch, height, width, depth], or [batch, depth, height, width] for "NCHW".
      block_size: at least 2; depth is a multiple of its square.
      data_format: "NHWC" or "NCHW".
      name: of no effect.

    Example:
      y = tfuse.depth_to_space(tf.random.normal([1, 2, 3, 12]), 2)    # [1, 4, 6, 3]
    """
    return _blocks("depth_to_space", input, block_size, data_format, inward=False)
