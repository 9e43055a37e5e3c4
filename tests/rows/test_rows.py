"""What works along rows: softmax and the norms, in every layout and on hard rows."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from tfuse import cases
from comparing import EPSILON, close, gradients, normal, numbers
from tfuse._core import _philox

# ---- softmax: axes and masks ----


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2, (2, 3), (1, 3), (0, 2), [-1, -2], (0, 1, 2, 3)])
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
def test_softmax_over_any_axis(device, route, axis, log):
    x, axes = normal(3, 4, 5, 6), axis if isinstance(axis, int) else tuple(axis)
    stock = lambda x: x - tf.reduce_logsumexp(x, axes, keepdims=True)
    want = stock if log else lambda x: tf.exp(stock(x))
    got = route(functools.partial(tfuse.log_softmax if log else tfuse.softmax, axis=axis))
    close(got(x), want(x))
    close(gradients(got, x)[0], gradients(want, x)[0], 16)


MASKS = [(6,), (1, 6), (5, 6), (4, 1, 6), (4, 1, 1), (3, 1, 1, 6), (3, 4, 5, 6), (1, 4, 5, 1), ()]


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("axis", [-1, 1, (1, 2)])
def test_softmax_with_a_mask_of_any_shape(device, route, axis, shape):
    x, added = normal(3, 4, 5, 6), normal(*shape, seed=1)
    f = route(lambda x, m: tfuse.softmax(x, axis, m, scale=0.5))
    stock = lambda x, m: tf.exp(x * 0.5 + m - tf.reduce_logsumexp(x * 0.5 + m, axis, keepdims=True))
    close(f(x, added), stock(x, added))
    for got, want in zip(gradients(f, x, added), gradients(stock, x, added)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    kept = np.random.default_rng(2).random(shape) < 0.6
    got = np.asarray(route(lambda x: tfuse.softmax(x, axis, kept, scale=0.5))(x))
    everywhere = np.broadcast_to(kept, x.shape)
    e = np.where(everywhere, np.exp(np.asarray(x) * 0.5), 0)
    with np.errstate(invalid="ignore"):
        want = np.nan_to_num(e / e.sum(axis, keepdims=True))
    assert np.all(got[~everywhere] == 0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_unknown_rank(device):
    x, m, unknown = normal(3, 4, 6), normal(4, 6, seed=1), [tf.TensorSpec(None)] * 2
    weights = normal(3, 4, 6, seed=2)

    def step(f, x, m):
        with tf.GradientTape() as tape:
            tape.watch([x, m])
            y = f(x, m)
        return tape.gradient(y, [x, m], weights)

    ours = functools.partial(step, lambda x, m: tfuse.softmax(x, mask=m))
    for got, want in zip(tf.function(ours, input_signature=unknown)(x, m), step(lambda x, m: tf.nn.softmax(x + m), x, m)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="x must have a known number of dimensions where axis is not -1, got axis 0"):
        tf.function(lambda x, m: tfuse.softmax(x, 0, m), input_signature=unknown)(x, m)


def test_scale_zero_has_a_gradient_for_the_mask(device):
    x, m = normal(3, 5), normal(5)
    dx, dm = gradients(lambda x, m: tfuse.softmax(x, mask=m, scale=0.0), x, m)
    assert np.all(dx.numpy() == 0)
    np.testing.assert_allclose(dm, gradients(lambda x, m: tf.nn.softmax(0 * x + m), x, m)[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", EPSILON)
def test_rows_that_are_masked_out(device, route, dtype):
    """Zero (minus infinity as a logarithm), and so is their gradient: never NaN."""
    x = normal(4, 7, dtype=dtype)
    mask = np.ones((4, 7), bool)
    mask[1], mask[2, 3:] = False, False
    for f, nothing in [(tfuse.softmax, 0), (tfuse.log_softmax, -np.inf)]:
        y = numbers(route(lambda x: f(x, mask=mask))(x))
        assert np.all(y[~mask] == nothing) and np.all(np.isfinite(y[mask]))

        def masked(x):
            return tf.where(mask, f(x, mask=mask), tf.zeros([], x.dtype))

        dx = numbers(gradients(route(masked), x)[0])
        assert np.all(dx[~mask] == 0) and np.all(np.isfinite(dx)) and np.any(dx[mask])
    whole = numbers(tfuse.softmax(x, mask=tf.constant([[True], [False], [True], [True]])))
    assert np.all(whole[1] == 0) and np.allclose(whole.sum(-1), [1, 0, 1, 1], atol=8 * EPSILON[dtype])


@pytest.mark.parametrize("columns", [7, 5000])
@pytest.mark.parametrize("stretched", [False, True])
def test_what_is_masked_out_may_hold_anything(device, route, stretched, columns):
    """A mask that drops a whole row, by a value for each element or one for the row: the row is zero (minus infinity as a
    logarithm) with NaN and infinities in it, and so is its gradient."""
    x = normal(4, columns).numpy()
    x[1, ::2], x[1, 1::3], x[2, 5], x[3] = np.nan, np.inf, -np.inf, np.inf
    kept = np.array([[True], [False], [False], [False]])
    mask = kept if stretched else np.broadcast_to(kept, x.shape)
    for f, stock, nothing in [(tfuse.softmax, tf.nn.softmax, 0), (tfuse.log_softmax, tf.nn.log_softmax, -np.inf)]:
        y = route(lambda x: f(x, mask=mask))(x)
        close(y[:1], stock(x[:1]))
        assert np.all(numbers(y)[1:] == nothing)
        dx, = gradients(route(lambda x: tf.where(mask, f(x, mask=mask), 0.0)), tf.constant(x))
        assert np.any(dx[0]) and np.all(numbers(dx)[1:] == 0)


@pytest.mark.parametrize("scale", [1e-6, 3e4])
def test_gradient_of_the_mask_knows_no_scale(device, route, scale):
    """In float16 the gradient of x, which has the scale as a factor, may be zero or infinite where the mask's is neither."""
    x, m = normal(3, 5, dtype="float16") / max(1, scale), normal(5, seed=1, dtype="float16")
    wide = [tf.cast(t, tf.float64) for t in (x, m)]
    for f, stock in [(tfuse.softmax, tf.nn.softmax), (tfuse.log_softmax, tf.nn.log_softmax)]:
        dm = gradients(route(lambda x, m: f(x, mask=m, scale=scale)), x, m)[1]
        close(dm, gradients(lambda x, m: stock(x * scale + m), *wide)[1], 4, "float16")


