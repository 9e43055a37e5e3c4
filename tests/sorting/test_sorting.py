"""Sorting beyond its cases: integers, random shapes, axes and values, bits that repeat, sizes that are known late."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import skip_broken_xla
from tfuse._tools import _tune
from tfuse.cases.sorting.sort import order
from tfuse.sorting import sort

DTYPES = ["float32", "float16", "bfloat16", "float64", "int32", "int64"]


def drawn(rng, shape, dtype, kind):
    """Values that all differ, or come often, or are special ones among these."""
    x = rng.normal(size=shape) * 1000
    if kind != "distinct":
        x = np.round(x / 300)
    if kind == "special" and tf.as_dtype(dtype).is_floating:
        special = rng.choice([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], size=shape)
        x = np.where(rng.random(shape) < 0.4, special, x)
    return tf.cast(tf.constant(x), dtype)


def as_array(x):
    """Floats in float64, integers as they are."""
    return (tf.cast(x, tf.float64) if x.dtype.is_floating else x).numpy()


def draws(seed, number, most=6000):
    """Random shapes of one to five axes, short and long ones among them."""
    rng = np.random.default_rng(seed)
    turns = itertools.cycle(itertools.product(["distinct", "often", "special"], DTYPES))
    for i, (kind, dtype) in zip(range(number), turns):
        rank = rng.integers(1, 6)
        shape = [int(n) for n in np.ceil(np.exp(rng.uniform(0, np.log(most) / rank, rank)))]
        if i % 13 == 0:  # some are empty
            shape[rng.integers(rank)] = 0
        yield rng, shape, dtype, kind


def test_sort_and_argsort(device):
    for rng, shape, dtype, kind in draws(0, 300):
        x = drawn(rng, shape, dtype, kind)
        axis = int(rng.integers(-len(shape), len(shape)))
        direction = ["ASCENDING", "DESCENDING"][rng.integers(2)]
        moved = np.moveaxis(as_array(x), axis, -1)
        indices = order(moved, direction)
        want = np.moveaxis(np.take_along_axis(moved, indices, -1), -1, axis)
        got = tfuse.sort(x, axis, direction), tfuse.argsort(x, axis, direction)
        assert got[0].dtype == x.dtype and got[1].dtype == tf.int32
        np.testing.assert_array_equal(as_array(got[0]), want, str((shape, dtype, kind, axis, direction)))
        np.testing.assert_array_equal(got[1], np.moveaxis(indices, -1, axis), str((shape, dtype, kind, axis, direction)))


# Around where kernels take another way: counting, networks of warps and blocks, one tile, several.
@pytest.mark.parametrize("cols", [32, 33, 128, 129, 256, 513, 1024, 1025, 2049, 4096, 8192, 8193, 16385, 70001])
def test_lengths_of_rows(device, cols):
    rng = np.random.default_rng(cols)
    for dtype in DTYPES:
        for x in [tf.ones([3, cols], dtype)] + [drawn(rng, [3, cols], dtype, kind) for kind in ("distinct", "special")]:
            indices = order(as_array(x), "DESCENDING")
            np.testing.assert_array_equal(tfuse.argsort(x, direction="DESCENDING"), indices, dtype)
            np.testing.assert_array_equal(as_array(tfuse.sort(x, direction="DESCENDING")),
                                          np.take_along_axis(as_array(x), indices, -1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_of_rows_in_order(device, dtype):
    """All that follows is greater than what was kept, or nothing is, or all is equal."""
    for cols, k in [(257, 3), (4099, 50), (30001, 1000), (300001, 50)]:
        up = np.arange(cols) // 3 % 2000
        for row in (up, -up, np.sort(up), np.ones(cols)):
            x = tf.cast(tf.constant(np.stack([row, row[::-1]])), dtype)
            indices = order(as_array(x), "DESCENDING")[:, :k]
            got = tfuse.top_k(x, k)
            np.testing.assert_array_equal(got.indices, indices, str((cols, k)))
            np.testing.assert_array_equal(as_array(got.values), np.take_along_axis(as_array(x), indices, -1), str((cols, k)))


def test_edges_of_bins(device):
    """Values at the edges of bins and beside them are counted as double precision says."""
    for low, high, bins in [(-3.0, 3.0, 100), (0.0, 0.7, 7), (-1.0, 1e9, 1000), (0.0, 1e-35, 10), (-3e38, 3e38, 10),
                            (0.0, 1.0, 300000)]:
        edges = np.linspace(low, high, min(bins, 1000) + 1).astype(np.float32)
        x = np.concatenate([edges, np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf))])
        ends = np.array([low, high], np.float32)
        first, last = ends.astype(np.float64)
        index = (np.maximum(x.astype(np.float64), first) - first) / ((last - first) / bins)
        want = np.bincount(np.minimum(index, bins - 1).astype(int), minlength=bins)
        np.testing.assert_array_equal(tfuse.histogram(tf.constant(x), tf.constant(ends), bins), want, str((low, high, bins)))


def test_bincount_of_a_matrix(device):
    for size in (5, 1000, 9000, 70000):
        ids = np.random.default_rng(size).integers(0, size, [70, 900])
        for dtype in (tf.int32, tf.int64):
            np.testing.assert_array_equal(tfuse.bincount(tf.constant(ids, dtype)), np.bincount(ids.ravel()))


def test_sort_moves_bits(device):
    """Every 16-bit number there is comes out as it went in, and in order; NaNs are all at the end."""
    bits = np.random.default_rng(1).permutation(1 << 16).astype(np.uint16)
    for dtype in (tf.float16, tf.bfloat16):
        x = tf.bitcast(tf.constant(bits), dtype)
        up, down = (tfuse.sort(x, direction=d) for d in ("ASCENDING", "DESCENDING"))
        values, numbers = as_array(x), np.sum(~np.isnan(as_array(x)))
        back = tf.bitcast(up, tf.uint16).numpy()
        assert sorted(back[:numbers]) == sorted(bits[~np.isnan(values)])
        assert np.all(np.diff(as_array(up)[np.isfinite(as_array(up))]) >= 0) and np.all(np.isnan(as_array(up)[numbers:]))
        np.testing.assert_array_equal(as_array(down), as_array(up)[::-1])
        negative_zero, zero = (int(np.flatnonzero(back == sign)[0]) for sign in (0x8000, 0))
        assert negative_zero + 1 == zero


def test_extremes_of_integers(device):
    for dtype in (tf.int32, tf.int64):
        x = tf.constant([0, dtype.max, -1, dtype.min, 1, dtype.min, dtype.max], dtype)
        np.testing.assert_array_equal(tfuse.sort(x), np.sort(x))
        np.testing.assert_array_equal(tfuse.argsort(x, direction="DESCENDING"), [1, 6, 4, 0, 2, 3, 5])
        np.testing.assert_array_equal(tfuse.top_k(x, 7).indices, [1, 6, 4, 0, 2, 3, 5])
        many = tf.concat([x, tf.range(100, dtype=dtype), x], 0)  # so many that a table of what was seen grows
        for values in (x, many, tf.fill([2], dtype.max)):
            with tf.device("CPU:0"):
                want = tf.unique_with_counts(values)
            for got, w in zip(tfuse.unique_with_counts(values), want):
                np.testing.assert_array_equal(got, w)


def test_top_k(device):
    for rng, shape, dtype, kind in draws(2, 200):
        x = drawn(rng, shape, dtype, kind)
        k = int(rng.integers(shape[-1] + 1))
        indices = order(as_array(x), "DESCENDING")[..., :k]
        got = tfuse.top_k(x, k, index_type=[tf.int32, tf.int64][rng.integers(2)])
        np.testing.assert_array_equal(got.indices, indices, str((shape, dtype, kind, k)))
        np.testing.assert_array_equal(as_array(got.values), np.take_along_axis(as_array(x), indices, -1))


def test_top_k_of_long_rows(device):
    """Rows of which most are read and not kept, in any order: rising ones take all, falling ones none."""
    rng = np.random.default_rng(3)
    rising = np.arange(70000.0)
    for x in (rising, rising[::-1], rng.permutation(rising), rng.integers(0, 3, 70000), np.zeros(70000)):
        for k in (1, 50, 700, 3000):
            for dtype in ("float32", "bfloat16", "int64"):
                tensor = tf.cast(tf.constant(np.stack([x, -x])), dtype)
                np.testing.assert_array_equal(tfuse.top_k(tensor, k).indices,
                                              order(as_array(tensor), "DESCENDING")[..., :k], str((k, dtype)))


def test_unique(device):
    for rng, shape, dtype, kind in draws(4, 200):
        x = tf.reshape(drawn(rng, shape, dtype, kind), [-1])
        out_idx = [tf.int32, tf.int64][rng.integers(2)]
        with tf.device("CPU:0"):
            wide = tf.cast(x, tf.float32) if x.dtype.is_floating and x.dtype.size == 2 else x
            want = tf.unique_with_counts(wide, out_idx)
        got = tfuse.unique_with_counts(x, out_idx)
        assert got.y.dtype == x.dtype
        for g, w in zip(got, want):
            np.testing.assert_array_equal(as_array(g), as_array(w), str((shape, dtype, kind)))
        padded = tfuse.unique_counts(x, padded=True)
        assert padded.y.shape == padded.count.shape == x.shape
        np.testing.assert_array_equal(as_array(padded.y)[:len(got.y)], as_array(got.y))
        assert np.sum(padded.count != 0) == len(got.y)


def test_bincount(device):
    for rng, shape, dtype, _ in draws(5, 200):
        ids = tf.constant(rng.integers(0, rng.integers(1, 300), shape), ["int32", "int64"][rng.integers(2)])
        flat = ids.numpy().ravel()
        least, most = (None if rng.integers(2) else int(rng.integers(1, 200)) for _ in range(2))
        length = max(flat.max(initial=-1) + 1, least or 0)
        length = length if most is None else min(length, most)
        kept = flat < length
        np.testing.assert_array_equal(tfuse.bincount(ids, minlength=least, maxlength=most),
                                      np.bincount(flat[kept], minlength=length)[:length])
        weights = drawn(rng, shape, dtype, "often")
        want = np.bincount(flat[kept], as_array(weights).ravel()[kept].astype(np.float64), length)[:length]
        got = tfuse.bincount(ids, weights, least, most)
        assert got.dtype == weights.dtype and got.shape == want.shape
        bound = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype, 0)  # sums of small integers are exact but for storing
        np.testing.assert_allclose(as_array(got), want, rtol=bound, atol=0)


def test_bincount_of_large_numbers(device):
    """They are in no bin, also where their lower half is the number of one."""
    ids = tf.constant([1, 2**32 + 1, 2, 2**32, 2**62 + 2, 2**31 + 1, 1], tf.int64)
    np.testing.assert_array_equal(tfuse.bincount(ids, minlength=4, maxlength=4), [0, 2, 1, 0])
    weights = tf.constant([1.0, 10, 100, 1000, 1e4, 1e5, 1e6])
    np.testing.assert_array_equal(tfuse.bincount(ids, weights, 4, 4), [0, 1 + 1e6, 100, 0])


def test_unsort_refuses_what_is_no_place():
    """Seen on the CPU, where it would be written into another row."""
    with tf.device("CPU:0"):
        for indices in ([3, 0], [0, -1]):
            with pytest.raises(tf.errors.InvalidArgumentError, match="indices must be those of values, from 0 up to 3"):
                sort._unsort(tf.ones([2, 1]), tf.constant(indices)[:, None], tf.ones([2, 3]))


def test_bincount_of_a_negative_number(device):
    """Seen on the CPU; on a GPU it is in no bin."""
    if "GPU" in device:
        np.testing.assert_array_equal(tfuse.bincount(tf.constant([1, -1]), minlength=3, maxlength=3), [0, 1, 0])
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="ids must not be less than 0"):
            tfuse.bincount(tf.constant([1, -1]), minlength=3, maxlength=3)


def test_histogram(device):
    for rng, shape, dtype, kind in draws(6, 200):
        x = drawn(rng, shape, dtype, kind)
        low, high = (as_array(tf.cast(v, dtype)) for v in np.sort(rng.uniform(-900, 900, 2)))
        high, bins = max(high, low + 16), int(rng.integers(1, 200))
        values = as_array(x).ravel().astype(np.float64)
        values = values[~np.isnan(values)]
        width = (np.float64(high) - low) / bins
        indices = np.minimum((np.maximum(values, low) - low) / width, bins - 1).astype(int)
        got = tfuse.histogram(x, tf.constant([low, high], dtype), bins, tf.int64)
        assert got.dtype == tf.int64
        np.testing.assert_array_equal(got, np.bincount(indices, minlength=bins), str((shape, dtype, kind)))


def test_repeats_bit_for_bit(device):
    """Also where integers or floats are summed up by many threads at once."""
    rng = np.random.default_rng(7)
    ids, weights = tf.constant(rng.integers(0, 50, 400000), tf.int32), tf.constant(rng.normal(size=400000), tf.float32)
    keys = tf.constant(rng.integers(0, 50, (3, 60000)), tf.float32)
    for f in (lambda: tfuse.bincount(ids, weights), lambda: tfuse.argsort(keys), lambda: tfuse.top_k(keys, 40).indices,
              lambda: tfuse.unique_counts(ids).idx):
        first = f().numpy()
        assert all(first.tobytes() == f().numpy().tobytes() for _ in range(3))


def test_gradients_follow_their_values(device):
    x = tf.constant([[3.0, 1.0, 3.0, 2.0]])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        down, (values, indices) = tfuse.sort(x, direction="DESCENDING"), tfuse.top_k(x, 2)
        both = tf.reduce_sum(values) + tf.reduce_sum(tf.gather(x, indices, batch_dims=1))
    np.testing.assert_array_equal(tape.gradient(down, x, tf.constant([[1.0, 2.0, 3.0, 4.0]])), [[1.0, 4.0, 2.0, 3.0]])
    np.testing.assert_array_equal(tape.gradient(values, x, tf.constant([[1.0, 2.0]])), [[1.0, 0.0, 2.0, 0.0]])
    np.testing.assert_array_equal(tape.gradient(both, x), [[2.0, 0.0, 2.0, 0.0]])


def test_k_that_is_known_late(device):
    f = tf.function(lambda x, k: tfuse.top_k(x, k))
    for k in (1, 3):
        assert f(tf.constant([1.0, 5.0, 3.0]), tf.constant(k)).indices.numpy().tolist() == [1, 2, 0][:k]


def test_sizes_that_depend_on_data(device):
    """In a graph they come out as they are; inside XLA it is said that they cannot."""
    skip_broken_xla()
    ids = tf.constant([4, 1, 4])
    assert tf.function(tfuse.bincount)(ids).numpy().tolist() == [0, 1, 0, 0, 2]
    assert tf.function(tfuse.unique_counts)(ids).y.numpy().tolist() == [4, 1]
    with pytest.raises(ValueError, match="bincount: inside jit_compile=True.*minlength and maxlength must be given"):
        tf.function(tfuse.bincount, jit_compile=True)(ids)
    with pytest.raises(ValueError, match="unique_counts: how many distinct values .*padded=True"):
        tf.function(tfuse.unique_counts, jit_compile=True)(ids)
    compiled = tf.function(lambda x: tfuse.unique_counts(x, padded=True), jit_compile=True)
    assert compiled(ids).count.numpy().tolist() == [2, 1, 0]


def test_symbolic_tensors():
    """Inside a functional model each is an operation of it."""
    import keras
    x = keras.Input([8])
    model = keras.Model(x, [tfuse.sort(x), tfuse.argsort(x), *tfuse.top_k(x, 3)])
    data = np.random.default_rng(8).normal(size=(4, 8)).astype(np.float32)
    up, ascending, values, indices = model(data)
    np.testing.assert_array_equal(up, np.sort(data))
    np.testing.assert_array_equal(ascending, np.argsort(data))
    np.testing.assert_array_equal(values, -np.sort(-data)[:, :3])
    np.testing.assert_array_equal(indices, np.argsort(-data)[:, :3])


def check_gradients(rows, cols, dtype, k):
    """Those of sort, and of the k greatest."""
    rng = np.random.default_rng(cols)
    x, dy = (tf.cast(rng.permuted(np.tile(np.arange(cols) % 2000, (rows, 1)), axis=1), dtype) for _ in range(2))
    indices = order(as_array(x), "DESCENDING")
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        down, first = tfuse.sort(x, direction="DESCENDING"), tfuse.top_k(x, k).values
    for y, n in ((down, cols), (first, k)):
        want = np.zeros_like(as_array(x))
        np.put_along_axis(want, indices[:, :n], as_array(dy)[:, :n], -1)
        np.testing.assert_array_equal(as_array(tape.gradient(y, x, dy[:, :n])), want, str((cols, dtype, n)))


def test_gradients_of_rows_of_any_length(device):
    """Rows that a block of the GPU puts in order in shared memory, and those before and after them."""
    for cols, dtype in itertools.product((255, 256, 1001, 4096, 8193, 16385), (tf.float16, tf.float32, tf.float64)):
        check_gradients(3, cols, dtype, 100)


def test_gradients_of_rows_that_caches_do_not_hold(device):
    """There, the GPU brings numbers near to where they go before it puts them there; if it is told to, of shorter rows too."""
    check_gradients(1, (1 << 22) + 3, tf.float32, 1 << 22)
    choice, = [c for c in _tune.tunables() if (c.stem, c.name) == ("sort", "scattered")]
    choice.put(choice.least)
    try:
        for (rows, cols), dtype in itertools.product(((3, choice.least + 7), (1, 300007)), (tf.float16, tf.float32)):
            check_gradients(rows, cols, dtype, cols - 7)
    finally:
        choice.put(choice.value)
