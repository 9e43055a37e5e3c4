"""Numbers of a step that nobody waits for unless they are read.

What a step returns as its logs, a loss and metrics, is copied to the host after the step (ops/staging/reports.h). Reading it waits
for that step alone, and lets other threads of Python run meanwhile. TensorFlow's own reading of a tensor on a GPU waits for all
steps that are queued, and nothing of Python runs until then.
"""

import concurrent.futures
import ctypes
import threading
import weakref

import numpy as np
import tensorflow as tf
from keras.src.utils import python_utils

from tfuse._core import _library

_NUMBERS = 32  # TFU_REPORT_TENSORS of the library, which also has room for
BYTES = 1 << 14  # of all of them, TFU_REPORT_BYTES
_report = _library.raw("report")


class Reports:
    """What the steps of one function report. report() is called while it is traced, mark() after each call with the places that
    report() has chosen: that a tensor is a number may be known only when the step has run."""

    def __init__(self):
        self.key = _library.library.tfu_reports_open()
        if self.key >= 0:
            close = weakref.finalize(self, _library.library.tfu_reports_close, self.key)
            close.atexit = False  # daemon threads may still report, and the process gives all back

    def report(self, outputs):
        """Has the numbers among a step's outputs reported, and returns their places there."""
        flat = tf.nest.flatten(outputs)
        places = [i for i, value in enumerate(flat)
                  if isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating][:_NUMBERS]
        if not places or self.key < 0:
            return []
        _report([flat[place] for place in places], key=self.key)
        return places

    def mark(self, outputs, places):
        """Remembers with each number of a step that has just run where it is reported."""
        step = _library.library.tfu_reports_steps(self.key) - 1
        if places and step >= 0:
            flat = tf.nest.flatten(outputs)
            for i, place in enumerate(places):
                flat[place]._tfuse_report = self, step, i
        return outputs

    def read(self, step, i, dtype):
        """The number, or None where it is not kept any more."""
        numbers = self.read_array(step, [i + 1])  # each has 8 bytes
        return None if numbers is None else np.frombuffer(numbers, dtype.as_numpy_dtype, 1, 8 * i)[0]

    def read_array(self, step, shape):
        """What a step has reported, as int64; or None."""
        numbers = np.empty(shape, np.int64)
        there = _library.library.tfu_reports_read(self.key, step, numbers.ctypes.data, numbers.nbytes)
        return numbers if there else None


def read(value):
    """What Keras makes of a value of a step's logs: a float where it can be one."""
    if hasattr(value, "_tfuse_report"):
        reports, step, i = value._tfuse_report
        number = reports.read(step, i, value.dtype)
        if number is not None:
            return float(number)
    return python_utils.pythonify_logs({"": value})[""]


class Logs(dict):
    """The logs of a batch, as callbacks get them: what Keras's pythonify_logs makes of them, but each is read when somebody
    asks for it, and nobody waits for what nobody asks for. They are for hooks that use methods alone (_hooks.py).

    Logs.of() makes them. A call of the class makes a plain dict, and so does whatever makes another one like these, such as
    copy."""

    __hash__ = None

    def __new__(cls, *values, **named):
        return dict(*values, **named)

    @classmethod
    def of(cls, logs):
        made = dict.__new__(cls)
        dict.update(made, _flat(logs or {}))
        made._unread = set(dict.keys(made))
        return made

    def __getitem__(self, key):
        if key in self._unread:
            super().__setitem__(key, read(super().__getitem__(key)))
            self._unread.discard(key)
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        self._unread.discard(key)
        super().__setitem__(key, value)

    def __delitem__(self, key):
        self._unread.discard(key)
        super().__delitem__(key)

    def clear(self):
        self._unread.clear()
        super().clear()

    def update(self, *others, **values):
        for key, value in dict(*others, **values).items():
            self[key] = value

    def __ior__(self, other):
        self.update(other)
        return self

    def get(self, key, default=None):
        return self[key] if key in self else default

    def __iter__(self):  # of our own, or dict(logs) would take the values as they are
        return iter(super().keys())

    def __reduce_ex__(self, protocol):
        return dict, (dict(self),)

    def is_under_way(self):
        """Whether there are numbers of a step that may still run."""
        return any(hasattr(dict.__getitem__(self, key), "_tfuse_report") for key in self._unread)


def _whole(name):
    def method(logs, *arguments, **options):
        for key in list(logs._unread):
            logs[key]
        return getattr(super(Logs, logs), name)(*arguments, **options)

    return method


for _name in ("items", "values", "copy", "pop", "popitem", "setdefault", "__eq__", "__ne__", "__repr__", "__or__", "__ror__"):
    setattr(Logs, _name, _whole(_name))


def _flat(logs):
    """In Keras's order, with the dicts inside it taken apart."""
    flat = {}
    for key, value in sorted(logs.items()):
        flat.update(_flat(value) if isinstance(value, dict) else {key: value})
    return flat


# ---- the progress bar: it is drawn by a thread of its own, which waits for the numbers ----
#
# The thread lasts until the bar is drawn: Jupyter shows what a thread prints below the cell that has started the thread.

_updating = threading.RLock()  # of bars' threads and updates: Keras has several threads that update a bar


def update_later(own, bar, batch, logs=None):
    """ProgbarLogger._update_progbar, when the numbers have come."""
    if not (isinstance(logs, Logs) and bar.verbose == 1 and logs.is_under_way()):
        return after_updates(own, bar, batch, logs)
    with _updating:
        if not hasattr(bar, "_tfuse_thread"):
            bar._tfuse_thread, bar._tfuse_updates = concurrent.futures.ThreadPoolExecutor(1, "tfuse progress bar"), []
        bar._tfuse_updates = [*(f for f in bar._tfuse_updates if not f.done() or f.result()),
                              bar._tfuse_thread.submit(own, bar, batch, logs)]


def after_updates(own, bar, *arguments):
    """A method of ProgbarLogger, when all is drawn that was to be."""
    with _updating:
        thread, updates = bar.__dict__.pop("_tfuse_thread", None), bar.__dict__.pop("_tfuse_updates", ())
    if thread is not None:
        thread.shutdown()  # waits for all
    for update in updates:
        update.result()
    return own(bar, *arguments)