@pytest.mark.parametrize("dtype", EPSILON)
def test_softmax_of_special_rows(device, dtype):
    top = float(tf.as_dtype(dtype).max)
    rows = [[np.inf, 0, 1], [-np.inf, 0, 1], [-np.inf, -np.inf, -np.inf], [np.nan, 0, 1], [np.inf, np.inf, 0],
            [top, top, -top], [-top, -top, -top], [top, -top, 0], [6e4, 6e4, 59900], [-6e4, 0, 6e4], [0, 0, 0]]
    x = tf.constant(rows, dtype)
    # The difference of two of the largest numbers is beyond the range of some types, but not of the one that computes.
    # NumPy says what is wanted: TensorFlow's own op spreads a NaN over the whole row on some CPUs, and not on others.
    with np.errstate(all="ignore"):
        below = np.asarray(x, "float64" if dtype == "float64" else "float32")
        below = below - below.max(-1, keepdims=True)
        total = np.exp(below).sum(-1, keepdims=True)
        wanted = [(tfuse.softmax, np.exp(below) / total), (tfuse.log_softmax, below - np.log(total))]
    for f, want in wanted:
        got = numbers(f(x))
        largest = np.where(np.abs(want) > top, np.inf, np.abs(want))
        with np.errstate(invalid="ignore"):
            same = np.abs(got - want) <= 4 * EPSILON[dtype] * (1 + largest)
        same |= (np.isnan(got) & np.isnan(want)) | (got == want) | np.isinf(got) & (np.abs(want) >= top)
        assert np.all(same), "%s\n%s\n%s" % (rows, got, want)


LENGTHS = [1, 2, 3, 31, 33, 1024, 4097, 65537, 98304, 262144, 1000003]


