"""Inside XLA, sizes that are unknown while a function is traced, and are not what they might be taken for."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import since_now
from tfuse.products.batched_matmul import fused

# Functions, what is known of their inputs' shapes while they are traced, and shapes that they are then called with.
_UNKNOWN = {
    "batched_matmul's batches": (fused, [(None, 4, 5), (None, 5, 6)], [
        [(1, 4, 5), (3, 5, 6)], [(3, 4, 5), (1, 5, 6)], [(3, 4, 5), (3, 5, 6)], [(1, 4, 5), (0, 5, 6)]]),
    "batched_matmul's one batch": (fused, [(None, 4, 5), (3, 5, 3)], [[(1, 4, 5), (3, 5, 3)], [(3, 4, 5), (3, 5, 3)]]),
    "batched_matmul's batches of several axes": (fused, [(None, 4, 5), (None, None, 5, 6)], [[(3, 4, 5), (2, 1, 5, 6)]]),
    "attention's bias": (tfuse.attention, [(None, None, None, 8)] * 3 + [(None,) * 4], [
        [(3, 4, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), bias] for bias in [(1, 2, 1, 5), (3, 1, 4, 1), (3, 2, 4, 5)]]),
    "attention's bias alone": (tfuse.attention, [(3, 4, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), (None,) * 4], [
        [(3, 4, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), (1, 2, 4, 1)]]),
    "attention's mask": (lambda q, k, v, mask: tfuse.attention(q, k, v, mask=mask > -1), [(None, None, 2, 8)] * 3 + [
        (None,) * 4], [[(3, 4, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), mask] for mask in [(1, 2, 1, 5), (3, 1, 4, 1)]]),
    "softmax's mask": (lambda x, mask: tfuse.softmax(x, mask=mask), [(None, None, 5), (None, None, 5)], [
        [(3, 4, 5), (1, 4, 5)], [(3, 4, 5), (3, 1, 5)]]),
    "softmax's mask of fewer axes": (lambda x, mask: tfuse.softmax(x, mask=mask > -1), [(None, None, 5), (5, None)], [
        [(3, 5, 5), (5, 5)], [(3, 5, 5), (5, 1)]]),
    "softmax's mask alone": (lambda x, mask: tfuse.softmax(x, mask=mask), [(3, 4, 5), (None, None, None)], [
        [(3, 4, 5), (1, 4, 1)]]),
    "two of eight axes": (lambda x: tfuse.gelu(tfuse.sort(x)), [(1, 2, None, 1, 2, 1, 1, None)], [[(1, 2, 3, 1, 2, 1, 1, 5)]]),
    "scale_bias_act's bias": (tfuse.scale_bias_act, [(None, 5), (5,), (None,)], [[(3, 5), (5,), (5,)]]),
    "layer_norm's beta": (tfuse.layer_norm, [(None, 5), (5,), (None,)], [[(3, 5), (5,), (5,)]]),
    "cross_entropy's targets": (lambda x, t: tfuse.cross_entropy(x, tf.nn.softmax(t)), [(None, None), (7, None)], [
        [(7, 5), (7, 5)]]),
}


@pytest.mark.usefixtures("xla")
@pytest.mark.parametrize("name", _UNKNOWN)
def test_unknown_sizes_that_differ(device, name):
    """XLA takes each output's sizes from the input that has them: of two that broadcast, not the one with 1; and two axes are
    not of one size because they are unknown both, or because a third one has what one of them has to have."""
    f, known, calls = _UNKNOWN[name]

    def step(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = f(*inputs)
        gradients = tape.gradient(y, inputs, tf.cos(y))
        return [y, *(g for g in gradients if g is not None)]

    compiled = tf.function(step, autograph=False, jit_compile=True, input_signature=list(map(tf.TensorSpec, known)))
    rng = np.random.default_rng(3)
    told = since_now()
    for shapes in calls:
        inputs = [tf.constant(rng.normal(size=shape), tf.float32) for shape in shapes]
        for got, want in zip(compiled(*inputs), step(*inputs), strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert {row["route"] for row in told(when="traced")} == {"XLA custom call"}
