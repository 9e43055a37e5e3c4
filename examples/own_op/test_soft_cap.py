"""Values and gradients against float64, on every route: python -m pytest"""

import numpy as np
import pytest
import tensorflow as tf

from own_op import soft_cap


@pytest.mark.parametrize("dtype, close", [("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2), ("float64", 1e-14)])
@pytest.mark.parametrize("route", [{}, {"jit_compile": False}, {"jit_compile": True}], ids=["eager", "graph", "xla"])
def test_soft_cap(route, dtype, close):
    def step(x, cap, dy):
        with tf.GradientTape() as tape:
            tape.watch([x, cap])
            y = soft_cap(x, cap)
        return [y, *tape.gradient(y, [x, cap], dy)]

    rng = np.random.default_rng(0)
    x, dy = (tf.constant(rng.normal(size=(37, 129)) * 3, dtype) for _ in range(2))
    cap = tf.constant(2.5, "float64" if dtype == "float64" else "float32")
    got = (tf.function(step, **route) if route else step)(x, cap, dy)

    u, g = np.float64(tf.cast(x, tf.float64)) / 2.5, np.float64(tf.cast(dy, tf.float64))
    slope = 1 - np.tanh(u)**2
    terms = g * (np.tanh(u) - u * slope)  # of the sum that is dcap: they cancel, so its error is measured against them
    want = [2.5 * np.tanh(u), g * slope, np.sum(terms)]
    for a, b, like, size in zip(got, want, [x, x, cap], [10, 10, np.linalg.norm(terms)]):
        assert a.dtype == like.dtype
        np.testing.assert_allclose(tf.cast(a, tf.float64), b, rtol=close, atol=close * size)


def test_what_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="SoftCap: cap must be a single number"):
        soft_cap(tf.ones([3]), tf.ones([3]))
