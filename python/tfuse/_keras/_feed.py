"""Batches of a data set on the GPU before they are asked for.

A Feed is an iterator over a data set. A thread of its own draws batches and puts each into a slot (ops/staging/slots.h): through
page-locked memory, on a stream of its own, beside the step that runs. There are two slots, so that one batch is taken while the
next one comes, and never more than two are drawn ahead. An error of the data set is raised where its batch would have been.
"""

import atexit
import ctypes
import math
import queue
import threading
import weakref

import numpy as np
import tensorflow as tf

from tfuse._core import _library, _op

AHEAD = 2
MOST_LEAVES = 64  # TFU_SLOT_TENSORS of the library
_ALIGN = 256  # TFU_SLOT_ALIGN
DTYPES = (*_op.FLOATS, tf.int32, tf.int64, tf.bool, tf.uint8, tf.int8, tf.uint16, tf.int16)

_unstage, _stage = _library.raw("unstage"), _library.raw("stage")


def why_not(spec):
    """Why batches of this element_spec cannot be staged, or ""."""
    leaves = tf.nest.flatten(spec)
    for leaf in leaves:
        if type(leaf) is not tf.TensorSpec:
            return "a %s of the data set is no dense tensor" % type(leaf).__name__.replace("Spec", "")
        if leaf.dtype not in DTYPES:
            return "a tensor of the data set is of %s" % leaf.dtype.name
        if leaf.shape.rank is None or leaf.shape.rank > _op.MOST_AXES:
            return "the number of dimensions of a tensor of the data set is not known or more than %d" % _op.MOST_AXES
    return "" if 0 < len(leaves) <= MOST_LEAVES else "a batch of the data set has %d tensors" % len(leaves)


# ---- slots ----


class Slot:
    """A place for a batch. `memory` is what the op Unstage takes."""

    def __init__(self, device):
        self.device, self.bytes, self.memory = device, 0, None
        self.number = _library.library.tfu_slot_open()
        if self.number < 0:
            raise MemoryError("tfuse: more data sets are read at one time than there are slots for")

    def put(self, tensors):
        arrays = [np.ascontiguousarray(tensor.__array__()) for tensor in tensors]  # those of the CPU are not copied
        needed = sum(-(-max(array.nbytes, 1) // _ALIGN) * _ALIGN for array in arrays)
        if needed > self.bytes:
            self._grow(needed)
        n, dims = len(arrays), [size for array in arrays for size in array.shape]
        why = _library.library.tfu_slot_put(
            self.number, n, (ctypes.c_void_p * n)(*(array.ctypes.data for array in arrays)),
            (ctypes.c_int64 * n)(*(array.nbytes for array in arrays)), (ctypes.c_int32 * n)(*(array.ndim for array in arrays)),
            (ctypes.c_int64 * max(len(dims), 1))(*dims))
        if why:
            raise RuntimeError("tfuse: a batch cannot be brought to the %s: %s" % (self.device, why.decode()))

    def _grow(self, needed):
        """By an eighth more than needed where it has grown before: batches of many sizes need few memories."""
        self.bytes = needed if self.memory is None else -(-needed * 9 // 8 // _ALIGN) * _ALIGN
        self.memory = None  # before there is another
        with tf.device(self.device):
            self.memory = _stage(slot=self.number, bytes=self.bytes)

    def close(self):
        _library.library.tfu_slot_close(self.number)
        self.memory = None


_idle, _lock = [], threading.Lock()  # slots that a feed has left, for the next one: page-locked memory takes long to make


def _slots(device):
    with _lock:
        mine = [slot for slot in _idle if slot.device == device][:AHEAD]
        for slot in mine:
            _idle.remove(slot)
    return mine + [Slot(device) for _ in range(AHEAD - len(mine))]


def _leave(slots):
    with _lock:
        _idle.extend(slots)
        surplus = [_idle.pop(0) for _ in range(len(_idle) - AHEAD)]
    for slot in surplus:
        slot.close()


# ---- feeds ----


class _End:
    """What ends a data set: None, or its error."""

    def __init__(self, error=None):
        self.error = error


class _Drawing:
    """What a feed and its thread share: the thread must not keep the feed itself alive."""

    def __init__(self, iterator, device):
        self.iterator, self.stopped = iterator, False
        self.ready, self.free = queue.SimpleQueue(), queue.SimpleQueue()
        self.slots = _slots(device)
        for slot in self.slots:
            self.free.put(slot)

    def run(self):
        last = _End()
        while not self.stopped:
            slot = self.free.get()
            if slot is None:
                break
            try:
                slot.put(tf.nest.flatten(next(self.iterator)))
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            except BaseException as error:
                last = _End(error)
                break
            self.ready.put(slot)
        self.ready.put(last)
        self.iterator = None

    def stop(self):
        self.stopped = True
        self.free.put(None)


_drawing = weakref.WeakSet()


def _end(drawing, thread):
    drawing.stop()
    thread.join()
    _leave(drawing.slots)


class Feed:
    """Iterates over a data set. next() gives a batch on the device; take() and give_back() the slot that it is in."""

    def __init__(self, dataset, device):
        self.spec, self.device = dataset.element_spec, device
        self._drawing = drawing = _Drawing(iter(dataset), device)
        self._ended = None
        thread = threading.Thread(target=drawing.run, name="tfuse feed", daemon=True)
        _drawing.add(drawing)
        self._finalizer = weakref.finalize(self, _end, drawing, thread)
        thread.start()

    def __iter__(self):
        return self

    def take(self):
        """The slot of the next batch; None where there is none."""
        if self._ended is None:
            slot = self._drawing.ready.get()
            if not isinstance(slot, _End):
                return slot
            self._ended = slot
        if self._ended.error is not None:
            raise self._ended.error
        return None

    def give_back(self, slot):
        """When all is queued that reads it."""
        self._drawing.free.put(slot)

    def __next__(self):
        slot = self.take()
        if slot is None:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        try:
            with tf.device(self.device):
                return unstaged(slot.memory, self.spec)
        finally:
            self.give_back(slot)


def unstaged(memory, spec):
    """The batch that lies in a slot's memory, eagerly or as part of a function."""
    leaves = tf.nest.flatten(spec)
    tensors = _unstage(memory, Out=[leaf.dtype for leaf in leaves])
    if not tf.executing_eagerly():
        for tensor, leaf in zip(tensors, leaves):
            tensor.set_shape(leaf.shape)
    return tf.nest.pack_sequence_as(spec, tensors)


@atexit.register
def _stop_all():
    """A thread inside TensorFlow while the interpreter goes would take the process down with it."""
    for drawing in list(_drawing):
        drawing.stop()