@pytest.mark.parametrize("columns", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_every_length(device, columns, dtype):
    x, g = normal(2, columns, dtype=dtype), normal(2, columns, seed=3, dtype=dtype)
    weights = normal(2, columns, seed=4)  # gamma, beta: float32 beside bfloat16
    wide = lambda t: tf.cast(t, tf.float64)

    def centred(h):
        h = h - tf.reduce_mean(h, -1, keepdims=True)
        return h / tf.sqrt(tf.reduce_mean(h**2, -1, keepdims=True) + 0.5)

    def scaled(h):
        return h / tf.sqrt(tf.reduce_mean(h**2, -1, keepdims=True) + 0.5)

    for ours, stock in [
            (lambda x, w: tfuse.softmax(x), lambda x, w: tf.nn.softmax(x)),
            (lambda x, w: tfuse.layer_norm(x, epsilon=0.5), lambda x, w: centred(x)),
            (lambda x, w: tfuse.layer_norm(x, w[0], w[1], epsilon=0.5), lambda x, w: centred(x) * w[0] + w[1]),
            (lambda x, w: tfuse.rms_norm(x, epsilon=0.5), lambda x, w: scaled(x)),
            (lambda x, w: tfuse.rms_norm(x, w[0], epsilon=0.5, residual=x)[0], lambda x, w: scaled(x + x) * w[0]),
    ]:
        results = []
        for f, t, w, dy in [(ours, x, weights, g), (stock, wide(x), wide(weights), wide(g))]:
            with tf.GradientTape() as tape:
                tape.watch([t, w])
                y = f(t, w)
            results.append((y, *tape.gradient(y, [t, w], dy)))
        for got, want in zip(*results):
            if want is None:
                assert got is None
            elif columns == 1:
                assert np.allclose(numbers(got), numbers(want), atol=4 * EPSILON[dtype])
            else:
                close(got, want, 4, dtype)


@pytest.mark.parametrize("shape", [(0, 5), (0,), (3, 0), (2, 0, 4), (0, 0)])
def test_nothing(device, route, shape):
    x = tf.zeros(shape)
    for f in (tfuse.softmax, tfuse.log_softmax, tfuse.layer_norm, tfuse.rms_norm):
        assert route(f)(x).shape == shape
        assert gradients(route(f), x)[0].shape == shape


# ---- the norms ----


def test_norm_over_several_axes(device, route):
    x = normal(3, 4, 5, 6)
    for axis in [(2, 3), (-1, -2), (1, 3), 1, (0,), [1, 2, 3]]:
        sizes = [x.shape[a] for a in sorted(a % 4 for a in ([axis] if isinstance(axis, int) else axis))]
        gamma, beta = normal(*sizes, seed=1), normal(*sizes, seed=2)

        def stock(x, gamma, beta):
            axes = [axis] if isinstance(axis, int) else list(axis)
            shape = [n if i in [a % 4 for a in axes] else 1 for i, n in enumerate(x.shape)]
            mean = tf.reduce_mean(x, axes, keepdims=True)
            variance = tf.reduce_mean((x - mean)**2, axes, keepdims=True)
            return (x - mean) / tf.sqrt(variance + 1e-3) * tf.reshape(gamma, shape) + tf.reshape(beta, shape)

        ours = functools.partial(tfuse.layer_norm, axis=axis)
        close(route(ours)(x, gamma, beta), stock(x, gamma, beta))
        for got, want in zip(gradients(route(ours), x, gamma, beta), gradients(stock, x, gamma, beta)):
            close(got, want, 32)


def test_weights_of_any_float(device):
    x = normal(8, 16, dtype="float16")
    want = gradients(tfuse.layer_norm, x, normal(16), normal(16, seed=1))
    for dtype in ("float16", "bfloat16", "float64"):
        weights = normal(16, dtype=dtype), normal(16, seed=1, dtype=dtype)
        got = gradients(tfuse.layer_norm, x, *weights)
        assert [g.dtype for g in got] == [tf.float16, dtype, dtype]
        close(got[0], want[0], 16, "bfloat16")
    y = tfuse.layer_norm(x, tf.Variable(tf.ones([16])), np.zeros(16))
    np.testing.assert_array_equal(y, tfuse.layer_norm(x, [1] * 16, [0.0] * 16))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_norm_far_from_zero(device, dtype):
    """The variance is of differences from the mean: a large mean costs no more than it must."""
    x = tf.cast(1000 + 8 * np.random.default_rng(0).normal(size=(16, 512)), dtype)
    wide = numbers(x)
    want = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(numbers(tfuse.layer_norm(x)), want, atol=max(4 * EPSILON[dtype] * 4, 1e-4))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_norm_near_the_limits(device, dtype):
    x = tf.constant(np.resize([6e4, -6e4, 5e4, -3e4], (3, 64)), dtype)
    assert np.all(np.isfinite(numbers(tfuse.rms_norm(x)))) and np.all(np.isfinite(numbers(tfuse.layer_norm(x))))
    close(tfuse.rms_norm(x), tf.cast(x, tf.float64) / np.sqrt(np.mean(numbers(x)**2, -1, keepdims=True)), 4, dtype)
    same = tf.fill([2, 33], tf.constant(6e4, dtype))
    assert np.all(numbers(tfuse.layer_norm(same)) == 0)
    with np.errstate(all="ignore"):
        for bad in (np.nan, np.inf, -np.inf):
            y = numbers(tfuse.layer_norm(tf.constant([[bad, 1, 2], [1, 2, 3]], dtype)))
            assert np.all(np.isnan(y[0])) and np.all(np.isfinite(y[1]))


def test_residual_that_nobody_uses_again(device, route):
    """The sum's gradient is then nothing; the result is the same as with zeros."""
    x, r, gamma = normal(5, 16), normal(5, 16, seed=1), normal(16, seed=2)
    got = gradients(route(lambda x, r, g: tfuse.rms_norm(x, g, residual=r)[0]), x, r, gamma)
    want = gradients(lambda x, r, g: tfuse.rms_norm(x + r, g), x, r, gamma)
    for a, b in zip(got, want):
        close(a, b)
    only_sum = gradients(route(lambda x, r: tfuse.layer_norm(x, residual=r)[1]), x, r)
    for a in only_sum:
        close(a, normal(5, 16, seed=9))


# ---- dropout ----


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_share_that_is_dropped(device, rate):
    x = tf.ones([256, 4096])
    _, h = tfuse.rms_norm(x, residual=tf.zeros_like(x), dropout=rate, seed=1)
    kept = h.numpy() != 0
    n = kept.size
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / n)
    assert np.all(np.abs(kept.mean(0) - (1 - rate)) < 6 * np.sqrt(rate * (1 - rate) / 256))
    np.testing.assert_allclose(h.numpy()[kept], 1 / (1 - rate), rtol=1e-6)
    neighbours = np.mean(kept[:, 1:] == kept[:, :-1])
    assert abs(neighbours - (rate**2 + (1 - rate)**2)) < 0.005


