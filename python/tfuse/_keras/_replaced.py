"""What the tables of tfuse.enable() are made of: the modules _replaced_*.py name what it replaces, and what takes its place.

A replacement is called with the function it replaces, then with that one's arguments. A guard gets the arguments and
returns why tfuse does not serve them, or "".
"""

import collections
import inspect
import operator
import sys
import types

import keras
import tensorflow as tf

from tfuse._core import _library
from tfuse._core._explain import reason
from tfuse._core._op import FLOATS, MOST_AXES

_FLOATS = {dtype.name for dtype in FLOATS}
# part_of: what rows are installed for together, or not at all, in words; "" for a row that stands alone.
Row = collections.namedtuple("Row", "module attribute serve guard in_place part_of", defaults=[None, False, ""])


# ---- where Keras keeps what the tables name ----


def backend_module(name):
    """The module of Keras's functions on TensorFlow that is called nn, numpy, math or image: from Keras 3.16 on, in a package
    ops."""
    here, later = ("keras.src.backend.tensorflow." + place for place in (name, "ops." + name))
    return later if later in sys.modules else here


def class_in(module, *names):
    """The first of the names that releases of Keras have given to a class of a module, or the first of all."""
    return next((name for name in names if hasattr(sys.modules.get(module), name)), names[0])


# ---- guards ----


def by_name(serve, why_not):
    """A guard that hands on the arguments of serve, which it is for, by name: why_not(a) reads a.layer, a.inputs, …"""
    known = inspect.signature(serve)
    names = list(known.parameters)[1:]
    defaults = {name: known.parameters[name].default for name in names if known.parameters[name].default is not inspect._empty}

    def guard(*inputs, **options):
        values = {**defaults, **dict(zip(names, inputs)), **options}
        if len(inputs) > len(names) or len(values) != len(names) or not options.keys().isdisjoint(names[:len(inputs)]):
            known.bind(None, *inputs, **options)  # raises what a call would, but takes longer than all else here
        return why_not(types.SimpleNamespace(**values))

    return guard


def or_own(*ways):
    """What serves by the first of these functions whose result is not None, and leaves the call to Keras where none has one."""
    def serve(own, *inputs, **options):
        for way in (*ways, own):
            y = way(*inputs, **options)
            if y is not None:
                return y

    return serve


def on_a_gpu(guard, what):
    """A guard for what is served on a GPU only."""
    def both(*inputs, **options):
        if _library.without_gpu():
            return "there is no GPU, and TensorFlow's own %s is faster on the CPU" % what
        return guard(*inputs, **options)

    return both


# ---- what tfuse takes ----


@reason
def not_taken(*tensors):
    """Why tfuse does not take these tensors. None is no tensor and is taken."""
    for x in tensors:
        if x is None:
            continue
        yield isinstance(x, (tf.SparseTensor, tf.RaggedTensor, tf.IndexedSlices)) and "a %s is not dense" % type(x).__name__
        yield not (hasattr(x, "dtype") and hasattr(x, "shape")) and "a %s is no tensor" % type(x).__name__
        dtype, shape = keras.backend.standardize_dtype(x.dtype), shape_of(x)
        yield dtype not in _FLOATS and "tfuse takes float32, float16, bfloat16 and float64, got %s" % dtype
        yield shape is None and "the number of dimensions is not known"
        yield len(shape) > MOST_AXES and "tfuse takes up to %d dimensions, got %d" % (MOST_AXES, len(shape))


def shape_of(x):
    """Static sizes; None for those that are not known, and for all of them where not even their number is."""
    if isinstance(x.shape, tf.TensorShape):
        return x.shape.as_list() if x.shape.rank is not None else None
    return list(x.shape)


def listed(axis):
    """One axis or several as a list of Python's integers. A TypeError, where they are none, declines a guard's call."""
    return [operator.index(a) for a in (axis if isinstance(axis, (list, tuple)) else [axis])]


def are_axes(x, axes):
    """Whether these are axes of x, each of them named once."""
    rank = len(shape_of(x))
    return bool(axes) and all(-rank <= a < rank for a in axes) and len({a % rank for a in axes}) == len(axes)


def stretches(shape, to):
    """Whether a shape broadcasts to another one, as far as both are known."""
    return len(shape) <= len(to) and all(a in (1, b) or a is None or b is None for a, b in zip(shape[::-1], to[::-1]))
