"""What the tests of tfuse.enable() share. A test file that imports left_as_it_was runs each of its tests inside it."""

import ast
import functools
import inspect
import re
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import since_now
from tfuse._keras import _enable, _missing, _replaced_images
from tfuse._keras._replaced import backend_module

NN = sys.modules[backend_module("nn")]  # Keras's functions on TensorFlow
LINEAR = {"Dense.call", "EinsumDense.call", *(row[1] for row in _replaced_images.SERVED)}
RNG = np.random.default_rng(0)
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
SPARSE = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def places():
    """Everything the tables name that is there now: (owner, name) and what it is."""
    found = {}
    for row in _enable._TABLE:
        _, _, there = _missing.place(row)
        value = None if there is _missing.ABSENT else there
        found[row.module, row.attribute] = getattr(value, "__code__", value) if row.in_place else value
    return found


_since_start = since_now()


def start():
    """What told(), ran() and reasons() tell is what comes after this."""
    global _since_start
    _since_start = since_now()


@pytest.fixture(autouse=True)
def left_as_it_was():
    before = places()
    start()
    yield
    tfuse.disable()
    after = places()
    assert all(after[place] is value for place, value in before.items() if value is not None)


def jit_of_ours(jit):
    """For jit_compile: with XLA where tfuse is enabled. What stock Keras gives, which is the yardstick, is the same without it,
    and XLA would compile it for longer."""
    return jit and _enable.is_on()


def told(**values):
    """The rows of tfuse.explain() since start() that have these values."""
    return _since_start(**values)


def ran():
    """The ops that ran since start(), of the last runs that the library remembers."""
    return {row["op"] for row in told(when="ran")}


def all_reasons():
    """Why what was left to Keras."""
    return {row["op"]: row["why"] for row in told(when="called")}


def reasons():
    """The same but for linear layers and convolutions, which are left to it where there is no GPU, and some where there is."""
    return {op: why for op, why in all_reasons().items() if op not in LINEAR}


def reasons_in(module):
    """The reasons that a module's guards give, as patterns: all texts of several words that its functions return or yield."""
    returned = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, (ast.Return, ast.Yield))]
    texts = [node.value for value in returned for node in ast.walk(value) if isinstance(node, ast.Constant)]
    texts = [text for text in texts if isinstance(text, str) and re.search(r"\w \w", text)]
    return [re.sub("%[sd]", ".+", re.escape(text)) for text in texts]


def check_declined(op, why, call):
    """That a call goes to Keras's own code for this reason, and gives what Keras gives, errors too."""
    state = RNG.bit_generator.state
    want = outcome(call)
    if isinstance(want, AttributeError):
        pytest.skip("this Keras has no such function: %s" % want)
    start()
    RNG.bit_generator.state = state
    with tfuse.enabled():
        got = outcome(call)
    assert all_reasons().get(op) == why
    row, = told(op=op)
    assert row["route"] == "Keras's own code"
    assert same(got, want) and (not isinstance(want, Exception) or str(got) == str(want)), (got, want)


def outcome(call):
    """What a call gives: an array, or the error that it raises."""
    try:
        return np.asarray(call())
    except Exception as error:
        return error


def same(got, want):
    """Whether two outcomes are: both errors, or values within rounding."""
    if isinstance(got, Exception) or isinstance(want, Exception):
        return isinstance(got, Exception) and isinstance(want, Exception)
    return got.dtype == want.dtype and got.shape == want.shape and np.allclose(got, want, 1e-4, 1e-5, equal_nan=True)


def layer(make, *shape):
    """A layer with weights that matter, built once."""
    made = make()
    made.build(shape)
    made.set_weights([normal(*w.shape) for w in made.weights])
    return made


def close(got, want, tolerance, name=""):
    """Within a tolerance of the size of what is wanted."""
    got, want = np.asarray(tf.cast(got, tf.float32)), np.asarray(tf.cast(want, tf.float32))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max()), err_msg=name)


def _results(call, weights):
    """Outputs, and gradients of weights where there are any. The loss is a sum, so that gradients are not small beside 1, and
    of tanh, so that a mask's -1e9 among the outputs has no share in them."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = tf.nest.flatten(call())
        loss = tf.add_n([tf.reduce_sum(tf.tanh(y)) for y in outputs])
    return outputs, tape.gradient(loss, weights) if weights else []


def reasons_but_rotary():
    """Without that of an embedding whose frequencies tfuse.rope does not know, as some models have it beside their attention."""
    return {op: why for op, why in reasons().items() if op != "RotaryEmbedding.call"}


def sampler_of_ones_own():
    """A greedy one that tfuse does not know: generate() is left to KerasHub's own loop, and what that calls is seen."""
    import keras_hub

    return type("Greedy", (keras_hub.samplers.GreedySampler,), {})()


def check_attention(call, weights, tolerance=1e-5):
    """That a call gives what it gives without tfuse, by tfuse.attention; and gradients of weights, to ten times the
    tolerance."""
    want, dwant = _results(call, weights)
    start()
    with tfuse.enabled():
        got, dgot = _results(call, weights)
    # The library remembers 64 runs: with a GPU, which runs more of a model's layers, the gradients alone may be as many.
    assert ("AttentionGrad" if weights else "Attention") in ran() and not reasons_but_rotary()
    assert [y.dtype for y in got] == [y.dtype for y in want]
    for a, b in zip(got, want, strict=True):
        close(a, b, tolerance)
    for a, b in zip(dgot, dwant, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            close(tf.convert_to_tensor(a), tf.convert_to_tensor(b), 10 * tolerance)


# ---- what Keras is called with ----

X, GAMMA, Q = normal(3, 5, 8), normal(8), normal(2, 6, 4, 8)
MASK, LABELS = RNG.random((2, 1, 6, 7)) < 0.7, RNG.integers(0, 8, (3, 5))
MASK[..., 0] = True
TARGETS = keras.utils.to_categorical(LABELS, 8)
# Stock models learn from it with all weights that the tests begin with; at their learning rate not all data is so kind.
TOKENS = np.random.default_rng(0).integers(1, 32, (16, 12))
TOKENS[::4, 9:] = 0  # padding, at the end
NORM, SOFTMAX = layer(keras.layers.LayerNormalization, 3, 5, 8), keras.layers.Softmax()

# The ops behind Keras's attention. From 3.7 on it has this function, and layers that can be served.
ATTENTION = {"Attention", "AttentionGrad"} if hasattr(keras.ops, "dot_product_attention") else set()
needs_attention = pytest.mark.skipif(not ATTENTION, reason="this Keras has no dot_product_attention")
