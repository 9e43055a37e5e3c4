"""scan_linear where factors become infinite when they are multiplied with each other, as kernels do that split a sequence."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("length", [40, 5000])
def test_a_state_of_zero_stays_zero_whatever_it_is_multiplied_by(device, length, axis, reverse):
    a, b = np.full([2, length, 8], 1e20, np.float32), np.zeros([2, length, 8], np.float32)
    b[:, -1] = 3
    want, seen = b.copy(), np.zeros_like(b)
    seen[:, 0] = 1  # the only result that has a gradient, and which only its own step adds to
    if reverse:
        b, want, seen = b[:, ::-1], want[:, ::-1], seen[:, ::-1]
    a, b, want, seen = (tf.constant(np.moveaxis(x, 1, axis)) for x in (a, b, want, seen))
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        y = tfuse.scan_linear(a, b, axis=axis, reverse=reverse)
    da, db = tape.gradient(y, [a, b], output_gradients=seen)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(db, seen)
    np.testing.assert_array_equal(da, tf.zeros_like(a))
