"""What tfuse.enable() replaces of Keras's fit, evaluate and predict: where batches come from, and how a step is called.

Keras runs a step inside a function that draws the batch, too, and asks for its result before it goes on; the GPU waits for the
copy of the batch, and for the host. Here a thread has the next batches on the GPU (_feed.py), the step is called with one, and
nobody asks for anything: the host waits where somebody reads a number.
"""

import contextlib
import weakref

import tensorflow as tf
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from tensorflow.python.eager import context

from tfuse._core import _explain, _library, _xla
from tfuse._keras import _feed, _hooks, _predictions, _report
from tfuse._keras._replaced import Row, class_in

_MODULE = "keras.src.backend.tensorflow.trainer"
_NONE = object()  # where there was no batch: None is what a step may return


def _device():
    """The GPU that a function called here runs on; "" where that is the CPU."""
    asked = context.context().device_name
    if _library.without_gpu() or asked and "GPU" not in asked:
        return ""
    gpus = tf.config.list_logical_devices("GPU")
    return asked or (gpus[0].name if gpus else "/device:CPU:0")  # the last where a test only plays that there is a GPU


class _Feeding:
    """A data set whose iterators are feeds. An epoch that asks for another one is done with the last, which leaves its slots."""

    def __init__(self, epoch, *options):
        self._epoch, self._options = epoch, options

    def __iter__(self):
        _end_feed(self._epoch)
        feed = _feed.Feed(*self._options)
        self._epoch._tfuse_feed = weakref.ref(feed)
        return feed


def _end_feed(epoch):
    feed = getattr(epoch, "_tfuse_feed", lambda: None)()
    if feed is not None:
        feed.end()


def _iterator(own, epoch):
    dataset, device = own(epoch), _device()
    why = _why_not(epoch, dataset, device)
    if why and (device or not _library.without_gpu()):
        _explain.note("fit, evaluate, predict", "Keras's own loop", why, [], "called", counts=False)
    return dataset if why else _Feeding(epoch, dataset, device, _batches_of_an_epoch(epoch))


@contextlib.contextmanager
def _inside_an_epoch(own, epoch):
    """Keras's catch_stop_iteration. An epoch that is left early leaves a generator behind: it and the epoch keep each other
    alive, and a feed with them; in Python 3.12.0 to 3.12.3 also when it is closed. An error's traceback keeps one, too."""
    try:
        with own(epoch):
            yield
    except BaseException:
        _end_feed(epoch)
        raise
    finally:
        left, epoch._epoch_iterator = epoch._epoch_iterator, None
        if left is not None:
            left.close()


