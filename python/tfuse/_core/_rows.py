"""Axes for ops that work along the last axis: others are moved there, several are made one."""

import math
import numbers
import operator

import numpy as np
import tensorflow as tf


class Rows:
    """How tensors shaped like x become tensors whose last axis is all of `axis`, in the order they have in x.

    Args:
      op: name for messages.
      x: the tensor.
      axis: an integer, NumPy's too, or several of them; where it is the last alone, nothing is done, and x may even have an unknown rank.
    """

    def __init__(self, op, x, axis):
        axes = axes_of(op, axis)
        self._moved = self._merged = False
        if axes == [-1]:
            return
        rank = x.shape.rank
        if rank is None:
            raise ValueError("%s: x must have a known number of dimensions where axis is not -1, got axis %s" % (op, axis))
        if not axes or not all(-rank <= a < rank for a in axes) or len({a % rank for a in axes}) < len(axes):
            raise ValueError("%s: axis must be one or several axes of x %s, got %s" % (op, x.shape.as_list(), axis))
        self._axes = sorted(a % rank for a in axes)
        self._order = [a for a in range(rank) if a not in self._axes] + self._axes
        self._moved = self._order != list(range(rank))
        self._merged = len(axes) > 1
        if self._merged:
            self._shape = [size(x, a) for a in self._order]

    def take(self, x):
        """x, with rows for its last axis."""
        if self._moved:
            x = tf.transpose(x, self._order)
        if self._merged:
            kept = self._shape[:-len(self._axes)]
            x = tf.reshape(x, [*kept, product(self._shape[len(kept):])])
        return x

    def take_broadcast(self, x):
        """The same for a tensor that broadcasts to the first one."""
        if not self._moved and not self._merged:
            return x
        x = tf.reshape(x, [1] * (len(self._order) - x.shape.rank) + sizes(x))
        if self._moved:
            x = tf.transpose(x, self._order)
        if self._merged:  # what differs along some of the merged axes must be spelled out along all of them
            kept = sizes(x, 0, len(self._order) - len(self._axes))
            x = tf.broadcast_to(x, [*kept, *self._shape[len(kept):]])
            x = tf.reshape(x, [*kept, product(self._shape[len(kept):])])
        return x

    def give_back(self, y):
        """What take() did, undone."""
        if self._merged:
            y = tf.reshape(y, self._shape)
        if self._moved:
            y = tf.transpose(y, [self._order.index(a) for a in range(len(self._order))])
        return y


def axes_of(op, axis):
    """One or several axes as a list of Python's integers. A tensor of them must be known while a function is traced."""
    if isinstance(axis, numbers.Integral):
        return [operator.index(axis)]
    known = tf.get_static_value(axis) if isinstance(axis, tf.Tensor) else axis
    if known is None:
        raise ValueError("%s: axis must be known when a function is traced, got %s" % (op, axis))
    try:
        return list(map(operator.index, np.ravel(known).tolist()))
    except TypeError:
        raise ValueError("%s: axis must be an integer, or several, got %r" % (op, axis)) from None


def count(op, name, value):
    """How many of something, which a float does not say; None is returned as it is."""
    dtype = getattr(value, "dtype", None)
    if isinstance(value, float) or dtype is not None and tf.as_dtype(dtype).is_floating:
        raise ValueError("%s: %s must be an integer, got %s" % (op, name, value))
    return value


def integers(op, name, dtype):
    """A dtype of results that are counts or places."""
    dtype = tf.as_dtype(dtype)
    if not dtype.is_integer:
        raise ValueError("%s: %s must be a dtype of integers, got %s" % (op, name, dtype.name))
    return dtype


def size(x, axis):
    """A number, or a tensor where it is not known yet."""
    shape = x.shape
    known = None if shape.rank is None else shape[axis]
    return tf.shape(x)[axis] if known is None else known


def sizes(x, first=0, end=None):
    """Those of the axes from one on, and before another."""
    return [size(x, axis) for axis in range(x.shape.rank)[first:end]]


def product(sizes):
    known = math.prod(s for s in sizes if isinstance(s, int))
    for s in sizes:
        known = known if isinstance(s, int) else s * known
    return known


def tensor(x):
    """x as a tensor, if it is not one: a variable, an array, a list."""
    return x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x)


def flat(x):
    """x as a vector. TensorFlow reshapes int32 in the host's memory, so on a GPU all of it would be copied there and back:
    it is reshaped as float32 with the same bits."""
    if x.shape.rank == 1:
        return x
    if x.dtype != tf.int32:
        return tf.reshape(x, [-1])
    return tf.bitcast(tf.reshape(tf.bitcast(x, tf.float32), [-1]), tf.int32)
