"""Batches of a data set on the GPU before they are asked for.

A Feed is an iterator over a data set. A thread of its own draws batches and puts each into a slot (ops/staging/slots.h): through
page-locked memory, on a stream of its own, beside the step that runs. There are two slots, so that one batch is taken while the
next one comes, and never more than two are drawn ahead. An error of the data set is raised where its batch would have been.

Nothing here takes a lock: Python may find a feed that nobody has any more while it runs anything, in any thread.
"""

import atexit
import ctypes
import itertools
import queue
import re
import threading
import weakref

import numpy as np
import tensorflow as tf

from tfuse._core import _explain, _library, _op

AHEAD = 2
PATIENCE = 5  # seconds that a thread is waited for whose data set may itself wait for what never comes
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
    are: those that came on a GPU, as from prefetch_to_device, and those that there is no memory or no slot of the library for.
    That may only be where it is not `needed`."""

    def __init__(self, device, needed=True):
        self.device, self.bytes, self.memory, self.given = device, 0, None, None
        self._hosted, self.number = None, _library.library.tfu_slot_open()
        if self.number < 0 and needed:
            raise MemoryError("tfuse: more data sets are read at one time than there are slots for")

    def put(self, tensors):
        self.given = tensors if self.number < 0 or any("GPU" in tensor.device for tensor in tensors) else None
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

    def drop(self):
        """Forgets the tensors of its batch; those who use them have them."""
        self.given = self._hosted = None

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


_idle = []  # slots that a feed has left, for the next one: page-locked memory takes long to make


def _claimed(slot):
    """Takes an idle slot, unless another thread has been faster."""
    try:
        _idle.remove(slot)
    except ValueError:
        return False
    return True


def _slots(device):
    idle = (slot for slot in list(_idle) if slot.device == device and _claimed(slot))
    mine = list(itertools.islice(idle, AHEAD))
    return mine + [Slot(device, needed=False) for _ in range(AHEAD - len(mine))]


def _leave(slots):
    for slot in slots:
        slot.drop()
    _idle.extend(slot for slot in slots if slot.number >= 0)
    for slot in _idle[:-AHEAD]:
        if _claimed(slot):
            slot.close()


# ---- feeds ----


class _Drawing:
    """What a feed and its thread share: the thread must not keep the feed itself alive. Behind the slots of all batches, `ready`
    has what ends the data set: None, or its error.

    An interrupt may come between any two of a caller's bytecodes. So the thread itself takes the slots, enters itself in
    _running, and leaves the slots to others at its end. All that it is told comes through one queue, whose put() is one
    bytecode: slots that are free again, BEGUN and STOP.

    An earlier feed of the same data set that was not waited for long enough may still draw. The thread waits for it: what is
    behind the data set, such as a generator, may not be for two at a time."""

    BEGUN, STOP = "begun", "stop"

    def __init__(self, dataset, iterator, device, epoch):
        self.dataset, self.iterator, self.device, self.epoch, self.stopped = dataset, iterator, device, epoch, False
        self.before = [other for other in list(_running) if other.stopped and other.dataset is dataset]
        self.ready, self.told, self.begun_by = queue.SimpleQueue(), queue.SimpleQueue(), threading.get_ident()
        self.thread = threading.Thread(target=self._run, name="tfuse feed", daemon=True)

    def _run(self):
        _running.append(self)
        slots = []
        try:
            for other in self.before:
                other.thread.join()
            slots += _slots(self.device)
            end = self._draw(list(slots))
        except (StopIteration, tf.errors.OutOfRangeError):
            end = None
        except BaseException as error:  # it is raised where the batch is asked for
            end = error
        self.before = self.iterator = None
        self.ready.put(end)
        while not self.stopped:  # some may still take batches that lie in slots
            self.told.get()
        _leave(slots)
        _running.remove(self)

    def _draw(self, free):
        """Draws into free slots until it is to stop; the end of the data set, and its errors, are raised."""
        begun = 0
        for drawn in itertools.count():
            while not (self.stopped or free and (not self.epoch or drawn < (begun + 1) * self.epoch)):
                told = self.told.get()
                begun += told is self.BEGUN
                free += [told] if isinstance(told, Slot) else []
            if self.stopped:
                return None
            slot = free.pop(0)
            slot.put(tf.nest.flatten(next(self.iterator)))
            self.ready.put(slot)

    def stop(self):
        self.stopped = True
        self.told.put(self.STOP)

    def end(self):
        """Stops the thread when it has drawn what it draws just now, and waits for that, but in no thread that Python's search
        for cycles happens to call this in: the data set may need that one."""
        self.stop()
        if threading.get_ident() == self.begun_by and self.thread.is_alive():
            self.thread.join(PATIENCE)


_running = []  # those whose threads run


@atexit.register
def _stop_all():
    """A thread that calls TensorFlow while the interpreter goes would take the process down with it."""
    drawings = list(_running)
    for drawing in drawings:
        drawing.stop()
    for drawing in drawings:
        drawing.thread.join(PATIENCE)


class Feed(tf.data.Iterator):
    """Iterates over a data set. next() gives a batch on the device; take() the slot that it is in, to be given back.

    Nothing is drawn before the first batch is asked for: Keras makes iterators that it never uses. A tf.function that gets a
    feed draws from the data set's own iterator: one of a model's own make_train_function, or made before tfuse.enable().

    Args:
      dataset: a tf.data.Dataset.
      device: the GPU's name.
      epoch: how many batches there are between two ends of an epoch that what is behind the data set is told of: it hands out
        none of the next before that begins. 0: it is told nothing.
    """

    def __init__(self, dataset, device, epoch=0):
        self.spec, self.device, self._epoch, self._taken = dataset.element_spec, device, epoch, 0
        self._dataset, self._own = dataset, iter(dataset)
        self._drawing, self._ended, self._is_told = None, False, False

    def take(self):
        """The slot of the next batch; None where there is none."""
        if self._drawing is None and not self._ended:
            drawing = _Drawing(self._dataset, self._own, self.device, self._epoch)
            self._finalizer = weakref.finalize(self, drawing.end)
            self._finalizer.atexit = False  # _stop_all() does it
            self._drawing = drawing
            try:
                drawing.thread.start()  # not before: an interrupt in here leaves a thread that end() knows
            except BaseException:
                self.end()
                raise
        if not self._ended:
            if self._epoch and self._taken and self._taken % self._epoch == 0:
                self._drawing.told.put(_Drawing.BEGUN)
            slot = self._drawing.ready.get()
            if isinstance(slot, Slot):
                self._taken += 1
                return slot
            self.end()
            if slot is not None:
                try:
                    raise slot
                finally:
                    del slot  # or the error's traceback would know the error
        return None

    def give_back(self, slot):
        """When all is queued that reads it."""
        if self._drawing is not None:
            slot.drop()
            self._drawing.told.put(slot)

    def end(self):
        """Nothing more is drawn, and there are no more batches."""
        self._ended = True
        if self._drawing is not None:
            self._drawing.end()  # again by the finalizer, where an interrupt comes before it is detached
            self._finalizer.detach()
            self._drawing = None

    # ---- what makes it an iterator of TensorFlow ----

    def get_next(self):
        if not tf.executing_eagerly():
            return self._own.get_next()
        slot = self.take()
        if slot is None:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence")
        try:
            return slot.batch(self.spec)
        finally:
            self.give_back(slot)

    def __next__(self):
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration

    def get_next_as_optional(self):
        return self._own.get_next_as_optional()

    element_spec = property(lambda self: self.spec)
    _iterator_resource = property(lambda self: self._own._iterator_resource)
    _type_spec = property(lambda self: self._own._type_spec)

    def __tf_tracing_type__(self, context):
        if not self._is_told:
            self._is_told = True
            why = ("the function that makes a step draws the batches itself: it is the model's own, or was made before "
                   "tfuse.enable()")
            _explain.note("fit, evaluate, predict", "Keras's own loop", why, [], "called", counts=False)
        return self._own.__tf_tracing_type__(context)


def tell_as_of_a_step(error):
    """Gives an error of a batch that was drawn eagerly the words that TensorFlow has for it where Keras's function draws."""
    text = re.sub(r"^\{\{function_node __wrapped__[^}]*\}\} | \[Op:\w+\] name: $", "", error.message)
    text = re.sub(r"\{\{function_node [^}]*\}\}(?=\{\{node)", "", text)
    if "{{node " not in text:
        text += "\n\t [[{{node IteratorGetNext}}]]"
    nodes = dict.fromkeys(re.findall(r"\{\{node ([^}]*)\}\}", text))
    places = "".join("Detected at node %s defined at (most recent call last):\n<stack traces unavailable>\n" % node
                     for node in nodes)
    error._message = "Graph execution error:\n\n%s%s%s [Op:__inference_multi_step_on_iterator]" % (
        places, text, "" if "IteratorGetNext" in nodes else "\n\t [[IteratorGetNext]]")


def unstaged(memory, spec, device):
    """The batch that lies in a slot's memory, eagerly or as part of a function."""
    leaves = tf.nest.flatten(spec)
    with tf.device(device):
        tensors = _unstage(memory, Out=[leaf.dtype for leaf in leaves])
    if not tf.executing_eagerly():
        for tensor, leaf in zip(tensors, leaves):
            tensor.set_shape(leaf.shape)
    return tf.nest.pack_sequence_as(spec, tensors)
