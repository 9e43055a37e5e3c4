"""Attention beyond its cases: all options together, ragged and paged sequences, decoding, memory, Keras, what it refuses."""

import itertools
import resource

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from conftest import ROUTES, needs_gpu
from tfuse import cases
from tfuse._core import _library
from tfuse.attention.attention import _attention, _paged, _plain
from tfuse.cases.attention import attention as meant


def normal(*shape, seed=0, dtype="float32"):
    return tf.cast(np.random.default_rng(seed).normal(size=shape), dtype)


def qkv(batch=2, queries=9, keys=13, heads=4, key_heads=2, dim=16, dtype="float32", seed=0):
    shapes = (batch, queries, heads, dim), (batch, keys, key_heads, dim), (batch, keys, key_heads, dim)
    return [normal(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes)]


def gradients(f, *inputs):
    """Of f's results, weighted so that none is trivial."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        results = tf.nest.flatten(f(*inputs), expand_composites=False)
        loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float64) * np.cos(np.arange(np.prod(r.shape)).reshape(r.shape)))
                         for r in results])
    return tape.gradient(loss, inputs)


def close(got, want, tolerance=2e-6):
    got, want = (np.asarray(tf.cast(tf.convert_to_tensor(x), tf.float64)) for x in (got, want))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * max(np.max(np.abs(want), initial=0), 1))


def all_close(got, want, tolerance=2e-6):
    for g, w in zip(got, want, strict=True):
        close(g, w, tolerance)


# ---- every combination of options ----

TENSORS = [names for n in range(4) for names in itertools.combinations(["bias", "mask", "key_lengths"], n)]
GRID = [dict(c for c in chosen if c) for chosen in itertools.product(
    [(), ("is_causal", True)], [(), ("align", "last")], [(), ("window", (6, 3))], [(), ("scale", 0.7), ("soft_cap", 5.0)],
    [(), ("dropout", 0.3)])]


@pytest.mark.parametrize("names", TENSORS, ids=lambda names: " ".join(names) or "alone")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_combination(device, dtype, names):
    case = meant.case("attention", names)
    for options in GRID:
        options = {**options, "seed": 11} if "dropout" in options else options
        *inputs, dy = case.tensors((2, 18, 23, 4, 2, 24), dtype, seed=3)
        results = [case.step(f, inputs, dy, options) for f in (case.run, case.plain)]
        for i, (name, got, naive, want) in enumerate(zip(case.results(), *results, case.truth(inputs, dy, options))):
            error, most = cases.error(got, want), cases.allowed(naive, want, dtype)
            if "soft_cap" in options and error > most:  # beside a draw with which the naive one is lucky, what it is typically
                most = cases.allowed(naive, want, dtype, case.typical(dtype, options)[i])
            assert error <= most, (name, options)


BIASES = [(), (1,), (13,), (9, 1), (9, 13), (4, 1, 1), (1, 9, 13), (2, 1, 1, 13), (1, 4, 9, 13), (2, 1, 9, 1), (2, 4, 9, 13)]


@pytest.mark.parametrize("shape", BIASES, ids=str)
def test_bias_of_any_shape(device, route, shape):
    bias = normal(*shape, seed=5)
    got, want = (gradients(f, *qkv(), bias) for f in (route(tfuse.attention), meant.naive))
    all_close(got, want)
    mask = np.random.default_rng(6).random(shape) < 0.6
    close(route(lambda *t: tfuse.attention(*t, mask=mask))(*qkv()), meant.reference(*map(cases.as64, qkv()), mask=mask))


@pytest.mark.parametrize("sizes", [(70, 150, 1), (150, 70, 3)])
def test_gradient_of_a_bias_over_many_tiles(device, sizes):
    queries, keys, batch = sizes
    tensors = qkv(batch, queries, keys)
    for shape in [(keys,), (queries, 1), (4, queries, keys), (1, 1)]:
        bias = normal(*shape, seed=4)
        f = lambda *t: tfuse.attention(*t, is_causal=True, window=40)
        terms = batch * 4 * queries * keys / np.prod(shape)  # of one sum; those of a query's keys cancel
        all_close(gradients(f, *tensors, bias),
                  gradients(lambda *t: meant.naive(*t, is_causal=True, window=40), *tensors, bias),
                  max(1e-5, 1e-7 * terms**0.5))


def test_bias_without_a_gradient_costs_none(device):
    q, k, v = qkv()
    with tf.GradientTape() as tape:
        tape.watch(q)
        y = tfuse.attention(q, k, v, normal(9, 13))
    close(tape.gradient(y, q), gradients(lambda q: tf.reduce_sum(meant.naive(q, k, v, normal(9, 13)))[None], q)[0])


# ---- heads, log-sum-exp, nothing to attend to ----


@pytest.mark.parametrize("key_heads", [1, 2, 3, 6])
def test_shared_heads_are_repeated_heads(device, route, key_heads):
    q, k, v = qkv(heads=6, key_heads=key_heads)
    repeated = lambda q, k, v: tfuse.attention(q, *(tf.repeat(x, 6 // key_heads, 2) for x in (k, v)), is_causal=True)
    all_close(gradients(route(lambda *t: tfuse.attention(*t, is_causal=True)), q, k, v), gradients(repeated, q, k, v))


@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_log_sum_exp_and_its_gradient(device, route, soft_cap):
    q, k, v = qkv(heads=2, key_heads=2)

    def stock(q, k, v):
        s = tf.einsum("bqhd,bkhd->bhqk", q, k) / 4
        s = soft_cap * tf.tanh(s / soft_cap) if soft_cap else s
        return tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(s), v), tf.reduce_logsumexp(s, -1)

    ours = route(lambda *t: tfuse.attention(*t, return_lse=True, soft_cap=soft_cap))
    all_close(ours(q, k, v), stock(q, k, v))
    all_close(gradients(ours, q, k, v), gradients(stock, q, k, v))
    all_close(gradients(lambda *t: ours(*t)[1], q, k, v)[:2], gradients(lambda *t: stock(*t)[1], q, k, v)[:2])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_nothing_to_attend_to(device, route, dtype):
    """Gives 0, minus infinity as the log-sum-exp, and gradients 0: never NaN."""
    mask = np.ones([2, 1, 9, 13], bool)
    mask[0, :, 4] = False

    def f(q, k, v):
        y, lse = tfuse.attention(q, k, v, mask=mask, query_lengths=[9, 3], key_lengths=[13, 7], return_lse=True)
        return y, tf.where(tf.math.is_finite(lse), lse, tf.zeros([], lse.dtype))

    tensors = qkv(dtype=dtype)
    y, lse = route(lambda *t: tfuse.attention(*t, mask=mask, query_lengths=[9, 3], key_lengths=[13, 7], return_lse=True))(*tensors)
    y = cases.as64(y)
    empty = np.zeros([2, 9], bool)
    empty[0, 4], empty[1, 3:] = True, True
    assert np.all(y[empty] == 0) and np.all(y[~empty] != 0)
    assert np.all(np.isneginf(lse) == empty[:, None])
    dq, dk, dv = map(cases.as64, gradients(route(f), *tensors))
    assert all(np.all(np.isfinite(d)) for d in (dq, dk, dv))
    assert np.all(dq[empty] == 0) and np.all(dk[1, 7:] == 0) and np.all(dv[1, 7:] == 0) and np.any(dv[1, :7] != 0)


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0xFFC00000])  # as C writes it, and as GPUs and processors make it
def test_nan_reaches_its_own_queries_only(tf32, device, bits, on):
    tf.config.experimental.enable_tensor_float_32_execution(on)
    nan = np.array(bits, np.uint32).view(np.float32)
    q, k, v = (np.array(x) for x in qkv(heads=1, key_heads=1))
    q[0, 2, 0, 3] = nan
    y = tfuse.attention(q, k, v).numpy()
    assert np.all(np.isnan(y[0, 2])) and np.isfinite(y).sum() == y.size - 16
    q, k, v = (np.array(x) for x in qkv(heads=1, key_heads=1))
    v[0, 2, 0, 3] = nan
    y = tfuse.attention(q, k, v).numpy()
    assert np.all(np.isnan(y[0, ..., 3])) and np.isfinite(y).sum() == y.size - y[0, ..., 3].size


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_lies_beyond_the_lengths_is_not_seen(device, route, dtype):
    """However large, forward and backward; not even NaN, but for cuDNN, which multiplies it by 0."""
    cudnn = "GPU" in device and dtype != "float32"
    lengths = np.array([100, 37])
    beyond = (np.arange(100) >= lengths[:, None])[..., None, None]
    tensors = qkv(queries=100, keys=100, dim=64, dtype=dtype)
    holed = [tf.where(beyond, tf.constant(6e4 if cudnn else np.nan, dtype), x) for x in tensors]
    f = route(lambda *t: tfuse.attention(*t, query_lengths=lengths, key_lengths=lengths))
    all_close([f(*holed), *gradients(f, *holed)], [f(*tensors), *gradients(f, *tensors)])


@needs_gpu
def test_tf32_by_tensorflows_switch():
    tensors = qkv(queries=200, keys=200, dim=64)
    with tf.device("CPU:0"):
        want = gradients(tfuse.attention, *(tf.cast(x, "float64") for x in tensors))
    error = {}
    for tf32 in (False, True):
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        try:
            with tf.device("GPU:0"):
                got = gradients(tfuse.attention, *map(tf.identity, tensors))
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(False)
        error[tf32] = max(float(tf.reduce_max(abs(tf.cast(g, "float64") - w))) for g, w in zip(got, want))
    assert error[False] < 1e-5 and 10 * error[False] < error[True] < 1e-2, error


def test_huge_scores(device):
    """Differences count, not sizes."""
    q, k, v = qkv(heads=1, key_heads=1)
    bias = tf.constant([3e4, 0.0, -3e4])[:, None, None] + tf.zeros([3, 9, 13])
    for b in bias:
        close(tfuse.attention(q, k, v, bias=b), tfuse.attention(q, k, v), 5e-3)
        all_close(gradients(lambda *t: tfuse.attention(*t, bias=b), q, k, v), gradients(tfuse.attention, q, k, v), 2e-2)
    close(tfuse.attention(q * 1e4, k, v), meant.reference(*map(cases.as64, (q * 1e4, k, v))), 1e-2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_ends_of_a_soft_cap(device, dtype):
    """None, one far beyond all scores, and one far below them, which leaves their signs alone and no gradient."""
    q, k, v = qkv(keys=70, dtype=dtype)
    tolerance = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    capped = lambda soft_cap: lambda *t: tfuse.attention(*t, soft_cap=soft_cap)
    for soft_cap in (0, 0.0, 1e4):
        close(capped(soft_cap)(q, k, v), capped(None)(q, k, v), tolerance)
        all_close(gradients(capped(soft_cap), q, k, v), gradients(capped(None), q, k, v), 2 * tolerance)
    signs = tf.sign(tf.einsum("bqhd,bkhd->bhqk", *(tf.cast(x, tf.float64) for x in (q, tf.repeat(k, 2, 2)))))
    weights = tf.nn.softmax(signs * 1e-3)
    want = tf.einsum("bhqk,bkhd->bqhd", weights, tf.cast(tf.repeat(v, 2, 2), tf.float64))
    q = q * 1e4  # beside which the cap is nothing
    close(capped(1e-3)(q, k, v), want, tolerance)
    for gradient in gradients(capped(1e-3), q, k, v)[:2]:
        assert np.all(np.abs(cases.as64(gradient)) < 1e-3)


@needs_gpu
def test_a_soft_cap_is_not_cudnns():
    q = normal(1, 64, 2, 64, dtype="bfloat16")
    tfuse.attention(q, q, q, soft_cap=5.0)
    row = [row for row in tfuse.explain() if row["op"] == "Attention"][-1]
    assert "a soft cap is our own kernel's" in row["why"] or "TFUSE_CUDNN=0" in row["why"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_beside_a_large_bias(device, dtype):
    """Where the last tile is not full: steps that are not there have no weight, whatever stands in the bias."""
    q, k, v = (tf.cast(x, dtype) for x in qkv(1, 100, 90))
    bias = tf.constant(12.0 if dtype == "float16" else 90.0, dtype)
    with tf.GradientTape() as tape:
        tape.watch([q, k, v, bias])
        y = tfuse.attention(q, k, v, bias=tf.broadcast_to(bias, [100, 90]))
    for d in tape.gradient(y, [q, k, v, bias]):
        assert np.all(np.isfinite(tf.cast(d, tf.float32)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bias_that_leaves_nothing(device, dtype):
    """Minus infinity along all of a query's keys is as if they were masked."""
    q, k, v = (tf.cast(x, dtype) for x in qkv(1, 64, 64))
    keeps = np.ones([64, 64], bool)
    keeps[5] = False
    bias = tf.cast(tf.where(keeps, 0.0, -np.inf), dtype)
    for got, want in zip(*((*gradients(f, q, k, v), f(q, k, v)) for f in (
            lambda *t: tfuse.attention(*t, bias=bias), lambda *t: tfuse.attention(*t, mask=keeps)))):
        close(got, want, 2e-2 if dtype == "bfloat16" else 1e-5)


