"""What an op's row in C says of a call before it is made (ops/core/row.c): shapes that attributes decide on, and scratch.
TensorFlow asks a row for shapes as well, but hands over no attributes."""

import ctypes

import tensorflow as tf

from tfuse._core import _library


class _Shape(ctypes.Structure):
    """tfu_shape of the library; -1 is unknown."""
    _fields_ = [("rank", ctypes.c_int), ("dim", ctypes.c_int64 * 8)]


class _Spec(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_char_p), ("shape", _Shape)]


def asks(stem):
    """Whether Python is to ask for shapes, and for room."""
    found = _library.library.tfu_row_asks(stem.encode())
    return bool(found & 1), bool(found & 2)


def shapes(stem, inputs, attributes, outputs):
    """The shapes of so many outputs. Raises ValueError for what the op would refuse."""
    found = (_Shape * outputs)()
    wrong = _library.library.tfu_row_shapes(stem.encode(), specs(inputs), _texts(attributes), found)
    if wrong:
        raise ValueError("%s: %s" % (stem, wrong.decode()))
    return [tf.TensorShape(None if s.rank < 0 else [None if n < 0 else n for n in s.dim[:s.rank]]) for s in found]


def check(stem, inputs, attributes, outputs):
    """Refuses what the op would, where its inputs' shapes are known: for a composition in its place."""
    if all(t.shape.is_fully_defined() for t in inputs):
        shapes(stem, inputs, attributes, outputs)


def more_room(stem, inputs, attributes, outputs):
    """Bytes of scratch that a captured call with such outputs wants beside what all of this op have; -1 where that is not known,
    and the call must not be captured."""
    return _library.library.tfu_row_more_room(stem.encode(), specs(inputs), _texts(attributes), specs(outputs))


def specs(tensors):
    """Types and shapes of tensors, as the library takes them."""
    specs = (_Spec * len(tensors))()
    for spec, t in zip(specs, tensors):
        sizes = [] if t.shape.rank is None else t.shape.as_list()
        spec.dtype, spec.shape.rank = t.dtype.name.encode(), -1 if t.shape.rank is None else len(sizes)
        spec.shape.dim[:len(sizes)] = [-1 if n is None else n for n in sizes]
    return specs


def _texts(attributes):
    """Names and values in turn, and a NULL."""
    texts = [text for name, value in attributes.items()
             for text in (name, str(int(value)) if isinstance(value, bool) else str(value))]
    return (ctypes.c_char_p * (len(texts) + 1))(*(text.encode() for text in texts), None)
