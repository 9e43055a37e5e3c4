"""Small arrays to and from the device, for which nobody waits: TensorFlow's own copies wait for all that is queued by then."""

import itertools
import weakref

import numpy as np
import tensorflow as tf

from tfuse._core import _library
from tfuse._keras._feed import Slot
from tfuse._keras._report import BYTES, Reports
from tfuse.generation import steps

_unstage, _report = _library.raw("unstage"), _library.raw("report")


class Sender:
    """Sends arrays of so many bytes, at most, through slots (ops/staging/slots.h), one after the other: so many may be on their
    way. Where all slots are taken, by other engines, TensorFlow copies."""

    def __init__(self, device, nbytes, slots=8):
        self._slots = []
        try:
            for _ in range(slots):
                self._slots.append(Slot(device))
                weakref.finalize(self, self._slots[-1].close).atexit = False  # daemon threads may still step
                self._slots[-1].reserve(nbytes)
        except MemoryError:
            pass
        self._next = itertools.cycle(self._slots)

    def send(self, arrays):
        """Tensors of arrays, on the device."""
        if not self._slots:
            return steps.constants(arrays)
        slot = next(self._next)
        slot.copy([np.ascontiguousarray(array) for array in arrays])
        return list(_unstage(slot.memory, Out=[tf.as_dtype(array.dtype) for array in arrays]))


class Receiver:
    """Reads tensors of int64. What is read is as it was when it was asked for, and waits for no more than was queued then."""

    def __init__(self):
        self._reports, self._asked = Reports(), 0

    def ask(self, tensor):
        """Returns what read() is to be given before 15 more are asked for."""
        if self._reports.key < 0 or 8 * tensor.shape.num_elements() > BYTES:
            return tensor
        _report([tensor], key=self._reports.key)
        self._asked += 1
        return self._asked - 1, tensor.shape

    def read(self, asked):
        if isinstance(asked, tf.Tensor):
            return asked.numpy()
        found = self._reports.read_array(*asked)
        if found is None:
            raise RuntimeError("tfuse: tokens could not be copied from the device; an error of the GPU may say why")
        return found