# ---- ragged ----

LENGTHS = [([5, 0, 9, 1], [7, 3, 0, 66]), ([3], [3]), ([70, 2], [65, 130])]


def ragged(lengths, heads, seed):
    return tf.RaggedTensor.from_row_lengths(normal(sum(lengths), heads, 8, seed=seed), lengths)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"is_causal": True, "align": "last", "window": 4},
                                     {"soft_cap": 1.5}], ids=str)
def test_ragged_is_padded(device, route, lengths, options):
    parts = ragged(lengths[0], 4, 0), ragged(lengths[1], 2, 1), ragged(lengths[1], 2, 2)
    values = [x.values for x in parts]

    def ours(*values):
        y, lse = tfuse.attention(*(x.with_values(v) for x, v in zip(parts, values)), return_lse=True, **options)
        assert isinstance(y, tf.RaggedTensor) and isinstance(lse, tf.RaggedTensor)
        return y.values, tf.where(tf.math.is_finite(lse.values), lse.values, 0.0)

    def padded(*values):
        dense = [x.with_values(v).to_tensor() for x, v in zip(parts, values)]
        y, lse = tfuse.attention(*dense, query_lengths=lengths[0], key_lengths=lengths[1], return_lse=True, **options)
        lse = tf.transpose(tf.where(tf.math.is_finite(lse), lse, 0.0), [0, 2, 1])
        return [tf.RaggedTensor.from_tensor(x, lengths=lengths[0]).values for x in (y, lse)]

    all_close(route(ours)(*values), padded(*values))
    all_close(gradients(route(ours), *values), gradients(padded, *values))