def test_a_seed_is_a_mask(device, route):
    """The one that NumPy tells, on every route and in every dtype."""
    f = route(lambda x, seed: tfuse.layer_norm(x, residual=tf.zeros_like(x), dropout=0.3, seed=seed)[1])
    for seed, dtype in [(42, dtype) for dtype in EPSILON] + [(43, "float32")]:
        x = tf.ones([33, 129], dtype)
        want = _philox.kept_numpy(x.shape, seed, 0.3)
        assert np.array_equal(numbers(f(x, tf.constant(seed, tf.int64))) != 0, want)
        assert np.array_equal(numbers(route(lambda x: tfuse.dropout(x, 0.3, seed=seed))(x)) != 0, want)


def test_all_bits_of_a_seed_count(device, route):
    """Whatever number they are given as: a mask for each."""
    x, masks = tf.ones([33, 129]), {}
    for bits, *seeds in [(-2**63 + 5, 2**63 + 5), (5, np.uint8(5)), (-1, 2**64 - 1, np.int64(-1)),
                         (7, np.int32(7), tf.constant(7), tf.constant(7, tf.int64))]:
        for seed in [bits, *seeds]:
            kept = route(lambda: tfuse.rms_norm(x, residual=tf.zeros_like(x), dropout=0.5, seed=seed)[1])().numpy() != 0
            assert np.array_equal(kept, _philox.kept_numpy(x.shape, bits, 0.5))
        masks[kept.tobytes()] = bits
    assert len(masks) == 4


def test_no_seed_is_another_mask_every_time(route):
    f = route(lambda x: tfuse.rms_norm(x, residual=tf.zeros_like(x), dropout=0.5)[1])
    first, second = (f(tf.ones([16, 64])).numpy() for _ in range(2))
    assert not np.array_equal(first, second)


def test_gradient_uses_the_mask_of_its_call(device, route):
    def step(x, r):
        with tf.GradientTape() as tape:
            tape.watch([x, r])
            _, h = tfuse.rms_norm(x, residual=r, dropout=0.5)
        return h - r, *tape.gradient(h, [x, r])

    x = tf.ones([16, 64])
    h, dx, dr = route(step)(x, normal(16, 64) * 1e-3)
    assert np.array_equal(np.abs(h.numpy()) > 1, dx.numpy() != 0)
    np.testing.assert_allclose(dr, 1)


