"""Rows kernels of tfuse.jit: values and gradients of reductions, and of what is computed from them."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from formulas import FLOATS, ROWS, X, gradient, refused, rows_case, rows_inputs, run_program
from tfuse import cases


def typical(naive, inputs, dtype):
    """Errors of the naive composition's value and gradients over a few larger draws, where luck plays no part."""
    draws = []
    for seed in range(1, 4):
        rng = np.random.default_rng(seed)
        drawn = [tf.constant(rng.normal(size=(64, 37)), dtype), *inputs[1:]]
        wide = [tf.cast(t, tf.float64) for t in drawn]
        want = naive(*wide)
        dy = tf.constant(rng.normal(size=want.shape), dtype)
        pairs = zip([naive(*drawn), *gradient(naive, *drawn, dy=dy)],
                    [want, *gradient(naive, *wide, dy=tf.cast(dy, tf.float64))])
        draws.append([cases.error(got, w.numpy()) for got, w in pairs])
    return [max(errors) for errors in zip(*draws)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ROWS)
def test_rows(name, dtype, device):
    """Values and gradients, against the composition in float64; and of programs."""
    function, naive, declared, more = rows_case(name)
    inputs = rows_inputs(declared, more, dtype)
    wide = [tf.cast(t, tf.float64) for t in inputs]
    want, y = naive(*wide), function(*inputs)
    often, *often_of_gradients = typical(naive, inputs, dtype)
    assert y.dtype == dtype and y.shape == want.shape
    assert cases.error(y, want.numpy()) <= cases.allowed(naive(*inputs), want.numpy(), dtype, often)
    dy = tf.constant(np.random.default_rng(5).normal(size=want.shape), dtype)
    wants = gradient(naive, *wide, dy=tf.cast(dy, tf.float64))
    naives = gradient(naive, *inputs, dy=dy)
    for got, naive_one, w, often in zip(gradient(function, *inputs, dy=dy), naives, wants, often_of_gradients):
        assert got.shape == w.shape and cases.error(got, w.numpy()) <= cases.allowed(naive_one, w.numpy(), dtype, often)
    if dtype == "float64":
        assert cases.error(tf.constant(run_program(function.kernel, inputs)[0]), y.numpy()) < 1e-13
        derived, _ = function._gradient_operation(tuple(range(len(inputs))))
        known = dict(zip(function._gradient_names(), [*inputs, function._spread(y), function._spread(dy)]))
        tensors = [known[n] for n in derived.names]
        for got, plain in zip(run_program(derived.kernel, tensors), derived.kernel.plain(tensors)):
            assert cases.error(tf.constant(got), plain.numpy()) < 1e-12


@pytest.mark.parametrize("name", ["softmax", "softmax_through_max", "layer_norm", "rms", "logsumexp"])
def test_second_gradients_of_rows(name):
    function, naive, declared, more = rows_case(name)
    inputs = rows_inputs(declared, more, "float64")
    dy = tf.constant(np.random.default_rng(5).normal(size=naive(*inputs).shape))

    def second(f):
        return gradient(lambda *inputs: tf.add_n([tf.reduce_sum(tf.sin(g)) for g in gradient(f, *inputs, dy=dy)]),
                        *inputs)

    for got, want in zip(second(function), second(naive)):
        assert cases.error(got, want.numpy()) < 1e-11


def test_gradients_of_equal_maxima_are_shared():
    x = tf.constant([[1., 3., 3.], [2., 2., 2.], [-1., -5., -1.]])
    f = tfuse.jit.rows("T x", "T y", map="x", reduce="max(a, b)", grad=True)
    assert np.array_equal(gradient(f, x)[0], gradient(lambda x: tf.reduce_max(x, -1), x)[0])
    floored = tfuse.jit.rows("T x", "T y", map="x", reduce="max(a, b)", identity="0", grad=True)
    assert floored(x).numpy().tolist() == [3, 2, 0]
    assert np.allclose(gradient(floored, x)[0], [[0, .5, .5], [1 / 3] * 3, [0, 0, 0]])


@pytest.mark.parametrize("columns", [0, 1, 2, 3, 8, 37])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_any_reduction(columns, known):
    """One that TensorFlow has not: the value of the largest magnitude."""
    f = tfuse.jit.rows("T x", "T y", map="x", reduce="abs(a) >= abs(b) ? a : b", identity=0)
    x = X[:, :columns]
    call = f if known else tf.function(f, input_signature=[tf.TensorSpec([None, None], tf.float64)])
    want = [row[np.argmax(np.abs(row))] if columns else 0 for row in x]
    assert np.array_equal(call(tf.constant(x)), want) and np.array_equal(run_program(f.kernel, [x])[0], want)