@pytest.mark.parametrize("route", ["eager", "graph"])  # XLA leaves assertions out
def test_rows_of_ragged_values(route):
    with pytest.raises(tf.errors.InvalidArgumentError, match="value must have the rows of key"):
        ROUTES[route](lambda: tfuse.attention(*(ragged(n, 2, 1) for n in ([4, 1], [3, 2], [2, 3]))).values)()


def test_ragged_dropout_is_the_plain_composition(device):
    splits, values = tf.constant([0, 5, 5, 14], tf.int64), [normal(14, h, 8, seed=h) for h in (4, 2, 2)]
    nothing = [tf.zeros([0]), tf.zeros([0], tf.bool)]
    options = dict(scale=0.3, align="last", left=-1, right=0, rate=0.4, deterministic=False)
    seed = tf.constant(77, tf.int64)
    ours, plain = (lambda *v, g=g: g(*v, *nothing, splits, splits, seed, **options) for g in (_attention, _plain))
    all_close(ours(*values), plain(*values))
    all_close(gradients(ours, *values), gradients(plain, *values))


def test_steps_that_no_sequence_has(device):
    """As where ragged values are padded after, to a size that XLA can know."""
    values, splits = [normal(10, 2, 8, seed=i) for i in range(3)], tf.constant([0, 3, 7], tf.int64)
    f = lambda *v: _attention(*v, None, None, splits, splits, None, scale=1.0)
    y, lse = f(*values)
    assert np.all(y[7:] == 0) and np.all(np.isneginf(lse[:, 7:])) and np.all(y[:7] != 0)
    for d in gradients(lambda *v: f(*v)[0], *values):
        assert np.all(d[7:] == 0) and np.any(d[:7] != 0)