# ---- long rows of whole packs: in registers, in shared memory, shared by a cluster of blocks, or split ----

LONG = {"softmax": (tfuse.softmax, lambda x: tf.nn.softmax(x)),
        "log_softmax": (tfuse.log_softmax, lambda x: tf.nn.log_softmax(x)),
        "layer_norm": (tfuse.layer_norm, lambda x, g, b: (x - tf.reduce_mean(x, -1, keepdims=True)) * tf.math.rsqrt(
            tf.math.reduce_variance(x, -1, keepdims=True) + 1e-3) * g + b),
        "rms_norm": (tfuse.rms_norm, lambda x, g: x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + 1e-6) * g),
        "rms_norm, residual": (lambda x, g: tfuse.rms_norm(x, g, residual=x)[0], lambda x, g: LONG["rms_norm"][1](x + x, g)),
        "layer_norm, residual": (lambda x, g, b: tfuse.layer_norm(x, g, b, residual=x)[0],
                                 lambda x, g, b: LONG["layer_norm"][1](x + x, g, b)),
        "softmax, mask": (lambda x: tfuse.softmax(x, mask=_two_of_three(x)),
                          lambda x: tf.nn.softmax(tf.where(_two_of_three(x), x, x.dtype.min)))}


def _two_of_three(x):
    return tf.range(x.shape[-1]) % 3 > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LONG)
def test_long_rows(device, name, dtype):
    """A GPU has 132 multiprocessors or so: fewer rows are dealt out otherwise than more. Where rows are kept in shared memory,
    some of a block's come after others."""
    ours, naive = LONG[name]
    shapes = [(3, 16384), (2, 65536)] + [(150, 20480), (600, 33000), (300, 40000), (150, 65536), (20, 65544), (150, 131072),
                                         (9, 262144), (70, 262144), (3, 1048584)] * ("GPU" in device)
    for rows, columns in shapes:
        weights = [np.linspace(0.5, 2, columns), np.linspace(-1, 1, columns)][:naive.__code__.co_argcount - 1]
        x = tf.cast(normal(rows, columns) + np.linspace(-3, 3, columns, dtype="float32"), dtype)
        got = ours(x, *(w.astype("float32") for w in weights))
        exact = naive(tf.cast(x, tf.float64), *weights).numpy()
        own = naive(x, *(tf.cast(w, x.dtype) for w in weights))
        assert cases.error(got, exact) <= 2 * cases.error(own, exact) + EPSILON[dtype] / 4, (rows, columns)


@pytest.mark.parametrize("columns", [33000, 65536, 262144])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bad_long_rows_spoil_no_others(device, dtype, columns):
    """Rows follow each other through the same memory: what is bad in one must not be seen in the next."""
    good = np.array(normal(70 if "GPU" in device else 5, columns))
    bad, where = good.copy(), [1, 2, 4]
    bad[1, 7], bad[2, columns - 1], bad[4] = np.nan, np.inf, -np.inf
    for f in (tfuse.softmax, tfuse.log_softmax, tfuse.rms_norm, tfuse.layer_norm):
        of_good, of_bad, again = (numbers(f(tf.cast(x, dtype))) for x in (good, bad, bad))
        assert np.array_equal(of_bad, again, equal_nan=True)
        assert np.all(np.isnan(of_bad[where]).any(-1)) and np.all(np.isfinite(of_good))
        assert np.array_equal(np.delete(of_bad, where, 0), np.delete(of_good, where, 0))


# ---- group norm ----


@pytest.mark.parametrize("axis", [-1, 1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 6, -1])
def test_group_norm_against_keras(device, route, axis, groups):
    shape = [4, 5, 7, 8]
    shape[axis] = 12
    layer = keras.layers.GroupNormalization(groups, axis=axis)
    x, gamma, beta = normal(*shape), normal(12, seed=1), normal(12, seed=2)
    layer.build(shape)
    layer.set_weights([gamma, beta])
    ours = lambda x, gamma, beta: tfuse.group_norm(x, gamma, beta, groups, axis)
    close(route(ours)(x, gamma, beta), layer(x), 16)
    close(gradients(route(lambda x: ours(x, gamma, beta)), x)[0], gradients(layer, x)[0], 64)


