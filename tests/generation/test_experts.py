"""Mixtures of experts: the router's choice, and the sum of the experts that rows name."""

import numpy as np
import pytest
import tensorflow as tf

from tfuse._core import _library

route, experts = _library.raw("route_experts"), _library.raw("experts")
FLOATS = ["float32", "float16", "bfloat16", "float64"]


def random(*shape, dtype="float32", seed=0):
    return tf.cast(tf.constant(np.random.default_rng([seed, *shape]).normal(size=shape)), dtype)


# ---- the router ----


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("rows, number, k", [(1, 8, 2), (37, 128, 8), (6, 33, 33), (5, 1, 1), (3, 70, 40)])
def test_routes(device, rows, number, k, normalized, dtype):
    logits = 3 * random(rows, number, dtype=dtype)
    weights, numbers = route(logits, top_k=k, normalized=normalized)
    assert weights.dtype == logits.dtype and numbers.dtype == tf.int64
    real = "float64" if dtype == "float64" else "float32"
    p = tf.cast(tf.nn.softmax(tf.cast(logits, real)), dtype)
    chosen = tf.gather(tf.cast(p, real), numbers, batch_dims=1)
    limit = {"float32": 2e-6, "float64": 2e-15, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    # Probabilities that differ in their last bit may change places; else the order is that of tf.math.top_k.
    likeliest = tf.math.top_k(tf.cast(p, real), k)[0]
    np.testing.assert_allclose(tf.cast(chosen, "float64"), tf.cast(likeliest, "float64"), rtol=limit)
    assert all(len(set(row)) == k for row in numbers.numpy().tolist())
    wanted = chosen / tf.reduce_sum(chosen, -1, keepdims=True) if normalized else chosen
    np.testing.assert_allclose(tf.cast(weights, "float64"), tf.cast(wanted, "float64"), rtol=limit)


def test_equal_ones_are_taken_in_order(device):
    """As tf.math.top_k does it, also where only rounding makes them equal; and what is not a number shows."""
    logits = tf.constant([[1.0, 2.0, 1.0, 2.0, 1.0, 2.0], [0.0] * 6])
    assert route(logits, top_k=4)[1].numpy().tolist() == [[1, 3, 5, 0], [0, 1, 2, 3]]
    near = tf.tile(tf.constant([[0.0, 0.001]]), [1, 40])  # 80 probabilities of two logits, which bfloat16 has as one
    assert route(tf.cast(near, "float32"), top_k=3)[1].numpy().tolist() == [[1, 3, 5]]
    assert route(tf.cast(near, "bfloat16"), top_k=3)[1].numpy().tolist() == [[0, 1, 2]]
    weights, numbers = route(tf.constant([[1.0, np.nan, 2.0]]), top_k=2)
    assert np.isnan(weights).all() and numbers.numpy().tolist() == [[0, 1]]


# ---- experts ----


def composed(dtype, x, weights, numbers, gate, up, down, residual):
    """All experts of all rows, as KerasHub does it."""
    x, weights, gate, up, down, residual = (tf.cast(t, dtype) for t in (x, weights, gate, up, down, residual))
    inner = tf.nn.silu(tf.einsum("ti,eio->eto", x, gate)) * tf.einsum("ti,eio->eto", x, up)
    counts = tf.reduce_sum(tf.one_hot(numbers, gate.shape[0], dtype=dtype) * weights[..., None], 1)
    return residual + tf.reduce_sum(tf.einsum("eti,eio->eto", inner, down) * tf.transpose(counts)[..., None], 0)


def sample(rows, number, k, width, inner, dtype):
    """A row names k experts, of which some rows name one twice; -1 and `number` are those of nobody."""
    scaled = lambda *shape: random(*shape, dtype=dtype) / tf.cast(shape[1]**0.5, dtype)
    named = np.random.default_rng(rows).integers(-1, number + 1, size=[rows, k])
    weights = tf.cast(tf.constant(np.random.default_rng(1).uniform(0.1, 1, size=[rows, k])), dtype)
    return [random(rows, width, dtype=dtype), weights, named, scaled(number, width, inner), scaled(number, width, inner) * 2,
            scaled(number, inner, width), random(rows, width, dtype=dtype, seed=2)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows, number, k, width, inner", [
    (1, 8, 2, 64, 136),  # few enough to be routed on a GPU, with a part of a tile of columns …
    (13, 16, 4, 264, 72),  # … several rows for an expert, more than it has at once for some
    (40, 4, 2, 64, 136),  # many, one expert after the other
    (3, 5, 2, 33, 17),  # rows of kernels that are not whole packs
    (5, 1, 1, 64, 64),
])
def test_values(device, rows, number, k, width, inner, dtype):
    given = sample(rows, number, k, width, inner, dtype)
    wanted, naive = (composed(t, *given) for t in ("float64", dtype))
    x, weights, numbers, gate, up, down, residual = given
    none = tf.zeros([0], dtype)
    apart = experts(*given, activation="silu")
    beside = experts(x, weights, numbers, tf.concat([gate, up], -1), none, down, residual, activation="silu")
    without = experts(x, weights, numbers, gate, up, down, none, activation="silu")
    error = lambda y, want: np.sqrt(np.mean(np.square(tf.cast(y, "float64") - want)))
    limit = max(2 * error(naive, wanted), 1e-14)
    assert error(apart, wanted) <= limit and error(beside, wanted) <= limit
    assert error(without, wanted - tf.cast(residual, "float64")) <= limit