# ---- decoding ----


@pytest.mark.parametrize("align, soft_cap", [("first", None), ("last", None), ("last", 1.5)])
def test_decoding_gives_what_the_whole_gives(device, route, align, soft_cap):
    q, k, v = qkv(queries=12, keys=12)
    whole = tfuse.attention(q, k, v, is_causal=True, soft_cap=soft_cap)
    cache = [tf.concat([x, normal(2, 4, 2, 16) * np.nan], 1) for x in (k, v)]  # room that was never filled
    step = route(lambda q, n, k, v: tfuse.attention(q, k, v, key_lengths=n, is_causal=align == "last", align=align,
                                                    soft_cap=soft_cap))
    for t in range(12):
        close(step(q[:, t:t + 1], tf.fill([2], t + 1), *cache), whole[:, t:t + 1])


def pages_of(x, table, size, pages):
    """x [batch, steps, heads, dim] in pages of `size`, those that no sequence has filled with NaN."""
    out = np.full([pages, size, *x.shape[2:]], np.nan, np.float32)
    for b, row in enumerate(table):
        for i, page in enumerate(row):
            part = x[b, i * size:(i + 1) * size]
            out[page, :len(part)] = part
    return tf.constant(out)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("window, soft_cap", [(None, None), (5, None), (5, 1.5)])