@pytest.mark.parametrize("positions, channels", [(30200, 6), (300, 600)])
def test_group_norm_of_large_samples(device, positions, channels):
    """So large that the CPU cuts each into blocks: three of joined rows, or of rows longer than a tile."""
    x = normal(2, positions, channels) + np.linspace(-2, 2, positions, dtype="float32")[:, None]
    gamma, beta = normal(channels, seed=1), normal(channels, seed=2)

    def exact(x, gamma, beta):
        grouped = tf.reshape(x, [2, positions, 3, -1])
        mean, variance = tf.nn.moments(grouped, [1, 3], keepdims=True)
        return tf.reshape((grouped - mean) / tf.sqrt(variance + 1e-3), x.shape) * gamma + beta

    ours = functools.partial(tfuse.group_norm, groups=3)
    wide = [tf.cast(t, tf.float64) for t in (x, gamma, beta)]
    close(ours(x, gamma, beta), exact(*wide), 16)
    for got, want in zip(gradients(ours, x, gamma, beta), gradients(exact, *wide)):
        close(got, want, 64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("positions, channels, groups", [
    (49, 256, 32), (3136, 64, 8), (57, 64, 4), (1030, 32, 1), (300, 24, 3)])
def test_group_norm_of_many_samples(device, dtype, positions, channels, groups):
    """So many that on a GPU a block has all positions of a group, or of two; far from 0, where squares would cancel. On the
    CPU, which has no such blocks, so many of the smallest samples, and fewer of the others."""
    samples = 140 if device.startswith("GPU") or positions * channels < 5000 else 20
    x = tf.cast(normal(samples, positions, channels) + 30, dtype)
    gamma, beta = normal(channels, seed=1), normal(channels, seed=2)
    dy = tf.cast(normal(samples, positions, channels, seed=3), dtype)

    def exact(x, gamma, beta):
        grouped = tf.reshape(x, [samples, positions, groups, -1])
        mean, variance = tf.nn.moments(grouped, [1, 3], keepdims=True)
        return tf.reshape((grouped - mean) / tf.sqrt(variance + 1e-3), x.shape) * gamma + beta

    def both(f, *tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = f(*tensors)
        return [y, *tape.gradient(y, tensors, tf.cast(dy, y.dtype))]

    got = both(functools.partial(tfuse.group_norm, groups=groups), x, tf.constant(gamma), tf.constant(beta))
    want = both(exact, *[tf.cast(t, tf.float64) for t in (x, gamma, beta)])
    for g, w, terms in zip(got, want, (1, 1, samples * positions, samples * positions)):
        room = 2e-2 if g.dtype == tf.bfloat16 else 2e-5 * np.sqrt(terms)
        np.testing.assert_allclose(tf.cast(g, tf.float64), w, rtol=room, atol=room)


# ---- axes and weights as users write them ----


@pytest.mark.parametrize("axis", [np.int64(1), np.int32(-1), [np.int64(0), 1], (np.uint8(1),), np.array([0, 1])], ids=repr)
def test_axes_of_numpy(axis):
    x = tf.random.normal([3, 5])
    plain = [int(a) for a in axis] if np.ndim(axis) else int(axis)
    for f in (tfuse.softmax, tfuse.log_softmax, lambda x, axis: tfuse.layer_norm(x, axis=axis)):
        assert np.array_equal(f(x, axis=axis), f(x, axis=plain))
    with pytest.raises(ValueError, match="softmax: axis must be an integer, or several, got 1.0"):
        tfuse.softmax(x, axis=1.0)


NORMS = {"layer_norm": tfuse.layer_norm, "rms_norm": tfuse.rms_norm,
         "group_norm": lambda x, gamma: tfuse.group_norm(x, gamma, groups=1)}


@pytest.mark.parametrize("name", NORMS)
def test_weights_that_are_numbers(name):
    """A list beside float64 is float64 from the start; integers with a dtype of their own are refused, as by every op."""
    x, third = tf.constant([[1.0, 2.0], [4.0, 3.0]], tf.float64), 1 / 3
    want = NORMS[name](x, tf.constant([third, third], tf.float64))
    assert np.array_equal(NORMS[name](x, [third, third]), want)
    assert np.array_equal(NORMS[name](x, [1, 2]), NORMS[name](x, [1.0, 2.0]))
    for integers in (np.array([1, 2]), tf.constant([1, 2])):
        with pytest.raises(ValueError, match="%s: gamma must be floats, got int(32|64); cast it" % name):
            NORMS[name](x, integers)
