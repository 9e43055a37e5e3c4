"""What predict() returns, copied to the host while the next steps run.

Keras keeps the outputs of all steps on the GPU, and copies them when the last step has ended: into memory that is not page-locked,
while the GPU has nothing to do. Here a thread copies each step's outputs to their place in the result as soon as they are there.
"""

import concurrent.futures
import contextlib
import threading

import numpy as np
import tensorflow as tf

LEAST_BYTES = 1 << 16  # of a step's output: a call costs more than one copy of all at the end where they are smaller

_copying = concurrent.futures.ThreadPoolExecutor(1, "tfuse predictions")
_adding = threading.RLock()  # Keras has several threads that add


@tf.function(reduce_retracing=True)
def _on_host(tensor):
    """A function's copies to the host go through TensorFlow's page-locked memory, and let other threads of Python run."""
    with tf.device("CPU:0"):
        return tf.identity(tensor)


class Prediction:
    """One output of predict(): its batches, one after the other, in an array for `most` rows. Tensors know the prediction that
    they are copied to; it does not know them, or their memory would wait for Python's search for cycles."""

    def __init__(self, first, most):
        self.array = np.empty([most, *first.shape[1:]], first.dtype.as_numpy_dtype)
        self.rows, self.copies = 0, []

    def add(self, tensor):
        with _adding:
            tensor._tfuse_copy = self, len(self.copies)
            self.copies.append(_copying.submit(self._copy, tensor, self.rows))
            self.rows += tensor.shape[0]

    def _copy(self, tensor, begin):
        place = self.array[begin : begin + tensor.shape[0]]
        if place.shape != tuple(tensor.shape) or place.dtype != tensor.dtype.as_numpy_dtype:
            raise ValueError("a batch of %s of shape %s is unlike the first one, or one too many" % (tensor.dtype, tensor.shape))
        place[...] = _on_host(tensor).numpy()

    def is_of(self, tensors):
        """Whether it has these tensors and no others, all copied."""
        return (len(tensors) == len(self.copies)
                and all(getattr(tensor, "_tfuse_copy", None) == (self, i) for i, tensor in enumerate(tensors))
                and not any(copy.exception() for copy in self.copies))

    def numpy(self):
        """What Keras calls for the array that it returns."""
        return self.array[: self.rows]


def add(callbacks, batch, outputs):
    """Begins to copy the outputs of a step of predict() whose last batch has this number, where their number is known."""
    steps, model = (callbacks.params or {}).get("steps"), getattr(callbacks, "_model", None)
    if not steps or model is None:  # a list of callbacks of the caller's own
        return
    at_a_time = model.steps_per_execution
    if batch < at_a_time:
        callbacks._tfuse_predictions = {}
    found = getattr(callbacks, "_tfuse_predictions", {})
    for i, tensor in enumerate(tf.nest.flatten(outputs)):
        if batch < at_a_time and is_worth_it(tensor):
            with contextlib.suppress(MemoryError):  # of steps that may never be made
                found[i] = Prediction(tensor, -(-steps // at_a_time) * tensor.shape[0])
        if i in found and isinstance(tensor, tf.Tensor) and tensor.shape.rank:
            found[i].add(tensor)


def is_worth_it(tensor):
    return (isinstance(tensor, tf.Tensor) and tensor.shape.rank and "GPU" in tensor.device
            and tensor.shape.num_elements() * tensor.dtype.size >= LEAST_BYTES)


def of(tensors):
    """The prediction that has been made of these tensors, or None."""
    found = getattr(tensors[0], "_tfuse_copy", [None])[0]
    return found if found is not None and found.is_of(tensors) else None
