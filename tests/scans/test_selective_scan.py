"""The selective scan beyond its case: what may be left out, the gate, sequences in parts, and long ones."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse


def drawn(batch, length, channels, states, groups=1, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"x": (batch, length, channels), "delta": (batch, length, channels), "a": (channels, states),
              "b": (batch, length, groups, states), "c": (batch, length, groups, states)}
    draw = {name: tf.constant(rng.normal(size=shape), tf.float32) for name, shape in shapes.items()}
    return {**draw, "delta": tf.nn.softplus(draw["delta"]), "a": -tf.abs(draw["a"])}


def test_what_is_not_given(device):
    """Zeros for skip and initial, and one group where b and c have no axis of groups."""
    given = drawn(2, 20, 6, 3)
    bare = {**given, "b": given["b"][:, :, 0], "c": given["c"][:, :, 0]}
    whole = {**given, "skip": tf.zeros([6]), "initial": tf.zeros([2, 6, 3])}
    for a, b in zip(tfuse.selective_scan(**bare), tfuse.selective_scan(**whole)):
        assert np.array_equal(a, b)


def test_arrays(device):
    """Of NumPy are taken as x's type, whatever theirs is."""
    given = {name: tf.cast(t, tf.bfloat16) for name, t in drawn(2, 20, 6, 3).items()}
    arrays = {name: tf.cast(t, tf.float64).numpy() for name, t in given.items() if name != "x"}
    for a, b in zip(tfuse.selective_scan(**given), tfuse.selective_scan(given["x"], **arrays)):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gate(device, dtype):
    given = {name: tf.cast(t, dtype) for name, t in drawn(2, 20, 6, 3).items()}
    z, (y, h) = tf.cast(tf.random.stateless_normal([2, 20, 6], [1, 2]), dtype), tfuse.selective_scan(**given)
    gated, same = tfuse.selective_scan(**given, z=z)
    wide = lambda t: tf.cast(t, tf.float32)
    assert np.array_equal(h, same) and h.dtype == tf.float32 and gated.dtype == dtype
    assert np.allclose(wide(gated), tf.nn.silu(wide(z)) * wide(y), rtol=1e-2 if dtype == "bfloat16" else 1e-5, atol=1e-5)


@pytest.mark.parametrize("length, channels", [(700, 70), (5000, 3)])
def test_parts(device, length, channels):
    """A sequence in two parts, of which the second begins with the states that the first has left, is the whole one, and so are
    its gradients. Long sequences of few channels are cut into pieces on a GPU."""
    given = drawn(2, length, channels, 4, seed=3)
    inputs = [given[name] for name in ("x", "delta", "a", "b", "c")]
    first = length // 3 + 1

    def parts(x, delta, a, b, c):
        y, h = tfuse.selective_scan(x[:, :first], delta[:, :first], a, b[:, :first], c[:, :first])
        more, h = tfuse.selective_scan(x[:, first:], delta[:, first:], a, b[:, first:], c[:, first:], initial=h)
        return tf.concat([y, more], 1), h

    results = []
    for f in (tfuse.selective_scan, parts):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y, h = f(*inputs)
            total = tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(h * h)
        results.append([y, h, *tape.gradient(total, inputs)])
    for whole, cut in zip(*results):
        assert np.allclose(whole, cut, rtol=1e-4, atol=1e-4 * np.max(np.abs(whole)))
