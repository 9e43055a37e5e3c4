"""What tfuse.enable() replaces of Keras's fit, evaluate and predict: where batches come from, and how a step is called.

Keras runs a step inside a function that draws the batch, too, and asks for its result before it goes on; the GPU waits for the
copy of the batch, and for the host. Here a thread has the next batches on the GPU (_feed.py), the step is called with one, and
nobody asks for anything: the host waits where somebody reads a number.
"""

import sys

import keras
import tensorflow as tf

from tfuse._core import _explain, _library
from tfuse._keras import _feed, _report
from tfuse._keras._behind import Row

_MODULE = "keras.src.backend.tensorflow.trainer"


def _device():
    return "/device:GPU:0"


def _iterator(own, epoch):
    return _Feeding(own(epoch))


class _Feeding:
    """A data set whose iterators are feeds."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return _feed.Feed(self.dataset, _device())


def _iterator_guard(epoch):
    if _library.without_gpu():
        return "there is no GPU to copy batches to"
    dataset = epoch._distributed_dataset
    if type(epoch._distribute_strategy).__name__ != "_DefaultDistributionStrategy" or not isinstance(dataset, tf.data.Dataset):
        return "batches are handed out by a distribution strategy"
    return _feed.why_not(dataset.element_spec)


def _make_function(own, trainer, step_function):
    """Keras's function of an iterator, which takes a feed too."""
    keras_has_it = own(trainer, step_function)
    reports, steps = _report.Reports(), {}  # by the feed's spec

    def made(spec):
        @tf.autograph.experimental.do_not_convert
        def on_data(data):
            return trainer.distribute_strategy.run(step_function, args=(data,))

        on_data = tf.function(on_data, reduce_retracing=True, jit_compile=trainer.jit_compile)

        @tf.autograph.experimental.do_not_convert
        def on_slot(memory):
            outputs = on_data(_feed.unstaged(memory, spec))
            reports.report(outputs)
            return outputs

        return tf.function(on_slot, input_signature=[tf.TensorSpec([None], tf.float32)])

    def function(iterator):
        if not isinstance(iterator, _feed.Feed) or trainer.run_eagerly:
            return keras_has_it(iterator)
        key = repr(iterator.spec)
        if key not in steps:
            steps[key] = made(iterator.spec)
        outputs = None
        for _ in range(trainer.steps_per_execution):
            slot = iterator.take()
            if slot is None:
                break
            try:
                outputs = steps[key](slot.memory)
            finally:
                iterator.give_back(slot)
        if outputs is None:
            raise StopIteration
        return reports.mark(outputs)

    return function


def _batch_end(hook):
    """What a list of callbacks does at the end of a batch, with logs that are read when somebody reads them."""
    def serve(own, callbacks, batch, logs=None):
        logs = _report.Logs(logs)
        for callback in callbacks.callbacks:
            getattr(callback, hook)(batch, logs=logs)

    return serve


_CALLBACKS = "keras.src.callbacks.callback_list"
TABLE = [
    Row(_MODULE, "TFEpochIterator._get_iterator", _iterator, _iterator_guard),
    Row(_MODULE, "TensorFlowTrainer._make_function", _make_function),
    *(Row(_CALLBACKS, "CallbackList._on_%s_batch_end" % kind, _batch_end("on_%s_batch_end" % kind))
      for kind in ("train", "test", "predict")),
]
if not hasattr(keras.src.backend.tensorflow.trainer.TensorFlowTrainer, "_make_function"):
    TABLE = []