def test_paged_is_dense(device, route, queries, window, soft_cap):
    q, k, v = qkv(3, queries, 22)
    lengths = tf.constant([22, 4, 17], tf.int64)
    table = np.random.default_rng(0).permutation(20)[:18].reshape(3, 6)
    dense = tfuse.attention(q, k, v, key_lengths=lengths, is_causal=True, align="last", window=window, soft_cap=soft_cap)
    paged = route(lambda q, k, v, n: tfuse.paged_attention(q, k, v, table, n, window=window, soft_cap=soft_cap))
    full = [np.concatenate([x, np.zeros([3, 2, 2, 16])], 1) for x in (k, v)]
    close(paged(q, *(pages_of(x, table, 4, 20) for x in full), lengths), dense)


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pages_that_do_not_exist_on_a_gpu(dtype):
    """They are zeros there; on the CPU they are an error."""
    q, k, v = (tf.cast(x, dtype) for x in qkv(2, 1, 12))
    pages = [tf.concat([tf.reshape(x, [6, 4, *x.shape[2:]]), tf.zeros_like(x[:1, :4])], 0) for x in (k, v)]
    zeros = tfuse.paged_attention(q, *pages, [[0, 6, 2], [6, 4, 5]], [12, 12])
    for outside in (-1, 7, 2**40, -2**63):
        close(tfuse.paged_attention(q, *pages, [[0, outside, 2], [outside, 4, 5]], [12, 12]), zeros)


def test_gradient_of_paged_attention(device):
    q, k, v = qkv(2, 2, 8)
    table = [[3, 1], [0, 2]]
    pages = [pages_of(x.numpy(), table, 4, 4) for x in (k, v)]
    got = gradients(lambda *t: tfuse.paged_attention(*t, table, [8, 5]), q, *pages)
    want = gradients(lambda *t: tfuse.attention(*t, key_lengths=[8, 5], is_causal=True, align="last"), q, k, v)
    all_close(got, [want[0], *(pages_of(x.numpy(), table, 4, 4) for x in want[1:])])


# ---- sizes ----


