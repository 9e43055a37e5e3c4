"""scale_channels beyond its cases: what a factor of 0 does to values that are not finite."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse.convolution.scale_channels import drop_images

VALUES = [np.nan, np.inf, -np.inf, 1.0, -2.0]


@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_factors_of_zero(device, dtype, channels):
    """A product is one of IEEE's: NaN where something that is not finite meets 0. What is dropped is 0, whatever it was."""
    x = tf.cast(tf.constant(np.resize(VALUES, [2, 5, channels])), dtype)
    scale = tf.constant([[[0.0] * channels], [[2.0] * channels]], dtype)
    as64 = lambda t: tf.cast(t, tf.float64).numpy()
    with np.errstate(invalid="ignore"):
        want = as64(x) * as64(scale)
    for f, kept in ((tfuse.scale_channels, want), (drop_images, np.where(as64(scale) == 0, 0, want))):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x, scale if f is tfuse.scale_channels else scale[..., :1])
        np.testing.assert_array_equal(as64(y), kept)
        np.testing.assert_array_equal(as64(tape.gradient(y, x, x)), kept)  # dy * scale, and dy is x here
