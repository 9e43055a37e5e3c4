"""Chains: ops that run one after the other as one op give what they give by themselves."""

import numpy as np
import pytest
import tensorflow as tf

from conftest import GPUS
from tfuse._core import _library
from tfuse._core._chain import Chain
from tfuse._tools import _tune

norm, linear = _library.raw("norm"), _library.raw("linear")  # what their functions leave to TensorFlow on a CPU is not meant here

ROWS, WIDTH, HIDDEN = 3, 16, 32


def tensors(dtype):
    rng = np.random.default_rng(0)
    shapes = [(ROWS, WIDTH), (WIDTH,), (WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH)]
    return [tf.cast(tf.constant(rng.normal(size=shape) / 4), dtype) for shape in shapes]


def block(chain, x, scale, up, bias, down):
    """x + gelu(rms_norm(x) . up + bias) . down, written to x."""
    normed, _, _ = chain.call("norm", x, None, scale, None, None, kind="rms", epsilon=1e-6)
    inner, _ = chain.call("linear", normed, up, bias, None, None, activation="gelu")
    chain.call("linear", inner, down, None, x, None, into=[x])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("runs, times", [(1, 1), (4, 1), (1, 4), (2, 0)])
def test_what_ops_give_by_themselves(dtype, runs, times):
    """On a GPU the first run queues the ops, the second captures them, and later ones launch the graph. In bfloat16 products
    are chosen by trial there, and a chain's may be another than that of the op by itself."""
    x, scale, up, bias, down = tensors(dtype)
    scale, expected, empty = tf.cast(scale, "float32"), x, tf.zeros([0], dtype)
    for _ in range(runs * times):
        y = norm(expected, empty, scale, tf.zeros([0]), tf.zeros([0], "int64"), kind="rms", epsilon=1e-6).y
        y = linear(y, up, bias, empty, empty, activation="gelu").y
        expected = linear(y, down, empty, expected, empty).y
    chain, x = Chain(), x + 0
    block(chain, *map(chain.input, [x, scale, up, bias, down]))
    for _ in range(runs):
        chain.run(times)
    found, expected = tf.cast(x, "float32"), tf.cast(expected, "float32")
    if dtype == "bfloat16" and GPUS:
        ops, rounding = 3 * runs * times, 2.0**-8
        np.testing.assert_allclose(found, expected, rtol=ops * rounding, atol=ops * rounding * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_queued_and_captured_runs_are_the_same(dtype):
    """Four calls of one chain, of which a GPU captures the second, and one call that runs another chain four times."""
    given, found = tensors(dtype), []
    for calls, times in ((4, 1), (1, 4), (2, 2)):
        chain, x = Chain(), given[0] + 0
        scale = tf.cast(given[1], "float64" if dtype == "float64" else "float32")
        block(chain, *map(chain.input, [x, scale, *given[2:]]))
        for _ in range(calls):
            chain.run(times)
        found.append(tf.cast(x + 0, "float64").numpy())
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    assert (found[0] != tf.cast(given[0], "float64").numpy()).any()


def test_weights_that_a_chain_writes_are_not_read_ahead():
    """On a GPU a product of few rows reads its kernel while what was queued before it runs: not where that writes the kernel."""
    few = next(t for t in _tune.tunables() if t.name == "few_rows_most")
    few.put(few.most)
    x, kernel = tf.cast(tf.random.normal([4, 512]), "bfloat16"), tf.cast(tf.random.normal([512, 512]), "bfloat16")
    made, y = tf.zeros_like(kernel), tf.zeros([4, 512], "bfloat16")
    chain = Chain()
    a, there = chain.input(kernel), chain.input(made)
    chain.call("transpose", a, into=[there], perm=0x01)
    chain.call("linear", chain.input(x), there, None, None, None, into=[chain.input(y)])
    chain.call("scale_bias_act", there, None, None, into=[there], activation="relu")
    for _ in range(8):
        chain.run()
    few.put(few.value)
    want = tf.matmul(tf.cast(x, "float64"), tf.cast(kernel, "float64"), transpose_b=True)
    np.testing.assert_allclose(tf.cast(tf.identity(y), "float64"), want, rtol=0.02, atol=0.2)


def test_shapes_can_be_seen_otherwise():
    x, y = tf.random.normal([6, 4]), tf.zeros([3, 8])
    chain = Chain()
    chain.call("transpose", chain.input(x).seen_as(2, 3, 4), into=[chain.input(y)], perm=0x201)
    chain.run()
    np.testing.assert_array_equal(tf.reshape(y, [3, 2, 4]), tf.transpose(tf.reshape(x, [2, 3, 4]), [1, 0, 2]))


def test_temporaries_are_few():
    """Values that nobody reads any more leave their memory to others."""
    x = tf.random.normal([64])
    chain = Chain()
    at = chain.input(x)
    for _ in range(100):
        at = chain.call("square", at)
    chain.run()
    assert len(chain._memory) <= 2 * 256


REFUSED = {
    "unlike": (lambda c, x: c.call("square", x.seen_as(5)), r"op 0, Square: i1 of shape \[4\] cannot be seen as \[5\]"),
    "shape rule": (lambda c, x: c.call("transpose", x, perm=5), r"op 0, Transpose: perm must name each axis"),
    "result": (lambda c, x: c.call("square", x, into=[c.input(tf.zeros([3]))]), r"float32\[4\], and i2, .* is float32\[3\]"),
    "no op": (lambda c, x: c.call("chain", x), "there is no op chain that a chain can have"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    add, message = REFUSED[name]
    chain = Chain()
    add(chain, chain.input(tf.zeros([4])))
    with pytest.raises(ValueError, match=message):
        chain.run()


def test_unknown_attributes():
    chain = Chain()
    chain.call("square", chain.input(tf.zeros([4])), power=2)
    with pytest.raises(TypeError, match="square has no attribute power"):
        chain.run()


def test_the_memory_comes_first():
    with pytest.raises(tf.errors.InvalidArgumentError, match="the first input must be the memory, of uint8, got float32"):
        _library.raw("chain")([tf.zeros([4])], text="square i0 = i0 |")


@pytest.mark.parametrize("operand", ["i4294967295", "t4294967295", "t64", "i99999999999999999999"])
def test_operands_that_are_nowhere(operand):
    """The text may come from a damaged file."""
    chain = _library.raw("chain")
    for text in ("square %s = i1 |" % operand, "square i1 = %s |" % operand):
        with pytest.raises(tf.errors.InvalidArgumentError, match="nothing beyond|there are 2 inputs"):
            chain([tf.zeros([4096], "uint8"), tf.zeros([4])], text=text)


def test_as_many_inputs_as_a_deep_decoder_has():
    chain, given = Chain(), [tf.zeros([2]) for _ in range(1200)]
    table, numbers = (chain.input(tf.constant(x)) for x in (np.arange(6.0, dtype="float32").reshape(3, 2), np.array([1])))
    for x in given:
        chain.call("take_rows", table, numbers, into=[chain.input(x)])
    for _ in range(3):
        chain.run()
    np.testing.assert_array_equal(tf.stack(given), [[2.0, 3.0]] * 1200)