@pytest.mark.parametrize("length", [16384])
def test_memory_is_linear(length):
    """The scores of one head alone would be 1 GB."""
    with tf.device("CPU:0"):
        tensors = [normal(1, length, 1, 8, seed=i) for i in range(3)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        results = gradients(lambda *t: tfuse.attention(*t, window=300), *tensors)
        assert all(np.all(np.isfinite(r)) for r in results)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KB


def test_unknown_shapes(device):
    unknown = [tf.TensorSpec(None)] * 3
    f = tf.function(lambda *t: tfuse.attention(*t, is_causal=True, return_lse=True), input_signature=unknown)
    all_close(f(*qkv()), tfuse.attention(*qkv(), is_causal=True, return_lse=True))
    outputs = lambda f: f.get_concrete_function().structured_outputs
    assert [s.shape.rank for s in outputs(f)] == [None, None]
    specs = [tf.TensorSpec([None, None, 4, 16]), tf.TensorSpec([None, None, 2, 16]), tf.TensorSpec([None, None, 2, 5])]
    f = tf.function(lambda *t: tfuse.attention(*t, return_lse=True), input_signature=specs)
    assert [s.shape.as_list() for s in outputs(f)] == [[None, None, 4, 5], [None, 4, None]]


def test_unknown_lengths_of_both_in_xla(device, xla):
    """Queries and keys of sizes that are not known, and not the same, through the gradient."""
    q, k, v = qkv()
    specs = [tf.TensorSpec([None, None, *x.shape[2:]]) for x in (q, k, v)]
    g = tf.function(lambda *t: tf.gradients(tfuse.attention(*t), t), input_signature=specs, jit_compile=True,
                    autograph=False)
    with tf.GradientTape() as tape:
        tape.watch([q, k, v])
        y = meant.naive(q, k, v)
    all_close(g(q, k, v), tape.gradient(y, [q, k, v]))
    assert [row["route"] for row in tfuse.explain() if row["when"] == "traced"][-1] == "XLA custom call"


# ---- repeated, saved, in Keras ----


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_repeats_bit_for_bit(device, dtype):
    tensors = [*qkv(1, 300, 257, dtype=dtype), normal(300, 257, dtype=dtype)]
    f = lambda *t: tfuse.attention(*t, is_causal=True, dropout=0.1, seed=3, deterministic=True)
    first = gradients(f, *tensors)
    for _ in range(3):
        assert all(np.array_equal(a, b) for a, b in zip(first, gradients(f, *tensors)))


def test_a_new_seed_at_every_call(device):
    tensors = qkv()
    f = tf.function(lambda: tfuse.attention(*tensors, dropout=0.5))
    assert not np.array_equal(f(), f())
    fixed = [tfuse.attention(*tensors, dropout=0.5, seed=seed) for seed in (1, 1, 2)]
    assert np.array_equal(*fixed[:2]) and not np.array_equal(*fixed[1:])


def test_saved_model(tmp_path):
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None, 4, 16]), tf.TensorSpec([None, None, 2, 16])])
        def __call__(self, q, kv):
            return tfuse.attention(q, kv, kv, is_causal=True, key_lengths=tf.fill(tf.shape(kv)[:1], 7))

    q, k, _ = qkv()
    tf.saved_model.save(Model(), str(tmp_path))
    close(tf.saved_model.load(str(tmp_path))(q, k), Model()(q, k), 0)


def test_keras_symbolic(tmp_path):
    q, k = keras.Input([None, 4, 16]), keras.Input([None, 2, 16])
    mask = keras.Input([1, 1, None], dtype="bool")
    y = tfuse.attention(q, k, value=k, mask=mask, window=(3, None))
    assert y.shape == (None, None, 4, 16)
    model = keras.Model([q, k, mask], y)
    tensors = [*qkv()[:2], tf.constant(np.random.default_rng(0).random([2, 1, 1, 13]) < 0.7)]
    want = tfuse.attention(tensors[0], tensors[1], tensors[1], mask=tensors[2], window=(3, None))
    close(model(tensors), want)
    model.save(tmp_path / "model.keras")
    close(keras.models.load_model(tmp_path / "model.keras")(tensors), want)


