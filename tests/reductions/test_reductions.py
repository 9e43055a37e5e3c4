"""Reductions over random ranks, axes and dtypes against NumPy in float64; special values; routes; the same bits."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse._core import _library, _op
from tfuse.cases import as64

KINDS = ("sum", "mean", "max", "min", "prod", "logsumexp", "variance", "std", "l2")
WHOLE = KINDS[:5]  # that integers have
# Of a result, relative to the size of its terms: half a unit of storage and some roundings of float32.
CLOSE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.2e-2, "float64": 1e-13}
REDUCE = {kind: getattr(tfuse, "reduce_" + kind) for kind in KINDS}


def lse(x, axis, keepdims):
    top = np.max(x, axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    y = np.log(np.sum(np.exp(x - top), axis, keepdims=True)) + top
    return y if keepdims else np.squeeze(y, axis)


def truth(x, kind, axis, keepdims):
    """In float64, and the size of the terms that make a result."""
    axis = tuple(range(x.ndim)) if axis is None else tuple(a % x.ndim for a in np.ravel(axis)) if x.ndim else ()
    with np.errstate(all="ignore"):
        y = {"sum": lambda: np.sum(x, axis, keepdims=keepdims),
             "mean": lambda: np.sum(x, axis, keepdims=keepdims) / max(1, np.prod([x.shape[a] for a in axis])),
             "max": lambda: np.max(x, axis, keepdims=keepdims), "min": lambda: np.min(x, axis, keepdims=keepdims),
             "prod": lambda: np.prod(x, axis, keepdims=keepdims), "logsumexp": lambda: lse(x, axis, keepdims),
             "variance": lambda: np.var(x, axis, keepdims=keepdims), "std": lambda: np.std(x, axis, keepdims=keepdims),
             "l2": lambda: np.sqrt(np.sum(x * x, axis, keepdims=keepdims))}[kind]()
        size = np.sum(np.abs(x), axis, keepdims=keepdims) if kind in ("sum", "mean") else np.abs(y) + (kind == "logsumexp")
    return y, size


def slope(x, kind, axis):
    """d y / d x in float64."""
    axis = tuple(range(x.ndim)) if axis is None else tuple(a % x.ndim for a in np.ravel(axis)) if x.ndim else ()
    y, n = truth(x, kind, axis, True)[0], np.prod([x.shape[a] for a in axis])
    centred = x - np.mean(x, axis, keepdims=True)
    with np.errstate(all="ignore"):
        return {"sum": lambda: np.ones_like(x), "mean": lambda: np.ones_like(x) / n,
                "max": lambda: (x == y) / np.sum(x == y, axis, keepdims=True),
                "min": lambda: (x == y) / np.sum(x == y, axis, keepdims=True), "prod": lambda: others(x, axis),
                "logsumexp": lambda: np.exp(x - y), "variance": lambda: 2 * centred / n, "std": lambda: centred / (n * y),
                "l2": lambda: x / y}[kind]()


def others(x, axis):
    """For each value, the product of all others with it."""
    y = np.empty_like(x)
    for i in np.ndindex(*x.shape):
        rest = np.array(x[tuple(slice(None) if a in axis else slice(i[a], i[a] + 1) for a in range(x.ndim))])
        rest[tuple(i[a] if a in axis else 0 for a in range(x.ndim))] = 1
        y[i] = np.prod(rest)
    return y


def draws(seed, n, most=6):
    """Shapes with axes, keepdims, and a source of values; sizes of 1 and 0 among them."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        rank = int(rng.integers(0, most))
        shape = [int(s) for s in rng.choice([0, 1, 2, 3, 5, 9, 34], rank, p=[0.02, 0.14, 0.2, 0.2, 0.2, 0.14, 0.1])]
        axes = [int(a) - rank * int(rng.integers(2)) for a in rng.permutation(rank)[:rng.integers(0, rank + 1)]]
        axis = None if rng.random() < 0.15 else axes[0] if len(axes) == 1 and rng.random() < 0.5 else axes
        yield shape, axis, bool(rng.integers(2)), rng


def near(got, want, size, dtype, what):
    got = as64(got)
    assert got.shape == np.shape(want), what
    if dtype == "float16":
        want = np.where(np.abs(want) > 65519, np.sign(want) * np.inf, want)
    with np.errstate(all="ignore"):
        close = np.abs(got - want) <= CLOSE[dtype] * (size + np.abs(want))
        right = (got == want) | (np.isnan(got) & np.isnan(want)) | close
    small = {"float16": 1e-7, "float32": 1e-37, "bfloat16": 1e-37, "float64": 0}[dtype]
    assert np.all(right | (np.abs(got - want) <= small)), what