def test_experts_that_nobody_names(device):
    """Are not looked at; and a row that names none is its residual."""
    x, weights, numbers, gate, up, down, residual = sample(6, 16, 2, 64, 64, "float32")
    numbers = np.array([[3, 7], [7, 3], [3, -1], [16, -1], [7, 7], [1 << 40, 3]])
    named = np.isin(np.arange(16), [3, 7])[:, None, None]
    clean, other = ([tf.where(named, kernel, there) for kernel in (gate, up, down)] for there in (0.0, np.nan))
    found = experts(x, weights, numbers, *other, residual, activation="silu")
    np.testing.assert_array_equal(found, experts(x, weights, numbers, *clean, residual, activation="silu"))
    np.testing.assert_array_equal(found[3], residual[3])


@pytest.mark.parametrize("change, message", [
    (dict(x=tf.ones([2, 8, 1])), r"x must be \[rows, inputs\], got shape \[2, 8, 1\]"),
    (dict(x=tf.ones([2, 7])), r"x and the inputs of gate must be of one size, got shapes \[2, 7\] and \[3, 8, 4\]"),
    (dict(weights=tf.ones([1, 2]), numbers=[[0, 1]]), r"weights must have the rows of x \[2, 8\], got shape \[1, 2\]"),
    (dict(numbers=[[0], [1]]), r"numbers must have the shape of weights, \[2, 2\], got \[2, 1\]"),
    (dict(gate=tf.ones([8, 4])), r"gate must be \[experts, inputs, outputs\], got shape \[8, 4\]"),
    (dict(gate=tf.ones([0, 8, 4]), up=tf.ones([0, 8, 4])), r"gate must have experts, inputs and outputs, got shape \[0, "),
    (dict(up=tf.ones([3, 8, 5])), r"up must have the shape of gate, \[3, 8, 4\], got \[3, 8, 5\]"),
    (dict(up=tf.ones([0]), gate=tf.ones([3, 8, 5])), r"without up, gate must have two halves of one size, got"),
    (dict(up=tf.ones([0])), r"down must have the experts of gate, and their outputs as its inputs, got shapes \[3, 4, 8\] and"),
    (dict(down=tf.ones([2, 4, 8])), r"down must have the experts of gate"),
    (dict(residual=tf.ones([2, 7])), r"residual must have the shape of the result, \[2, 8\], got \[2, 7\]"),
], ids=lambda value: "" if isinstance(value, str) else "-".join(value))
def test_refusals(change, message):
    given = dict(x=tf.ones([2, 8]), weights=tf.ones([2, 2]), numbers=[[0, 1], [1, 2]], gate=tf.ones([3, 8, 4]),
                 up=tf.ones([3, 8, 4]), down=tf.ones([3, 4, 8]), residual=tf.ones([2, 8]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        experts(*(tf.cast(value, "int64") if name == "numbers" else value for name, value in {**given, **change}.items()))


def test_routes_that_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"logits must be \[rows, experts\], got shape \[4\]"):
        route(tf.ones([4]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="top_k must be from 0 to the number of experts, got 5"):
        route(tf.ones([2, 4]), top_k=5)