@pytest.mark.parametrize("causal", [False, True])
def test_as_keras_does(device, causal):
    q, k, v = qkv(key_heads=4)
    mask, bias = np.random.default_rng(0).random([2, 1, 9, 13]) < 0.8, normal(1, 4, 9, 13)
    mask[..., 0] = True
    close(tfuse.attention(q, k, v, bias, mask, is_causal=causal),
          keras.ops.dot_product_attention(q, k, v, bias=bias, mask=mask, is_causal=causal), 5e-6)


# ---- what is refused ----

def ones(*shape, dtype=tf.float32):
    return tf.ones(shape, dtype)


Q, KV = (2, 3, 4, 8), (2, 5, 2, 8)
call = lambda q=Q, k=KV, v=KV, **options: lambda: tfuse.attention(ones(*q), ones(*k), ones(*v), **options)
REJECTS = [
    ("query must be .batch, time, heads, head_dim., or .steps, heads, head_dim. where ragged, got shape .2, 3.", call(q=(2, 3))),
    ("heads of query, 4, must be a multiple of those of key, 3; got shapes .2, 3, 4, 8. and .2, 5, 3, 8.",
     call(k=(2, 5, 3, 8), v=(2, 5, 3, 8))),
    ("key must have the head_dim of query .2, 3, 4, 8., got shape .2, 5, 2, 7.", call(k=(2, 5, 2, 7))),
    ("key must have the batch of query .2, 3, 4, 8., got shape .1, 5, 2, 8.", call(k=(1, 5, 2, 8), v=(1, 5, 2, 8))),
    ("value must have the shape of key up to head_dim, .2, 5, 2, 8., got .2, 6, 2, 8.", call(v=(2, 6, 2, 8))),
    (r"mask must broadcast to the shape of the scores .*, \[2, 4, 3, 5\], got \[2, 3\]", call(mask=ones(2, 3, dtype=tf.bool))),
    (r"bias must broadcast to the shape of the scores .*, \[2, 4, 3, 5\], got \[1, 2, 4, 3, 5\]", call(bias=ones(1, 2, 4, 3, 5))),
    ("mask must be bool, got int32", call(mask=ones(3, 5, dtype=tf.int32))),
    ("key must be float32 like query, got float16; cast one of them",
     lambda: tfuse.attention(ones(*Q), ones(*KV, dtype=tf.float16), ones(*KV))),
    ("query must be float32, float16, bfloat16 or float64, got int32", lambda: tfuse.attention(*[ones(*Q, dtype=tf.int32)] * 3)),
    ("key_lengths must have the shape of .batch. of key, .2., got .3.", call(key_lengths=[1, 2, 3])),
    ("key_lengths must be integers, got float32", call(key_lengths=[1.0, 2.0])),
    ("align must be one of first, last, got 'middle'", call(align="middle")),
    ("dropout must be at least 0 and less than 1, got 1.0", call(dropout=1.0)),
    ("window must be a number of keys, or two, none below 0; got -1", call(window=-1)),
    *(("soft_cap must be a finite number, at least 0, got %s" % value, call(soft_cap=value))
      for value in (-1.0, float("nan"), float("inf"), 1e-50)),
    ("soft_cap must be a finite number, at least 0, got -2",
     lambda: tfuse.paged_attention(ones(*Q), ones(*KV), ones(*KV), [[0]] * 2, [1, 1], soft_cap=-2)),
    *(("Attention: soft_cap must be finite and at least 0, got %s" % value, lambda value=value: _attention(
        *[ones(*Q)] * 3, *[None] * 5, soft_cap=float(value))) for value in ("-1", "nan", "inf")),
    ("PagedAttention: soft_cap must be finite and at least 0, got -1",
     lambda: _paged(ones(*Q), ones(*KV), ones(*KV), [[0]] * 2, [1, 1], soft_cap=-1.0)),
    ("seed must be a single number", call(dropout=0.5, seed=tf.constant([1, 2], tf.int64))),
    ("mask must not be given where query is ragged",
     lambda: tfuse.attention(*[ragged([2, 3], 2, 0)] * 3, mask=ones(5, 5, dtype=tf.bool))),
    ("must all be ragged in the second axis alone where one is, got a dense tensor for key",
     lambda: tfuse.attention(ragged([2, 3], 2, 0), ones(*KV), ones(*KV))),
    ("key_lengths must have the shape of query_lengths, .3., got .2.",
     lambda: tfuse.attention(ragged([2, 3], 2, 0), ragged([5], 2, 0), ragged([5], 2, 0))),
    ("table must have the shape of .batch of query, pages of a sequence., .2, .., got .3, 1.",
     lambda: tfuse.paged_attention(ones(*Q), ones(*KV), ones(*KV), [[0]] * 3, [1, 1])),
    ("key_pages must be .pages, steps of a page, heads, head_dim., got shape .5, 8.",
     lambda: tfuse.paged_attention(ones(*Q), ones(5, 8), ones(*KV), [[0]] * 2, [1, 1])),
]


