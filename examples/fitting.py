"""fit(), evaluate() and predict() of a Keras model as users call them, on tf.data of batches in the memory of the host, and
beside each the bare step inside of it, on a batch that is on the GPU. workloads.py times both in the same way.
"""
import contextlib
import functools
import io

import keras
import numpy as np
import tensorflow as tf

import workloads


def on_the_device(batch):
    with tf.device("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"):
        return tf.nest.map_structure(lambda array: tf.identity(tf.constant(array)), batch)


def in_host_memory(batches):
    """A data set of these batches, again and again. How large they are it does not know, as where Dataset.batch() has made
    them; it copies nothing, and has no hint of where they are going."""
    with tf.device("CPU:0"):
        data = tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda *arrays: np.stack(arrays), *batches))
    unknown = lambda tensor: tf.compat.v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])
    return data.map(lambda *batch: tf.nest.map_structure(unknown, batch)).repeat()


def ways(model, batches, evaluate=False):
    """What is measured of a compiled model: {what its milliseconds are called: run(n)}.

    fit() comes before its step: stock Keras runs the step as it was traced for fit(), and XLA compiles it once."""
    data, batch = in_host_memory(batches), functools.lru_cache(None)(lambda: on_the_device(batches[0]))

    def train(n):
        return model.fit(data, steps_per_epoch=n, verbose=0).history["loss"][-1]

    def bare(name):
        def run(n):
            getattr(model, "make_%s_function" % name)()
            step = getattr(model, name + "_function")
            model.reset_metrics()
            for _ in range(n):
                logs = step(iter([batch()]))
            return float(logs["loss"])

        return run

    def bare_predict(n):
        model.make_predict_function()
        for _ in range(n):
            outputs = model.predict_function([batch()])
        outputs.numpy()

    found = {"fit_ms": train, "ms_per_step": bare("train")}
    if evaluate:
        found.update(evaluate_ms=lambda n: model.evaluate(data, steps=n, verbose=0), evaluate_step_ms=bare("test"))
        if batches[0][1].ndim == 1:  # one class each: otherwise gigabytes of outputs would be copied, and nothing else timed
            found.update(predict_ms=lambda n: model.predict(data, steps=n, verbose=0), predict_step_ms=bare_predict)
    return found


# ---- losses ----


class Reading(keras.callbacks.Callback):
    """Reads the loss at the end of every so many steps."""

    def __init__(self, every):
        super().__init__()
        self.every, self.losses = every, []

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.every == 0:
            self.losses.append(float(logs["loss"]))


class EachLoss(Reading):
    """The loss of each step by itself: the one in the logs is the mean of all steps before it, too."""

    def __init__(self):
        super().__init__(every=1)

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()


def reads(model, batches, title, steps=None):
    """A table of what a step of fit() takes, by who reads its loss."""
    data = in_host_memory(batches)

    def way(*callbacks, verbose=0):
        def run(n):
            with contextlib.redirect_stdout(io.StringIO()):  # where the progress bar goes
                model.fit(data, steps_per_epoch=n, verbose=verbose, callbacks=list(callbacks))

        return run

    found = {"nobody": way(), "a callback, every 10th step": way(Reading(10)), "a callback, every step": way(Reading(1)),
             "the progress bar": way(verbose=1)}
    cells = ["%.2f ms" % workloads.slope(run, steps) for run in found.values()]
    return "\n".join(["| who reads losses | %s |" % " | ".join(found), "|---|" + "---|" * len(found),
                      "| %s | %s |" % (title, " | ".join(cells))])
