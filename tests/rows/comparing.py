"""What the tests of rows share: tensors, and how near to each other results must be."""

import numpy as np
import tensorflow as tf

EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}


def normal(*shape, seed=0, dtype="float32"):
    return tf.cast(np.random.default_rng(seed).normal(size=shape) * 2, dtype)


def numbers(tensor):
    return np.asarray(tf.cast(tensor, tf.float64))


def close(got, want, factor=8, dtype=None):
    """Within some units in the last place of the largest value."""
    got, want = numbers(got), numbers(want)
    scale = np.max(np.abs(want[np.isfinite(want)]), initial=1e-30)
    np.testing.assert_allclose(got, want, rtol=0, atol=factor * EPSILON[dtype or "float32"] * scale)


def gradients(f, *inputs):
    """Of f's results, weighted so that none is trivial."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        results = tf.nest.flatten(f(*inputs))
        loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float64) * numbers(normal(*r.shape, seed=9))) for r in results])
    return tape.gradient(loss, inputs)