def _batches_of_an_epoch(epoch):
    """How many Keras takes before it tells the data's adapter that an epoch ends; 0 where the adapter does nothing then. A
    PyDataset with workers stops these, and refuses to be asked for more."""
    adapter, at_a_time = type(epoch.data_adapter), epoch.steps_per_execution
    if not epoch.steps_per_epoch or adapter.on_epoch_end is DataAdapter.on_epoch_end:
        return 0
    return -(-epoch.steps_per_epoch // at_a_time) * at_a_time


def _why_not(epoch, dataset, device):
    """Why batches of a data set are left to Keras, or ""."""
    if not device:
        return "it runs on the CPU"
    if context.context().is_async():
        return "eager ops are asynchronous, so that nobody knows when a step has taken its batch"
    if type(epoch._distribute_strategy).__name__ != "_DefaultDistributionStrategy" or not isinstance(dataset, tf.data.Dataset):
        return "a tf.distribute strategy hands out the batches"
    return _feed.why_not(dataset.element_spec)


def _make_function(own, trainer, step_function):
    """Keras's function of an iterator, which takes a feed too."""
    keras_has_it, reports = own(trainer, step_function), _report.Reports()
    functions, places = {}, {}  # of a kind of batch: what makes a step on it, and what of its outputs is reported

    @tf.autograph.experimental.do_not_convert
    def on_data(data):
        outputs = trainer.distribute_strategy.run(step_function, args=(data,))
        if all(value is None for value in tf.nest.flatten(outputs)):
            tf.experimental.Optional.from_value(outputs)  # as Keras, whose error this is
        return outputs

    def made(key, batch, spec, signature):
        """A function that makes a step on batch(*its arguments), of this spec."""
        @tf.autograph.experimental.do_not_convert
        def reported(*arguments):
            outputs = step(batch(*arguments))
            places[key] = reports.report(outputs)
            return outputs

        if trainer.jit_compile:  # inside of another function XLA's launches take half as long again
            step = tf.function(on_data, input_signature=[spec], jit_compile=True)
            return reported
        step = tf.function(on_data, reduce_retracing=True)
        reported.__name__ = getattr(step_function, "__name__", "step")  # for traces and profiles
        return tf.function(reported, input_signature=signature)

    def run(feed, slot):
        if trainer.run_eagerly:
            return on_data(slot.batch(feed.spec))
        spec, device, given = feed.spec, feed.device, slot.given is not None
        key = device, repr(spec), given
        if key not in functions and given:
            functions[key] = made(key, lambda *tensors: tf.nest.pack_sequence_as(spec, tensors), spec, tf.nest.flatten(spec))
        elif key not in functions:
            functions[key] = made(key, lambda memory: _feed.unstaged(memory, spec, device), spec,
                                  [tf.TensorSpec([None], tf.float32)])
        outputs = functions[key](*(slot.given if given else [slot.memory]))
        return reports.mark(outputs, places[key])

    def function(iterator):
        if not isinstance(iterator, _feed.Feed):
            return keras_has_it(iterator)
        outputs = _NONE
        for _ in range(trainer.steps_per_execution):
            try:
                slot = iterator.take()
            except tf.errors.OpError as error:
                if not trainer.run_eagerly:
                    _feed.tell_as_of_a_step(error)
                raise
            if slot is None:
                break
            try:
                outputs = run(iterator, slot)
            finally:
                iterator.give_back(slot)
        if outputs is _NONE:
            raise StopIteration
        return outputs

    return function


def _batch_end(hook):
    """What a list of callbacks does at the end of a batch, with logs that are read when somebody reads them."""
    def serve(own, callbacks, batch, logs=None):
        if hook == "on_predict_batch_end":
            _predictions.add(callbacks, batch, (logs or {}).get("outputs"))
        logs = _report.Logs.of(logs)
        for callback in callbacks.callbacks:
            if isinstance(logs, _report.Logs) and not _hooks.read_by_methods(callback, hook):
                logs = dict(logs)  # for those that follow, too: what one callback changes, the next one sees
            getattr(callback, hook)(batch, logs=logs)

    return serve


# ---- sizes of a batch that are not known when a step is traced ----
#
# TensorFlow has such a size on the host. Its copy to the GPU, as a number to divide by, waits for all that is queued there, and
# what reads it is queued after that: the GPU stands still between two steps. Ones that are made and added there copy nothing.


def _is_counted(shape):
    """Whether a size is to be counted on the GPU, of a tensor of this shape."""
    return (not tf.executing_eagerly() and not shape.is_fully_defined() and not _library.without_gpu()
            and not _xla.is_inside())


def _mean_of_values(own, values, sample_weight=None, reduction="sum_over_batch_size"):
    """Keras's mean is one of equal weights, whose sum is how many values there are."""
    if (reduction in ("sum_over_batch_size", "mean") or reduction == "mean_with_sample_weight" and sample_weight is None) \
            and tf.is_tensor(values) and values.shape.rank and _is_counted(values.shape):
        wide = tf.float64 if values.dtype == tf.float64 else tf.float32
        sample_weight, reduction = tf.ones_like(values, wide), "mean_with_sample_weight"
    return own(values, sample_weight, reduction)


def _weighed_values(own, values, sample_weight, reduce_fn, dtype):
    """A metric's values; the weight of a loss is how many samples the batch has, tf.shape(x)[0]."""
    node = sample_weight.op if tf.is_symbolic_tensor(sample_weight) else None
    if node is not None and node.type == "StridedSlice" and sample_weight.shape.rank == 0 and node.inputs[0].op.type == "Shape" \
            and tf.get_static_value(node.inputs[1]) == [0] and _is_counted(node.inputs[0].op.inputs[0].shape):
        sample_weight = tf.reduce_sum(tf.ones(node.inputs[0][:1]))
    return own(values, sample_weight, reduce_fn, dtype)


def _joined(own, tensors):
    """What predict() returns: its batches one after the other. Keras asks for their shapes by ops, three for each."""
    prediction = _predictions.of(tensors)
    if prediction:
        return prediction
    dense = all(isinstance(tensor, tf.Tensor) for tensor in tensors)
    if dense and len({tuple(tensor.shape[1:]) for tensor in tensors}) == 1 and tensors[0].shape.rank:
        return tf.concat(tensors, 0)
    return own(tensors)


_CALLBACKS, _BAR = "keras.src.callbacks.callback_list", "keras.src.callbacks.progbar_logger"
TABLE = [
    Row(_MODULE, "TFEpochIterator._get_iterator", _iterator),
    Row(_MODULE, "TFEpochIterator.catch_stop_iteration", _inside_an_epoch),
    Row(_MODULE, class_in(_MODULE, "TensorFlowTrainer", "Trainer") + "._make_function", _make_function),
    *(Row(_CALLBACKS, "CallbackList._on_%s_batch_end" % kind, _batch_end("on_%s_batch_end" % kind))
      for kind in ("train", "test", "predict")),
    Row("keras.src.losses.loss", "reduce_values", _mean_of_values),
    Row("keras.src.metrics.reduction_metrics", "reduce_to_samplewise_values", _weighed_values),
    Row(_MODULE, "potentially_ragged_concat", _joined),
    Row(_BAR, "ProgbarLogger._update_progbar", _report.update_later),
    Row(_BAR, "ProgbarLogger._finalize_progbar", _report.after_updates),
    Row(_BAR, "ProgbarLogger._reset_progbar", _report.after_updates),
]
# All or none: numbers that nobody has read yet are shown by other rows than those that make the step. Earlier releases of Keras
# make their functions in other ways, and keep them.
TABLE = [row._replace(part_of="fit()") for row in TABLE]
