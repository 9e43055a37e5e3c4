"""Ops inside TensorFlow's constructs: pipelines, maps, loops, branches, recomputation, forward mode; XLA's kernels."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import needs_xla

X = np.random.default_rng(5).normal(size=(6, 4)).astype("float32")
SCALE = tf.constant([1.0, -2.0, 0.5, 3.0])
FUSED = lambda x: tfuse.add_constant(tfuse.scale_bias_act(x, SCALE, activation="gelu_tanh"), 0.1)
STOCK = lambda x: tf.nn.gelu(x * SCALE, approximate=True) + 0.1
close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)  # stock gelu cancels in its tail


def test_data_pipeline():
    rows = tf.data.Dataset.from_tensor_slices(X).batch(4).map(FUSED, num_parallel_calls=2)
    close(np.concatenate([np.asarray(r) for r in rows]), STOCK(X))


@pytest.mark.parametrize("mapped", [tf.map_fn, tf.vectorized_map], ids=["map_fn", "vectorized_map"])
def test_mapped(mapped):
    close(tf.function(lambda x: mapped(FUSED, x))(X), STOCK(X))


def test_gradient_of_a_loop(jit):
    def gradient(f, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, f(y)), (0, x), maximum_iterations=3)[1]
        return tape.gradient(y, x)

    got, want = (tf.function(functools.partial(gradient, f), jit_compile=jit)(tf.constant(X)) for f in (FUSED, STOCK))
    close(got, want)


def test_recompute_grad():
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, SCALE])
        got, want = tf.recompute_grad(FUSED)(x), STOCK(x)
    close(tape.gradient(got, x), tape.gradient(want, x))


def test_forward_mode_and_jacobian():
    results = []
    for f in (FUSED, STOCK):
        x = tf.constant(X)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            y = f(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            z = f(x)
        results.append((forward.jvp(y), tape.jacobian(z, x)))
    for got, want in zip(*results):
        close(got, want)


def test_branches(jit):
    f = tf.function(lambda x, c: tf.cond(c, lambda: FUSED(x), lambda: tfuse.square(x)), jit_compile=jit)
    close(f(X, tf.constant(True)), STOCK(X))
    close(f(X, tf.constant(False)), X * X)


@needs_xla
@pytest.mark.parametrize("forward", [lambda x: x, lambda x: tf.reshape(tf.transpose(tf.identity(x), [0, 3, 1, 2]), [2, 8, 16]),
                                     lambda x: -x], ids=["", "reshape", "negative"])
@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 1e-2), ("float16", 1e-3), ("float64", 1e-6), ("float32", 1e-6)])
def test_xla_kernels_that_leave_float32(device, dtype, tolerance, forward):
    """XLA's ResizeBilinearGrad gives float32 for all dtypes. What tfuse calls gets the dtype that the graph says."""
    grads, x = tf.random.stateless_normal([2, 8, 8, 8], [0, 1]), tf.zeros([2, 4, 4, 8], dtype)
    resized = lambda: forward(tf.raw_ops.ResizeBilinearGrad(grads=grads, original_image=x, half_pixel_centers=True))
    got = tf.function(lambda: tfuse.softmax(resized()), jit_compile=True)()
    assert got.dtype == dtype
    np.testing.assert_allclose(tf.cast(got, tf.float64), tf.nn.softmax(tf.cast(resized(), tf.float64)), atol=tolerance)


@needs_xla
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_xla_keeps_no_casts(device, dtype):
    """Where the dtype is right already."""
    f, x = tf.function(lambda x: tfuse.softmax(x), jit_compile=True), tf.ones([2, 16], dtype)
    assert [op.type for op in f.get_concrete_function(x).graph.get_operations()].count("Cast") == 2
    program = f.experimental_get_compiler_ir(x)("optimized_hlo")
    assert "tfuse.softmax" in program and "convert" not in program
