"""Sparse gradients, tf.IndexedSlices, in an optimizer's step: rows of values, each for a row of the variable, some rows of
which may come several times. An Embedding's gradient is one.

What Keras does with them is followed: the norm that clips is that of the values, which are clipped before they are added up;
and what stands for the square of a gradient is the sum of the values' squares, but after a global norm, where Keras adds them
up first. Adam, Lamb and Lion, momentum and weight decay change every row of a variable, so there the values are added up into
a dense gradient, which is written once and read once. SGD alone changes the rows that have values, and writes no others.

Equal rows are added in the order in which they come, so a step repeats bit for bit.
"""

import tensorflow as tf

from tfuse.reductions.segment_sum import unsorted_segment_sum
from tfuse.sorting.unique import unique_with_counts


def as_tensors(gradient):
    """A gradient whose parts are tensors: tf.IndexedSlices takes whatever can be one, such as a tuple of rows."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    parts = gradient.values, gradient.indices, gradient.dense_shape
    return tf.IndexedSlices(*(None if part is None else tf.convert_to_tensor(part) for part in parts))


def summed(slices, rows, squares=False):
    """The values, added up by row, for a variable of so many rows; `squares`: after them, their squares, added up likewise.
    Rows that no variable has are refused, or on a GPU left out, as in TensorFlow."""
    values, indices = slices.values, slices.indices
    if not squares:
        return unsorted_segment_sum(values, indices, rows)
    # TensorFlow computes with int32 in the host's memory. What lies outside of the first half must not lie in the second.
    indices = tf.cast(indices, tf.int64)
    indices = tf.where(indices < rows, indices, 2 * rows)
    after = tf.where(indices < 0, indices, indices + rows)
    return unsorted_segment_sum(tf.concat([values, tf.square(values)], 0), tf.concat([indices, after], 0), 2 * rows)


def descend(handle, slices, rate):
    """Subtracts rate times the values from the rows of a variable, and leaves other rows alone.

    The sum for a row goes to one of the places where it comes; at the others, zeros are subtracted, in whatever order."""
    indices, values = tf.cast(slices.indices, tf.int64), slices.values
    row, place, count = unique_with_counts(indices, tf.int64, padded=True)
    sums = unsorted_segment_sum(values, place, tf.size(indices) if values.shape[0] is None else values.shape[0])
    # Where no sum is, any row will do: zeros for the same one would all wait for each other.
    row = tf.where(count > 0, row, indices)
    return tf.raw_ops.ResourceScatterSub(resource=handle, indices=row, updates=sums * tf.cast(rate, values.dtype))
