"""cumsum, cumprod, cummax and cumulative_logsumexp against NumPy in float64, on hundreds of random shapes, axes and ways."""

import numpy as np
import pytest
import tensorflow as tf

import tfuse

# Half a unit in the last place.
FLOATS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}
SCANS = {"cumsum": (tfuse.cumsum, np.cumsum, 0), "cumprod": (tfuse.cumprod, np.cumprod, 1),
         "cummax": (tfuse.cummax, np.maximum.accumulate, -np.inf),
         "cumulative_logsumexp": (tfuse.cumulative_logsumexp, np.logaddexp.accumulate, -np.inf)}


def reference(f, x, axis, exclusive, reverse, first):
    x = np.moveaxis(x, axis, 0)
    x = x[::-1] if reverse else x
    y = f(x, 0)
    if exclusive:
        y = np.concatenate([np.full_like(y[:1], first), y[:-1]])
    return np.moveaxis(y[::-1] if reverse else y, 0, axis)


def drawn(rng, most=2000):
    """A shape of up to 6 axes, one of them, or a time none, longer than the others; an axis; and a way."""
    rank = int(rng.integers(1, 7))
    shape = [int(rng.integers(1, 5)) for _ in range(rank)]
    shape[rng.integers(rank)] = int(rng.choice([1, 31, 513, rng.integers(1, most)]))
    axis = int(rng.integers(-rank, rank))
    return shape, {"axis": axis, "exclusive": bool(rng.integers(2)), "reverse": bool(rng.integers(2))}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", SCANS)
def test_floats(device, name, dtype):
    run, f, first = SCANS[name]
    rng = np.random.default_rng(list(SCANS).index(name))
    real = 2.0**-53 if dtype == "float64" else 2.0**-24
    for _ in range(25):
        shape, way = drawn(rng)
        values = rng.normal(size=shape) * 2
        if name == "cumprod":
            values = np.exp(values / np.sqrt(max(shape))) * rng.choice([-1, 1], size=shape)
        x = tf.cast(tf.constant(values), dtype)
        got, wide = run(x, **way), np.asarray(tf.cast(x, tf.float64))
        assert got.dtype == x.dtype and got.shape == x.shape
        got, want = np.asarray(tf.cast(got, tf.float64)), reference(f, wide, first=first, **way)
        # In any order n terms are off by n roundings of the sum of their sizes, and the result by one of its own.
        n = shape[way["axis"]]
        terms = {"cumsum": lambda: reference(np.cumsum, np.abs(wide), first=0, **way), "cummax": lambda: 0,
                 "cumprod": lambda: np.abs(want),
                 "cumulative_logsumexp": lambda: 2 + np.abs(np.where(np.isinf(want), 0, want))}[name]()
        with np.errstate(invalid="ignore"):
            off = np.where(got == want, 0, np.abs(got - want))
        assert np.all(off <= FLOATS[dtype] * 1.01 * np.abs(want) + 2 * n * real * terms), (shape, way)
        again = run(x, **way)
        assert np.array_equal(np.asarray(tf.cast(again, tf.float64)), got)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax"])
def test_integers(device, name, dtype):
    """They wrap around, as stock TensorFlow's do."""
    run, f, first = SCANS[name]
    rng = np.random.default_rng(7)
    for _ in range(25):
        shape, way = drawn(rng)
        x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, size=shape, dtype=dtype)
        lowest = np.iinfo(dtype).min if name == "cummax" else first
        with np.errstate(over="ignore"):
            accumulate = f if name == "cummax" else lambda x, axis: f(x, axis, dtype=dtype)
            want = reference(accumulate, x, first=lowest, **way)
        assert np.array_equal(run(tf.constant(x), **way), want), (shape, way)


def test_nothing(device):
    for run, *_ in SCANS.values():
        for shape in ([0], [0, 3], [3, 0], [2, 0, 3]):
            assert run(tf.zeros(shape), axis=-1).shape == shape and run(tf.zeros(shape), exclusive=True).shape == shape


def test_nan_spreads(device):
    x = tf.constant([[1.0, np.nan, 2.0, np.inf], [-np.inf, -np.inf, 3.0, -1.0]])
    for run, *_ in SCANS.values():
        y = run(x, axis=1).numpy()
        assert np.array_equal(np.isnan(y[0]), [False, True, True, True]) and not np.any(np.isnan(y[1, :1]))
    assert np.array_equal(tfuse.cummax(x, axis=1, reverse=True)[1], [3, 3, 3, -1])