@pytest.mark.parametrize("dtype", CLOSE)
def test_floats(device, dtype):
    for (shape, axis, keepdims, rng), kind in zip(draws(7, 120), itertools.cycle(KINDS)):
        values = rng.normal(size=shape) if rng.random() < 0.7 else rng.integers(-3, 4, shape) * 0.5  # with ties and zeros
        x = tf.cast(tf.constant(values), dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = REDUCE[kind](x, axis, keepdims)
        what, wide = (kind, shape, axis, keepdims), as64(x)
        if kind in ("max", "min", "mean", "variance", "std") and wide.size == 0 and y.shape.num_elements():
            assert np.array_equal(as64(y), np.full(y.shape, {"max": -np.inf, "min": np.inf}.get(kind, np.nan)), equal_nan=True)
            continue
        near(y, *truth(wide, kind, axis, keepdims), dtype, what)
        if wide.size:
            dy = tf.cast(tf.constant(rng.normal(size=y.shape)), dtype)
            want = slope(wide, kind, axis) * as64(tf.reshape(dy, REDUCE["sum"](x, axis, True).shape))
            scale = 0 if kind not in ("variance", "std") else np.abs(want) + np.nanmax(np.abs(want), initial=0)
            near(tape.gradient(y, x, dy), want, scale, dtype, what)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(device, dtype):
    top = np.iinfo(dtype).max
    for (shape, axis, keepdims, rng), kind in zip(draws(11, 100), itertools.cycle(WHOLE)):
        values = rng.integers(-9, 9, shape) if rng.random() < 0.6 else rng.integers(-top, top, shape)
        x = tf.constant(values, dtype)
        got, want = REDUCE[kind](x, axis, keepdims), getattr(tf, "reduce_" + kind)(x, axis, keepdims)
        if kind == "mean" and np.abs(values).max(initial=0) > 9:
            continue  # TensorFlow's sum on the way is not said to wrap
        assert got.dtype == want.dtype and np.array_equal(got, want), (kind, shape, axis, keepdims)


def test_indices(device):
    both = itertools.product(["float32", "float16", "bfloat16", "float64", "int32", "int64"], [tf.int32, tf.int64])
    for (shape, _, _, rng), (dtype, kind) in zip(draws(13, 200), itertools.cycle(both)):
        if not shape or not np.prod(shape):
            continue
        x, axis = tf.cast(tf.constant(rng.integers(-4, 5, shape)), dtype), int(rng.integers(-len(shape), len(shape)))
        for ours, theirs in ((tfuse.argmax, np.argmax), (tfuse.argmin, np.argmin)):
            got = ours(x, axis, kind)
            assert got.dtype == kind and np.array_equal(got, theirs(as64(x), axis)), (shape, axis, dtype)


@pytest.mark.parametrize("dtype", CLOSE)
def test_indices_of_special_values(device, dtype):
    nan, inf, top = np.nan, np.inf, float(tf.as_dtype(dtype).max)
    with tf.device("CPU:0"):
        rows = tf.constant([[nan, 1, 2], [1, nan, 2], [2, 1, nan], [nan, nan, nan], [-inf, nan, -inf], [nan, -inf, -inf],
                            [nan, inf, inf], [-inf, -inf, 1], [-inf, -top, -inf], [inf, top, inf], [0.0, -0.0, 0.0]], dtype)
        want = [f(rows, 1) for f in (tf.argmax, tf.argmin)]
    for f, w in zip((tfuse.argmax, tfuse.argmin), want):
        for repeats in (1, 40):  # the first index again, in a row that many threads share
            assert np.array_equal(f(tf.tile(rows, [1, repeats]), 1), w)
        assert np.array_equal(f(tf.transpose(rows), 0), w)


@pytest.mark.parametrize("kind", KINDS)
def test_special_values(device, kind):
    nan, inf = np.nan, np.inf
    rows = [[nan, 1, 2], [1, nan, 2], [inf, 1, 2], [-inf, 1, 2], [inf, -inf, 1], [-inf, -inf, -inf], [inf, nan, 0],
            [-np.nan, 1, 2], [1e19, 1e19, 2e-38], [0.0, -0.0, 0.0]]
    x = tf.constant(rows, tf.float32)
    with np.errstate(all="ignore"):
        want = truth(as64(x), kind, 1, False)[0]
    if kind == "logsumexp":
        want = np.where([[inf in row] for row in rows], inf, want[:, None])[:, 0]
        want = np.where([np.any(np.isnan(row)) for row in rows], nan, want)
    want = want.astype(np.float32)  # too large is infinite
    stock = (lambda x, axis: tf.norm(x, axis=axis)) if kind == "l2" else getattr(tf.math, "reduce_" + kind)
    slopes = gradient(stock, x, 1)
    for v, axis in ((x, 1), (tf.transpose(x), 0), (tf.reshape(x, [10, 3, 1]), [1, 2])):
        assert np.allclose(REDUCE[kind](v, axis), want, rtol=1e-5, equal_nan=True), axis
        got = gradient(REDUCE[kind], v, axis)
        got = got.T if axis == 0 else got.reshape(slopes.shape)
        for row, g, s in zip(rows, got, slopes):
            if kind == "prod" and not np.all(np.isfinite(row)):
                continue  # the product of the others, by a division
            if kind in ("variance", "std"):  # the mean, and so what is off it, may be infinite or NaN
                assert np.array_equal(np.isfinite(g), np.isfinite(s)), (axis, row)
                g, s = g[np.isfinite(s)], s[np.isfinite(s)]
            assert np.allclose(g, s, rtol=1e-5, equal_nan=True), (axis, row, g, s)


def gradient(f, x, axis):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x, axis)
    return as64(tape.gradient(y, x))