@pytest.mark.parametrize("pattern, make", REJECTS, ids=[r[0][:40] for r in REJECTS])
def test_rejects(route, pattern, make):
    """Where XLA captures a call into a CUDA graph, its error is an internal one, with the same text."""
    captured = "jit_compile" in getattr(route, "keywords", {}) and not _library.without_gpu()
    errors = (ValueError, tf.errors.InvalidArgumentError, *[tf.errors.InternalError] * captured)
    with pytest.raises(errors, match=pattern):
        route(make)()


OUT_OF_RANGE = [
    (r"key_lengths\[1\] must be from 0 to 5, got 6", call(key_lengths=[5, 6])),
    (r"key_lengths\[0\] must be from 0 to 5, got -1", call(key_lengths=[-1, 5])),
    (r"query_lengths\[0\] must be from 0 to 3, got 4", call(query_lengths=[4, 3])),
    (r"table\[1, 1\] must be from 0 to 1, got 7",
     lambda: tfuse.paged_attention(ones(*Q), ones(*KV), ones(*KV), [[0, 99], [1, 7]], [5, 6])),
    (r"table\[1, 0\] must be from 0 to 1, got -1",
     lambda: tfuse.paged_attention(ones(*Q), ones(*KV), ones(*KV), [[0, -1], [-1, 0]], [5, 6])),
    (r"key_lengths\[0\] must be from 0 to 10, got 11",
     lambda: tfuse.paged_attention(ones(*Q), ones(*KV), ones(*KV), [[0, 1], [1, 0]], [11, 6])),
]


@pytest.mark.parametrize("pattern, make", OUT_OF_RANGE, ids=[r[0][:40] for r in OUT_OF_RANGE])
def test_out_of_range_on_the_cpu(route, pattern, make):
    with tf.device("CPU:0"), pytest.raises(tf.errors.InvalidArgumentError, match=pattern):
        np.asarray(route(make)())


@pytest.mark.parametrize("wrong, shape", [("query", [2, 16, 64]), ("key", [None, 16, 64]), ("value", [2, 16, 64])])
def test_three_axes(wrong, shape):
    """What to write for a tensor without an axis of heads, known or not while a function is traced."""
    tensors = {name: tf.TensorSpec(shape if name == wrong else [2, 16, 4, 16]) for name in ("query", "key", "value")}
    message = (r"attention: {0} must be \[batch, time, heads, head_dim\], got shape \[{1}\]: for one head hand over "
               r"{0}\[:, :, None, :\], for h heads .* tf.reshape\({0}").format(wrong, ", ".join(map(str, shape)))
    with pytest.raises(ValueError, match=message):
        tf.function(tfuse.attention).get_concrete_function(**tensors)
    with pytest.raises(ValueError, match="attention: query must be .*got shape \\[1, 1, 2\\]"):
        tfuse.attention(*[[[[1.0, 2.0]]]] * 3)


def test_splits_out_of_range_on_the_cpu():
    values = [normal(6, 2, 8)] * 3
    for splits, message in [([0, 7], r"query_lengths\[1\] must be from 0 to 6, got 7"),
                            ([0, 4, 3], r"query_lengths\[2\] must be from 4 to 6, got 3")]:
        with tf.device("CPU:0"), pytest.raises(tf.errors.InvalidArgumentError, match=message):
            _attention(*values, None, None, splits, splits, None)