@pytest.mark.parametrize("name", SCANS)
def test_nan_spreads_from_any_place(device, name):
    """From the first, the last and some positions between, to all after it in its row and to no other row."""
    for n, axis in [(5, 1), (5, 0), (1000, 1), (1000, 0), (100003, 1)]:
        positions = [0, 1, n // 2, n - 2, n - 1, n]  # the last one is in no row
        x = np.full([len(positions), n], 1.0, np.float32)
        for row, position in enumerate(positions[:-1]):
            x[row, position] = np.nan
        for reverse in (False, True):
            after = [np.arange(n) <= p if reverse and p < n else np.arange(n) >= p for p in positions]
            y = SCANS[name][0](tf.constant(x if axis else x.T), axis, reverse=reverse).numpy()
            assert np.array_equal(np.isnan(y if axis else y.T), after), (n, axis, reverse)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_products(device, dtype):
    """Of infinities, zeros and NaN, where nothing on the way is too large for its type: any order gives the same."""
    for x in ([2.0, np.inf, 3.0, 0.0, 5.0], [-np.inf, 2.0, -np.inf, -1.0], [0.0, -0.0, 3.0, -2.0], [1.0, np.nan, 0.0, 2.0]):
        for reverse in (False, True):
            want = np.cumprod(x[::-1])[::-1] if reverse else np.cumprod(x)
            got = np.asarray(tf.cast(tfuse.cumprod(tf.constant(x, dtype), reverse=reverse), tf.float64))
            assert np.array_equal(got, want, equal_nan=True) and np.array_equal(np.signbit(got[want == 0]),
                                                                                np.signbit(want[want == 0]))


def test_gradient_of_products_with_zeros(device):
    """Against the sum over all pairs, which divides by nothing."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        n, exclusive, reverse = int(rng.integers(1, 9)), bool(rng.integers(2)), bool(rng.integers(2))
        x = rng.normal(size=n) * (rng.random(n) < 0.7)
        dy = rng.normal(size=n)
        want, order = np.zeros(n), range(n)[::-1] if reverse else range(n)
        for position, i in enumerate(order):
            members = [k for k in order][:position if exclusive else position + 1]
            for k in members:
                want[k] += dy[i] * np.prod([x[m] for m in members if m != k])
        v = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = tfuse.cumprod(v, exclusive=exclusive, reverse=reverse)
        np.testing.assert_allclose(tape.gradient(y, v, tf.constant(dy)), want, rtol=1e-12, atol=1e-12)


def test_gradient_of_maxima(device):
    """It goes to where the maximum came from, as a whole."""
    x = tf.constant([[3.0, 1.0, 3.0, 5.0, 4.0, 5.0]])
    dy = tf.constant([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])
    for way, want in (({}, [7, 0, 0, 56, 0, 0]), ({"reverse": True}, [0, 0, 0, 0, 0, 63]),
                      ({"exclusive": True}, [14, 0, 0, 48, 0, 0])):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tfuse.cummax(x, axis=1, **way)
        assert np.array_equal(tape.gradient(y, x, dy), [want]), way


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradient_of_large_logarithms(device, dtype):
    """It does not go by results that are rounded to 16 bits, whose exponentials would be off by half."""
    x = tf.cast(tf.constant(100 + np.random.default_rng(4).normal(size=300)), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tfuse.cumulative_logsumexp(x)
    got, wide = tf.cast(tape.gradient(y, x), tf.float64), np.asarray(tf.cast(x, tf.float64))
    terms = np.exp(-np.logaddexp.accumulate(wide))
    np.testing.assert_allclose(got, np.exp(wide) * np.cumsum(terms[::-1])[::-1], rtol=1.1 * FLOATS[dtype])


@pytest.mark.parametrize("axis", [0, 1])
def test_long(device, axis):
    """More than a task, a tile and a chunk; whole numbers, so that any order gives the same."""
    rng = np.random.default_rng(5)
    for shape in ([1, 600001], [3, 70001], [600001, 1], [70001, 3], [5000, 130], [64, 4100]):
        x = rng.integers(-3, 4, size=shape).astype(np.float32)
        for way in ({}, {"exclusive": True, "reverse": True}):
            want = reference(np.cumsum, x.astype(np.float64), axis, way.get("exclusive"), way.get("reverse"), 0)
            assert np.array_equal(tfuse.cumsum(tf.constant(x), axis, **way), want), (shape, way)


def test_more_than_a_thousand_tiles(device):
    """So many that what a GPU's blocks tell each other goes through all levels of groups."""
    x = np.random.default_rng(8).integers(-9, 10, 6_500_003)
    for reverse in (False, True):
        want = np.cumsum(x[::-1])[::-1] if reverse else np.cumsum(x)
        assert np.array_equal(tfuse.cumsum(tf.constant(x), reverse=reverse), want)
