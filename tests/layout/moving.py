"""What the tests of ops that move bits share: they are exact."""

import numpy as np
import tensorflow as tf

DTYPES = ["float32", "float16", "bfloat16", "float64", "int32", "int64", "bool"]


def some(rng, shape, dtype):
    return tf.cast(tf.constant(rng.integers(0, 2 if dtype == "bool" else 2000, size=shape)), dtype)


def values(tensor):
    return np.asarray(tensor if tensor.dtype == tf.bool else tf.cast(tensor, tf.float64))