@pytest.mark.parametrize("dtype", CLOSE)
def test_signs_of_zeros(device, dtype):
    """A product of zeros has the sign that its factors give it, in rows, columns and parts of them, as do its gradients.
    Single values stay what they are."""
    rng = np.random.default_rng(6)
    for shape, axis in [((2,), 0), ((5, 300), 1), ((5, 300), 0), ((6, 8), 1), ((6, 8), 0), ((4, 7, 3), 1), ((2, 300007), 1),
                        ((70001, 3), 0), ((3, 9001, 8), 1), ((3, 5, 7, 4), (0, 2)), ((7, 31), None)]:
        values = rng.choice([-1.0, 1.0], shape)
        values = np.where(rng.random(shape) < 2 / np.prod(shape[axis] if isinstance(axis, int) else shape), 0 * values, values)
        x, want = tf.cast(tf.constant(values), dtype), np.prod(values, axis)
        got = as64(tfuse.reduce_prod(x, axis))
        assert np.array_equal(got, want) and np.array_equal(np.signbit(got), np.signbit(want)), shape
        if values.size > 2000:
            continue
        got, want = gradient(tfuse.reduce_prod, x, axis), others(values, tuple(range(len(shape))) if axis is None else
                                                                 (axis,) if isinstance(axis, int) else axis)
        assert np.array_equal(got, want) and np.array_equal(np.signbit(got), np.signbit(want)), shape
    x = tf.constant([[-0.0], [0.0], [-3.0]], dtype)
    for kind in WHOLE:
        for axis in (1, []):
            got = as64(REDUCE[kind](x, axis)).ravel()
            assert got.tolist() == [0, 0, -3] and np.signbit(got).tolist() == [True, False, True], kind


def test_logsumexp_of_large_values(device):
    """The result has no digits left for the sum, the gradient has all."""
    for x, axis in ((tf.constant([[1e8, 1e8], [-1e8, -1e8]]), 1), (tf.fill([4, 16], 3e7), 0), (tf.fill([2, 5000], -1e9), 1)):
        np.testing.assert_allclose(gradient(tfuse.reduce_logsumexp, x, axis), 1 / x.shape[axis], rtol=1e-5)


@pytest.mark.parametrize("dtype", CLOSE)
def test_long(device, dtype):
    """Parts of rows and of columns, and of several axes at once; far from 0, where squares would cancel."""
    rng = np.random.default_rng(3)
    for shape, axis in [((2, 300007), 1), ((70001, 3), 0), ((3, 9001, 6), 1), ((40, 7, 3000), (0, 2)), ((5001, 130), None),
                        ((3001, 264), 0), ((3, 2500, 16), 1), ((7, 8200), 1), ((40003, 21), 0), ((3, 8008, 21), 1),
                        ((20011, 2), 0), ((9001, 70), 0), ((3, 1111, 255), (0, 1))]:
        x = tf.cast(tf.constant(rng.normal(size=shape) + 100), dtype)
        for kind in ("sum", "max", "min", "l2", "logsumexp", "variance"):
            y, size = truth(as64(x), kind, axis, False)
            near(REDUCE[kind](x, axis), y, size, dtype, (shape, kind))
        for ours, theirs in ((tfuse.argmax, np.argmax), (tfuse.argmin, np.argmin)):
            if isinstance(axis, int):
                assert np.array_equal(ours(x, axis), theirs(as64(x), axis)), shape


