"""Elementwise kernels of tfuse.jit: dtypes, numbers, broadcasting and gradients."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from formulas import FLOATS, X, gradient, refused
from tfuse.jit._functions import FUNCTIONS, SHORTHANDS


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes_and_mixed_placeholders(dtype, device):
    f = tfuse.jit.elementwise("T x, U mask, V scale, R beta", "T y, V z", "y = mask ? x * beta : 0; z = scale * beta",
                              grad=True)
    x, scale = tf.constant(X, dtype), tf.constant(X[0], tf.float32)
    for mask in (X > 0, (X > 0).astype(np.int32) * 3, (X > 0).astype(np.int64)):
        mask = tf.constant(mask)
        y, z = f(x, mask, scale, 0.5)
        assert y.dtype == dtype and z.dtype == tf.float32 and y.shape == z.shape == X.shape
        assert np.array_equal(tf.cast(y, tf.float64), np.where(X > 0, tf.cast(x, tf.float64) * 0.5, 0))
        with tf.GradientTape() as tape:
            tape.watch([x, mask, scale])
            y, z = f(x, mask, scale, 0.5)
        dx, dmask, dscale = tape.gradient([y, z], [x, mask, scale])
        assert dmask is None and dx.dtype == dtype and dscale.shape == scale.shape
        assert np.array_equal(tf.cast(dx, tf.float64), (X > 0) * 0.5) and np.allclose(dscale, 0.5 * 5)


def test_numbers_arrays_and_variables():
    f = tfuse.jit.elementwise("T x, R beta", "T y", "x * beta")
    for dtype in FLOATS:
        for beta in (2, 2.0, np.float32(2), np.int64(2), True + 1):
            y = f(tf.constant([1, 2], dtype), beta)
            assert y.dtype == dtype and y.numpy().tolist() == [2, 4]
    assert f(tf.Variable([1., 2.]), tf.Variable(2.)).numpy().tolist() == [2, 4]
    assert f([1., 2.], [3., 4.]).numpy().tolist() == [3, 8] and f(3, 4).dtype == tf.float32
    assert f(np.ones(2), np.ones(2)).dtype == tf.float64
    same = tfuse.jit.elementwise("T x, T z", "T y", "x + z")
    assert same(1, tf.constant([1, 2], tf.float16)).dtype == tf.float16
    assert same(np.ones(2), tf.ones(2, tf.bfloat16)).dtype == tf.bfloat16


def test_another_number_is_the_same_kernel():
    f, seen = tfuse.jit.elementwise("T x, R beta", "T y", "x * beta"), []
    traced = tf.function(lambda x, beta: seen.append(1) or f(x, beta))
    assert [traced(tf.ones([2]), tf.constant(b)).numpy()[0] for b in (1., 2., 3.)] == [1, 2, 3] and len(seen) == 1


def test_numbers_that_are_kept_as_tensors():
    """From call to call, by value, type and the other inputs' dtypes."""
    f = tfuse.jit.elementwise("T x, R beta", "T y", "x * beta")
    for _ in range(2):
        for beta in (2, 2.0, 0.0, True, *range(300)):
            for dtype in (tf.float32, tf.float64, tf.bfloat16):
                y = f(tf.ones([2], dtype), beta)
                assert y.dtype == dtype and np.all(tf.cast(y, tf.float64) == float(tf.cast(beta, dtype)))
        assert np.all(np.isnan(f(tf.ones([2]), float("nan"))))
    assert len(f._ready) <= 256


SHAPES = [((2, 3, 4), (3, 1)), ((4,), (2, 3, 4)), ((2, 1, 4), (1, 3, 1)), ((), (5,)), ((0, 3), (3,)), ((2, 3), (2, 3)),
          ((), ()), ((1,), (1, 1))]


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(shapes, known, device):
    """Gradients of what was broadcast are summed, whether sizes are known or not."""
    f = tfuse.jit.elementwise("T x, T z", "T y", "x * exp(z)", grad=True)
    draw = np.random.default_rng(3)
    x, z = (tf.constant(draw.normal(size=s)) for s in shapes)
    both = lambda x, z: (f(x, z), *gradient(f, x, z))
    if not known:
        both = tf.function(both, input_signature=[tf.TensorSpec([None] * len(s), tf.float64) for s in shapes])
    y, dx, dz = both(x, z)
    assert np.allclose(y, x.numpy() * np.exp(z.numpy()))
    wants = gradient(lambda x, z: x * tf.exp(z), x, z)
    for got, want in zip((dx, dz), wants):
        assert got.shape == want.shape and np.allclose(got, want, rtol=1e-13, atol=1e-14)