def test_an_unknown_number_of_axes():
    any_shape = tf.TensorSpec(None, tf.float64)
    for function in (rows_case("softmax")[0], rows_case("mean")[0],
                     tfuse.jit.elementwise("T x", "T y", "x * exp(x)", grad=True)):
        both = lambda x: (function(x), *gradient(function, x))
        for got, want in zip(tf.function(both, input_signature=[any_shape])(tf.constant(X)), both(tf.constant(X))):
            assert got.shape == want.shape and np.allclose(got, want, rtol=1e-13, atol=1e-15)


def test_text_of_a_gradient_sees_results_that_the_value_does_not_use():
    f = tfuse.jit.rows("T x, R eps", "T y", map=["x", "x * x"], reduce="a + b", final="r0 + eps",
                       grad="dx = dy * result")
    assert np.allclose(gradient(f, tf.constant(X), tf.constant(1., tf.float64))[0],
                       (X * X).sum(-1, keepdims=True) + 0 * X)


def test_final_takes_what_is_the_same_along_a_row(jit):
    """Whether it is so may not be known before the kernel runs."""
    f = tfuse.jit.rows("T x, T z, R w", "T y", map="x", reduce="a + b", final="result / z + w", grad=True, name="over")
    x, z, w = tf.constant(X), tf.constant(X[:, :1]), tf.constant(2.0, tf.float64)
    want = X.sum(-1) / X[:, 0] + 2
    assert np.allclose(f(x, z, w), want) and np.allclose(f(x, z, 2.0), want)
    assert np.allclose(gradient(f, x, z, w)[1], -(X.sum(-1) / X[:, 0]**2)[:, None])
    for vector in (x[0], x):
        for number in (w, 2.0):  # of dtypes that are known by now: the short way is tried
            message = refused(lambda: f(x, vector, number))
            assert "over: final is computed once for each row, so z must be the same along it" in message
            assert "its last axis is 1" in message.replace("whose", "its") and "post=\"y = …\"" in message
    with pytest.raises(ValueError, match="z must be the same along it"):
        tf.function(f, jit_compile=jit)(x, x, w)
    unknown = [tf.TensorSpec([None] * 2, tf.float64)] * 2 + [tf.TensorSpec([], tf.float64)]
    traced = tf.function(f, jit_compile=jit, input_signature=unknown)
    assert np.allclose(traced(x, z, w), want)
    with pytest.raises(tf.errors.OpError, match=r"z must be the same along a row, as final uses it: its last axis must be 1"):
        traced(x, x, w)


def test_rows_without_elements():
    total = tfuse.jit.rows("T x", "T y", map="x", reduce="a + b", grad=True)
    assert total(tf.ones([3, 0])).numpy().tolist() == [0] * 3 and total(tf.ones([0, 3])).shape == [0]
    assert gradient(total, tf.ones([3, 0]))[0].shape == [3, 0]


def test_gradient_of_rows_as_text_and_function():
    x, dy = tf.constant(X), tf.constant(X[:, 0])
    text = tfuse.jit.rows("T x", "T y", map="x * x", reduce="a + b", final="sqrt(result)", grad="dx = dy * x / y")
    function = tfuse.jit.rows("T x", "T y", map="x * x", reduce="a + b", final="sqrt(r0)",
                              grad=lambda x, y, dy: dy[:, None] * x / y[:, None])
    for f in (text, function):
        assert np.allclose(gradient(f, x, dy=dy)[0], gradient(lambda x: tf.norm(x, axis=-1), x, dy=dy)[0])
    uses = tfuse.jit.rows("T x", "T y", map="x", reduce="max(a, b)", post="x - result",
                          grad="dx = dy * (x < result) + n")
    assert np.allclose(gradient(uses, x)[0], (X < X.max(-1, keepdims=True)) + 37)


def test_several_outputs_of_rows():
    f = tfuse.jit.rows("T x", "T y, T z", map="x", reduce="a + b", post="y = x / result; z = result", grad=True)
    y, z = f(tf.constant(X))
    assert np.allclose(y, X / X.sum(-1, keepdims=True)) and np.allclose(z, X.sum(-1, keepdims=True) + 0 * X)
    got = gradient(lambda x: tf.reduce_sum(tf.sin(f(x)[0]) * f(x)[1]), tf.constant(X))[0]
    total = lambda x: tf.reduce_sum(x, -1, keepdims=True)
    assert np.allclose(got, gradient(lambda x: tf.reduce_sum(tf.sin(x / total(x)) * total(x)), tf.constant(X))[0])
