"""Where an eager tensor's memory begins."""

import ctypes

import tensorflow as tf

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def address(tensor):
    """Of its first element, on its own device; None where it has none."""
    capsule = tf.experimental.dlpack.to_dlpack(tensor)
    return ctypes.c_void_p.from_address(_pointer(capsule, b"dltensor")).value  # the first field of a DLTensor