def test_an_output_that_uses_no_input_has_the_shape_of_all():
    f = tfuse.jit.elementwise("T x, T z", "T y, T u", "y = 2; u = z", grad=True)
    y, u = f(tf.ones([2, 1]), tf.ones([3]))
    assert y.shape == u.shape == [2, 3] and np.all(y.numpy() == 2)
    dx, dz = gradient(lambda x, z: f(x, z)[0], tf.ones([2, 1]), tf.ones([3]))
    assert not np.any(dx) and not np.any(dz) and dx.shape == [2, 1]


def test_outputs_that_are_inputs_have_gradients():
    f = tfuse.jit.elementwise("T x", "T y, T u, T v", "y = x; u = x; v = x * x", grad=True)
    x = tf.constant(X)
    assert np.allclose(gradient(lambda x: f(x)[0] + 2 * f(x)[1] + f(x)[2], x)[0], 3 + 2 * X)
    second = gradient(lambda x: gradient(lambda x: sum(y * y for y in f(x)), x)[0], x)[0]
    assert np.allclose(second, 4 + 12 * X * X)


def test_gradient_as_text():
    f = tfuse.jit.elementwise("T x, R beta, T z", "T y", "y = x * sigmoid(beta * x) + z",
                              grad="""s = sigmoid(beta * x)
                                      dx = dy * (s + beta * (y - z) * (1 - s)); dbeta = dy * x * x * s * (1 - s)""")
    x, beta, z = tf.constant(X), tf.constant(1.5, tf.float64), tf.constant(X[::-1].copy())
    naive = lambda x, beta, z: x * tf.sigmoid(beta * x) + z
    (dx, dbeta, dz), want = gradient(f, x, beta, z), gradient(naive, x, beta, z)
    assert np.allclose(dx, want[0]) and np.allclose(dbeta, want[1]) and not np.any(dz)  # z is left out: 0
    second = lambda f: gradient(lambda x: gradient(lambda x: f(x, beta, z), x)[0], x)[0]
    assert np.allclose(second(f), second(naive))  # through y, which the text uses


def test_gradient_as_function():
    f = tfuse.jit.elementwise("T x, T z", "T y", "x * z", grad=lambda x, z, y, dy: (dy * z, dy * y / z))
    x, z = tf.constant(X), tf.constant(X[::-1].copy())
    assert all(np.allclose(a, b) for a, b in zip(gradient(f, x, z), (z, x)))
    wrong = tfuse.jit.elementwise("T x, T z", "T y", "x * z", grad=lambda x, z, y, dy: dy)
    assert "a gradient, or None, for each of x, z; got 1" in refused(lambda: gradient(wrong, x, z))


@pytest.mark.parametrize("text, naive", [
    ("abs(x)", tf.abs), ("max(x, z)", None), ("min(x, z)", None), ("relu(x)", tf.nn.relu), ("sign(x)", tf.sign),
    ("x > 0 ? x : z", None), ("clip(x, -1, 1)", None)])
def test_gradients_at_ties_are_tensorflows(text, naive):
    x, z = tf.constant([0., 0., 1., -1., 2.]), tf.constant([0., 1., 1., -1., -2.])
    naives = {"max(x, z)": tf.maximum, "min(x, z)": tf.minimum, "x > 0 ? x : z": lambda x, z: tf.where(x > 0, x, z),
              "clip(x, -1, 1)": lambda x, z: tf.minimum(tf.maximum(x, -1), 1)}
    want = gradient(naives.get(text, lambda x, z: naive(x) if naive else x), x, z)
    for g, w in zip(gradient(tfuse.jit.elementwise("T x, T z", "T y", text, grad=True), x, z), want):
        assert np.array_equal(g, w)


def test_every_function_has_a_gradient():
    """Each against a difference, where it is smooth."""
    calls = {**{n: len(row.gradients) for n, row in FUNCTIONS.items()},
             **{n: count for n, (count, _) in SHORTHANDS.items()}}
    for name, count in calls.items():
        if name in "and or not neg add sub mul div lt le gt ge eq ne stop".split():
            continue  # operators, which formulas of test_gradients have; stop, which has none
        names = "xzw"[:count]
        f = tfuse.jit.elementwise(", ".join("T " + n for n in names), "T y", "%s(%s)" % (name, ", ".join(names)),
                                  grad=True)
        at, step = [tf.constant(v, tf.float64) for v in (0.7, 0.4, 1.3)][:count], 1e-6
        for i, got in enumerate(gradient(f, *at)):
            moved = [f(*(t + s * step * (k == i) for k, t in enumerate(at))) for s in (1, -1)]
            assert abs(got - (moved[0] - moved[1]) / (2 * step)) < 1e-8, name