def test_products_do_not_overflow_on_the_way(device):
    x = tf.constant([[1e30, 1e30, 1e-30, 1e-30, 3.0], [1e-30, 1e-30, 1e30, 1e30, 1e-44]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tfuse.reduce_prod(x, 1)
    assert np.allclose(y, [3, 1e-44], rtol=1e-3)
    assert np.allclose(tape.gradient(y, x)[0], [3e-30, 3e-30, 3e30, 3e30, 1], rtol=1e-5)


def test_long_products(device):
    """Factors near 1, whose rounding errors in float32 do not cancel: at most twice the error of one after the other."""
    x = np.exp(np.random.default_rng(5).normal(size=[300007]) * 0.3 / np.sqrt(300007)).astype(np.float32)
    want, naive = np.prod(x.astype(np.float64)), np.multiply.accumulate(x)[-1]
    for shape, axis in [((1, 300007), 1), ((300007,), 0), ((300007, 4), 0), ((300007, 3), 0)]:
        v = tf.constant(np.broadcast_to(x if len(shape) < 2 or axis else x[:, None], shape))
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = tfuse.reduce_prod(v, axis)
        assert np.max(np.abs(as64(y) / want - 1)) <= 2 * np.abs(naive / want - 1), shape
        slope = as64(tape.gradient(y, v)) * as64(v) / want - 1
        assert np.max(np.abs(slope)) <= 2 * np.abs(naive / want - 1), shape


@pytest.mark.parametrize("dtype", CLOSE)
def test_gradients_of_whole_packs(device, dtype):
    """Rows that stay in registers, of some lanes or several warps, longer ones, columns, and several axes; with ties."""
    rng = np.random.default_rng(8)
    for shape, axis in [((37, 8), 1), ((5, 136), 1), ((3, 4104), 1), ((2, 16384), 1), ((2, 16400), 1), ((70, 40), 0),
                        ((2, 150, 24), 1), ((6, 5, 64), (0, 2)), ((4, 3, 5, 16), (0, 2))]:
        x = tf.cast(tf.constant(np.round(rng.normal(size=shape) * 2) / 2 + 1), dtype)
        for kind in ("max", "min", "logsumexp", "variance", "std", "l2"):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = REDUCE[kind](x, axis)
            dy = tf.cast(tf.constant(rng.normal(size=y.shape)), dtype)
            want = slope(as64(x), kind, axis) * np.expand_dims(as64(dy), axis)
            scale = 0 if kind not in ("variance", "std") else np.abs(want) + np.max(np.abs(want))
            near(tape.gradient(y, x, dy), want, scale, dtype, (shape, kind))


def test_far_from_zero(device):
    """A variance of values that are large beside it."""
    x = tf.constant(np.random.default_rng(0).normal(size=[50, 1000]) * 0.1 + 1000, tf.float32)
    assert np.allclose(tfuse.reduce_variance(x, 1), np.var(as64(x), 1), rtol=1e-3)
    assert np.allclose(tfuse.reduce_std(x, 0), np.std(as64(x), 0), rtol=1e-3)


def test_spread_too_small_for_squares(device):
    """The square of what is off the mean is 0 in float32, and what rounding the mean has left over is not."""
    rng = np.random.default_rng(0)
    for size in 3, 40, 5000:
        x = tf.constant(1e-20 * (1 + 1e-3 * rng.normal(size=(4, size))), tf.float32)
        std = tfuse.reduce_std(x, 1).numpy()
        assert np.all((std >= 0) & (std < 1e-22)) and not np.any(np.signbit(tfuse.reduce_variance(x, 1)))


def test_axes_of_unknown_shapes(device, jit):
    """Sizes inside XLA, and outside it even the rank, may be unknown; results and gradients are the same bits."""
    for shape, axis in [((3, 4, 5), (0, -1)), ((6, 7), None), ((2, 3, 4, 5), [1, 3])]:
        for kind in ("mean", "max"):
            def step(x):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = REDUCE[kind](x, axis, True)
                return y, tape.gradient(y, x)

            x = tf.random.stateless_normal(shape, [1, 2])
            signature = tf.TensorSpec([None] * len(shape) if jit else None)
            traced = tf.function(step, input_signature=[signature], jit_compile=jit, autograph=False)
            for got, want in zip(traced(x), step(x)):
                assert np.array_equal(got, want), (shape, axis, kind)
    f = tf.function(lambda x: REDUCE["sum"](x, [0, 2]), input_signature=[tf.TensorSpec([None, 3, 5])], autograph=False)
    assert f.get_concrete_function().output_shapes == [3]
    unknown = tf.function(lambda x: REDUCE["sum"](x, [0, -2]), input_signature=[tf.TensorSpec(None)], autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="axis must name no axis of x .2, 3. twice, got -2"):
        unknown(tf.ones([2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="axis must be one of the 1 axes of x .2., got -2"):
        unknown(tf.ones([2]))


def test_places_refuse_an_empty_axis(device):
    with pytest.raises(tf.errors.InvalidArgumentError, match="axis 1 of x .2, 0. must have elements"):
        tfuse.argmax(tf.ones([2, 0]), 1)
    assert tfuse.argmax(tf.ones([2, 0]), 0).shape == [0]


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), None])
def test_gradients_of_large_sums_repeat_dy(device, axis, monkeypatch):
    """Of many elements, several are written as one: the bits of each are dy's own, those of a NaN, too. In the middle an op
    of our own writes them, where there is a GPU."""
    monkeypatch.setattr(_library, "without_gpu", lambda: False)
    for dtype, last in ((tf.bfloat16, 8), (tf.float16, 12), (tf.float32, 6), (tf.bfloat16, 7), (tf.float64, 5)):
        x = tf.zeros([64, 257, last], dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tfuse.reduce_sum(x, axis, keepdims=True)
        dy = tf.reshape(tf.cast(tf.range(tf.size(y)) % 251 - 7, dtype), y.shape)
        dy = tf.where(dy == 3, tf.constant(float("nan"), dtype), dy)
        bits = lambda v: np.frombuffer(v.numpy().tobytes(), np.uint8)
        np.testing.assert_array_equal(bits(tape.gradient(y, x, dy)), bits(tf.broadcast_to(dy, x.shape)))


def test_the_gradient_of_a_sum_over_any_axes(device):
    """The op serves them all, also those that Python leaves to TensorFlow."""
    rng = np.random.default_rng(6)
    for shape, dtype in itertools.product([(3, 40, 64), (2, 3, 5, 7), (16,), (9, 4100)], [tf.bfloat16, tf.float32, tf.float64]):
        for axes in range(1 << len(shape)):
            kept = [1 if axes >> a & 1 else n for a, n in enumerate(shape)]
            dy = tf.cast(tf.constant(rng.normal(size=kept)), dtype)
            got = _op.registry["ReduceGrad"](dy, None, None, _op.sized(*shape), kind="sum", axes=axes, keepdims=True)
            assert np.array_equal(as64(got), as64(tf.broadcast_to(dy, shape))), (shape, dtype, axes)


def test_l2_is_not_computed_again(device):
    """Its gradient is dy x / y, with the y that is given."""
    x, y, dy = tf.constant([[3.0, 4.0], [1.0, 2.0]]), tf.constant([10.0, 5.0]), tf.constant([1.0, 10.0])
    got = _op.registry["ReduceGrad"](dy, x, y, None, kind="l2", axes=1)  # bit 0: down columns
    assert np.allclose(got, [[0.3, 8.0], [0.1, 4.0]])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_columns(device, dtype):
    """Every number of columns of which several rows are taken for one, with rows left over; the same bits again. A slice
    may begin anywhere in memory."""
    rng = np.random.default_rng(4)
    for columns in range(1, 71):
        x = tf.cast(tf.constant(rng.normal(size=[90001 // columns, columns])), dtype)
        for kind in ("sum", "max", "variance"):
            y = REDUCE[kind](x, 0)
            near(y, *truth(as64(x), kind, 0, False), dtype, (columns, kind))
            assert np.array_equal(y, REDUCE[kind](x, 0))
        near(REDUCE["sum"](x[1:], 0), *truth(as64(x[1:]), "sum", 0, False), dtype, (columns, "from the second row"))
        assert np.array_equal(tfuse.argmax(x, 0), np.argmax(as64(x), 0)), columns
