"""Batches of a data set on the GPU before they are asked for.

A Feed is an iterator over a data set. A thread of its own draws batches and puts each into a slot (ops/staging/slots.h): through
page-locked memory, on a stream of its own, beside the step that runs. There are two slots, so that one batch is taken while the
next one comes, and never more than two are drawn ahead. An error of the data set is raised where its batch would have been.
"""

import atexit
import ctypes
import itertools
import queue
import threading
import weakref

import numpy as np
import tensorflow as tf

from tfuse._core import _explain, _library, _op

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
    """A place for a batch. `memory` is what the op Unstage takes; `given` are tensors that are handed on as they
    are: those that came on a GPU, as from prefetch_to_device, and those that there is no memory for."""

    def __init__(self, device):
        self.device, self.bytes, self.memory, self.given = device, 0, None, None
        self.number = _library.library.tfu_slot_open()
        if self.number < 0:
            raise MemoryError("tfuse: more data sets are read at one time than there are slots for")

    def put(self, tensors):
        self.given = tensors if any("GPU" in tensor.device for tensor in tensors) else None
        if self.given is not None:
            return
        try:
            self.copy([np.asarray(tensor.__array__(), order="C") for tensor in tensors])  # those of the CPU are not copied
            self._hosted = [tensor if tensor.dtype == tf.int32 else None for tensor in tensors]
        except tf.errors.ResourceExhaustedError as error:  # TensorFlow may find room for a copy of its own when the step runs
            _explain.note("fit, evaluate, predict", "TensorFlow's own copies", error.message, [], "called", counts=False)
            self.given = tensors

    def copy(self, arrays):
        """Puts arrays there, which lie in memory row by row."""
        needed = sum(-(-max(array.nbytes, 1) // _ALIGN) * _ALIGN for array in arrays)
        if needed > self.bytes:
            self._grow(needed)
        n, dims = len(arrays), [size for array in arrays for size in array.shape]
        why = _library.library.tfu_slot_put(
            self.number, n, (ctypes.c_void_p * n)(*(array.ctypes.data for array in arrays)),
            (ctypes.c_int64 * n)(*(array.nbytes for array in arrays)), (ctypes.c_int32 * n)(*(array.ndim for array in arrays)),
            (ctypes.c_int64 * max(len(dims), 1))(*dims))
        if why:
            raise RuntimeError("tfuse: a batch cannot be copied to %s: %s" % (self.device, why.decode()))

    def batch(self, spec):
        """The batch, eagerly. TensorFlow's functions want integers of 32 bits on the host: those stay there."""
        if self.given is not None:
            return tf.nest.pack_sequence_as(spec, self.given)
        staged = tf.nest.flatten(unstaged(self.memory, spec, self.device))
        return tf.nest.pack_sequence_as(spec, [there if host is None else host for there, host in zip(staged, self._hosted)])

    def _grow(self, needed):
        """By an eighth more than needed where it has grown before: batches of many sizes need few memories."""
        self.reserve(needed if self.memory is None else -(-needed * 9 // 8 // _ALIGN) * _ALIGN)

    def reserve(self, wanted):
        """Memory for so many bytes, each tensor's rounded up."""
        self.memory, self.bytes = None, 0  # before there is another
        with tf.device(self.device):
            self.memory, self.bytes = _stage(slot=self.number, bytes=wanted), wanted

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


class _Drawing:
    """What a feed and its thread share: the thread must not keep the feed itself alive. Behind the slots of all batches, `ready`
    has what ends the data set: None, or its error."""

    def __init__(self, iterator, device, epoch):
        self.iterator, self.epoch, self.stopped = iterator, epoch, False
        self.ready, self.free, self.begun = queue.SimpleQueue(), queue.SimpleQueue(), queue.SimpleQueue()
        self.slots = _slots(device)
        for slot in self.slots:
            self.free.put(slot)
        self.thread = threading.Thread(target=self._run, name="tfuse feed", daemon=True)
        self.thread.start()

    def _run(self):
        error = None
        for drawn in itertools.count():
            slot = self.free.get()
            if self.epoch and drawn and drawn % self.epoch == 0:
                self.begun.get()
            if self.stopped:
                break
            try:
                slot.put(tf.nest.flatten(next(self.iterator)))
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            except BaseException as why:  # it is raised where the batch is asked for
                error = why
                break
            self.ready.put(slot)
        self.iterator = None
        self.ready.put(error)

    def stop(self):
        self.stopped = True
        self.free.put(None)
        self.begun.put(None)

    def end(self):
        """Stops the thread when it has drawn what it draws just now, and leaves the slots to others."""
        self.stop()
        self.thread.join()
        _leave(self.slots)


_all = weakref.WeakSet()


@atexit.register
def _stop_all():
    """A thread that calls TensorFlow while the interpreter goes would take the process down with it."""
    for drawing in list(_all):
        drawing.stop()


class Feed:
    """Iterates over a data set. next() gives a batch on the device; take() the slot that it is in, to be given back.

    Nothing is drawn before the first batch is asked for: Keras makes iterators that it never uses.

    Args:
      dataset: a tf.data.Dataset.
      device: the GPU's name.
      epoch: how many batches there are between two ends of an epoch that what is behind the data set is told of: it hands out
        none of the next before that begins. 0: it is told nothing.
    """

    def __init__(self, dataset, device, epoch=0):
        self.spec, self.device, self._epoch, self._taken = dataset.element_spec, device, epoch, 0
        self._iterator, self._drawing, self._ended, self._error = iter(dataset), None, False, None

    def __iter__(self):
        return self

    def take(self):
        """The slot of the next batch; None where there is none."""
        if self._drawing is None and not self._ended:
            self._drawing, self._iterator = _Drawing(self._iterator, self.device, self._epoch), None
            self._end = weakref.finalize(self, self._drawing.end)
            _all.add(self._drawing)
        if not self._ended:
            if self._epoch and self._taken and self._taken % self._epoch == 0:
                self._drawing.begun.put(None)
            slot = self._drawing.ready.get()
            if isinstance(slot, Slot):
                self._taken += 1
                return slot
            self._ended, self._error, self._drawing = True, slot, None
            self._end()
        if self._error is not None:
            raise self._error
        return None

    def give_back(self, slot):
        """When all is queued that reads it."""
        if self._drawing is not None:
            self._drawing.free.put(slot)

    def __next__(self):
        slot = self.take()
        if slot is None:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        try:
            return slot.batch(self.spec)
        finally:
            self.give_back(slot)


def unstaged(memory, spec, device):
    """The batch that lies in a slot's memory, eagerly or as part of a function."""
    leaves = tf.nest.flatten(spec)
    with tf.device(device):
        tensors = _unstage(memory, Out=[leaf.dtype for leaf in leaves])
    if not tf.executing_eagerly():
        for tensor, leaf in zip(tensors, leaves):
            tensor.set_shape(leaf.shape)
    return tf.nest.pack_sequence_as(spec, tensors)
