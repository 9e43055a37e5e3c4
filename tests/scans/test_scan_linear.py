"""What the cases of scan_linear have not: factors that become infinite when they are multiplied with each other, as kernels do
that split a sequence; and complex numbers."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import ROUTES, skip_broken_xla
from tfuse.cases.scans.scan_linear import behind, states, stock


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


# ---- complex numbers ----


def _drawn(shape, dtype, seed=0):
    """Factors a little inside of the unit circle, terms, a state before the first step, and a gradient of the results."""
    rng = np.random.default_rng(seed)
    normal = lambda *of: rng.normal(size=of) + 1j * rng.normal(size=of)
    a = rng.uniform(0.5, 1, shape) * np.exp(1j * rng.uniform(-np.pi, np.pi, shape))
    return [tf.constant(x, dtype) for x in (a, normal(*shape), normal(shape[0], *shape[2:]), normal(*shape))]


def _step(f, reverse):
    def step(a, b, initial, dy):
        with tf.GradientTape() as tape:
            tape.watch([a, b, initial])
            y = f(a, b, initial, reverse=reverse)
        return [y, *tape.gradient(y, [a, b, initial], dy)]
    return step


def _wanted(tensors, reverse):
    a, b, initial, dy = (t.numpy().astype(np.clongdouble) for t in tensors)
    y = states(a, b, initial, reverse=reverse)[0]
    return [y, *behind(dy, *map(np.conj, (a, y, initial)), reverse=reverse)]


def _error(got, want):
    return np.max(np.abs(got - want), initial=0) / max(np.max(np.abs(want), initial=0), 1e-30)


def _near(tensors, got, reverse, others=()):
    """At most twice as far from what is right as the naive loop in the same dtype, on the same numbers or on others like them;
    two roundings are always allowed."""
    least, naive = 2 * np.finfo(tensors[0].dtype.as_numpy_dtype).eps, []
    for drawn in (tensors, *others):
        naive.append([_error(n, w) for n, w in zip(_step(stock, reverse)(*drawn), _wanted(drawn, reverse))])
    for g, w, errors in zip(got, _wanted(tensors, reverse), zip(*naive)):
        assert g.shape == w.shape and g.dtype == tensors[0].dtype
        assert _error(g, w) <= max(2 * max(errors), least)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 4), (3, 0), (2, 7, 3, 9), (3, 5, 600), (2, 700, 3), (16, 1400), (16, 1301)])
def test_complex_numbers(device, shape, dtype, reverse):
    """Errors are relative to the largest result: of few long lines, whose first states have few gradients, that may be small."""
    tensors = _drawn(shape, dtype)
    _near(tensors, _step(tfuse.scan_linear, reverse)(*tensors), reverse, [_drawn(shape, dtype, seed) for seed in range(1, 4)])


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("route", ["graph", "xla", "unknown dims"])
def test_complex_numbers_on_other_routes(device, route, dtype):
    if route == "xla":
        skip_broken_xla()
    tensors, step = _drawn((3, 40, 5), dtype), _step(tfuse.scan_linear, False)
    unknown = [tf.TensorSpec(None, dtype)] * len(tensors)
    made = tf.function(step, input_signature=unknown) if route == "unknown dims" else ROUTES[route](step)
    _near(tensors, made(*tensors), False, [_drawn((3, 40, 5), dtype, seed) for seed in range(1, 4)])


def test_second_gradients_of_complex_numbers(device):
    tensors = _drawn((2, 9, 3), "complex128")

    def twice(f):
        step = _step(f, False)
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            sizes = [tf.reduce_sum(tf.abs(t) ** 2) for t in step(*tensors)]
            total = tf.add_n(sizes)
        return tape.gradient(total, tensors)

    for got, want in zip(twice(tfuse.scan_linear), twice(stock)):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def test_what_does_not_go_with_complex_numbers_is_refused():
    a, b, _, _ = _drawn((2, 3), "complex64")
    with pytest.raises(ValueError, match="b must be complex64 like a, got float32; cast the real one"):
        tfuse.scan_linear(a, tf.math.real(b))
    with pytest.raises(ValueError, match="b must have the shape of a, .3., got .2, 3.; tf.broadcast_to"):
        tfuse.scan_linear(a[0], b)
    with pytest.raises(ValueError, match="selective_scan: a must be real, got complex numbers; tfuse.scan_linear takes these"):
        tfuse.selective_scan(*[tf.ones([1, 4, 8])] * 2, np.ones([8, 2]) * 1j, *[tf.ones([1, 4, 2])] * 2)
    with pytest.raises(ValueError, match="a must be float32, .*complex64 or complex128, got int32"):
        tfuse.scan_linear(tf.zeros([2, 3], tf.int32), b)
    for imaginary in [1j, np.full([2, 3], 1j)]:  # which NumPy and TensorFlow would drop
        with pytest.raises(ValueError, match="b must be float32 like a, got complex128"):
            tfuse.scan_linear(tf.ones([2, 3]), imaginary)
    with pytest.raises(ValueError, match="initial must be float32 like a, got complex128"):
        tfuse.scan_linear(tf.ones([2, 3]), tf.ones([2, 3]), np.array([1j, 2j]))


def test_arrays_beside_complex_numbers(device):
    a, b, initial, _ = _drawn((2, 3), "complex64")
    np.testing.assert_array_equal(tfuse.scan_linear(a, b.numpy() * 9, initial.numpy()), tfuse.scan_linear(a, b * 9, initial))
    np.testing.assert_array_equal(tfuse.scan_linear(a, [[1, 2, 3], [4, 5, 6]], [1.5, 2]),
                                  tfuse.scan_linear(a, tf.constant([[1, 2, 3], [4, 5, 6]], a.dtype), tf.constant([1.5, 2], a.dtype)))
