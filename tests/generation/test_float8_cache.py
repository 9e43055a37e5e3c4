"""A cache of keys and values in 8 bits: PutRows, PagedAttention and DecodeAttention over it, and generation with it."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfuse
from generating import model, prompts
from test_decode_attention import ENDED, FLOATS, LENGTHS, composed, given, is_served, last_kernel, numbers, op, rotated, truth
from tfuse import cases
from tfuse._core import _library
from tfuse.generation import Engine, batch

put_rows, paged_attention = _library.raw("put_rows"), _library.raw("paged_attention")
CODES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def narrow(x):
    """Codes of the nearest numbers; beyond the largest, of that."""
    largest = float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    return np.clip(numbers(x), -largest, largest).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def wide(codes, dtype="float64"):
    return tf.cast(tf.constant(CODES[np.asarray(codes)]), dtype)


def in_8_bits(x):
    return {**x, **{name: tf.constant(narrow(x[name])) for name in ("keys", "values")}}


def check(got, x, dtype, **options):
    """Attention over the cache as it is now, against float64; the bound is that of test_decode_attention.py."""
    want, naive = truth(x, **options)[0], composed(dtype, x, **options)[0]
    error = lambda y: np.sqrt(np.mean(np.square(numbers(y) - numbers(want))))
    assert np.isfinite(numbers(got)).all()
    if tf.as_dtype(dtype).size == 2:
        assert error(got) <= max(2 * error(naive), 1e-13)
    else:
        assert cases.error(got, numbers(want)) <= cases.allowed(naive, numbers(want), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads, key_heads, dim, page, options", [
    (2, 2, 64, 16, {}), (8, 2, 64, 64, {"left": 70}), (8, 1, 128, 64, {"soft_cap": 5.0}), (6, 2, 96, 40, {}),
    (8, 1, 256, 32, {}), (4, 2, 80, 7, {}), (3, 1, 10, 5, {"left": 3})], ids=str)
def test_decode_attention(device, heads, key_heads, dim, page, options, dtype):
    x = in_8_bits(given(LENGTHS, heads, key_heads, dim, page, dtype, ended=ENDED))
    new_keys, new_values, y = op(*x.values(), scale=dim**-0.5, **options)
    places = x["places"].numpy()
    there = places[places >= 0]
    exact_key = rotated(tf.cast(x["key"], "float64"), x["positions"])
    for was, now, row in ((x["keys"], new_keys, exact_key), (x["values"], new_values, x["value"])):
        old, new = (np.copy(t.numpy()).reshape(-1, key_heads, dim) for t in (was, now))
        exact = numbers(row)[places >= 0]
        step = 2.0**(np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-6))) - 3)  # from one number to the next
        before = 2 * float(ml_dtypes.finfo(tf.as_dtype(dtype).as_numpy_dtype).eps) * np.abs(exact).max()  # rounded to dtype
        assert (np.abs(CODES[new[there]] - exact) <= 0.5 * step + before).all()
        old[there] = new[there]
        np.testing.assert_array_equal(new, old)
    cached = {"keys": wide(new_keys, dtype), "values": wide(new_values, dtype),
              "places": tf.fill(places.shape, tf.constant(-1, "int64"))}
    check(y, {**x, **cached}, dtype, scale=dim**-0.5, **options)
    if is_served(device) and tf.as_dtype(dtype).size == 2 and dim in (64, 96, 128, 256):
        assert last_kernel() == "attention step"


def test_every_number(device):
    """All codes come back as they were; what is between two becomes the nearest, and what is beyond all the largest."""
    values = np.concatenate([CODES[np.isfinite(CODES)], [449.0, -1e6, np.inf, 2.0**-10, 2.0**-10 * 1.001, 1.0625, 1.1875, -0.0]])
    rows = tf.constant(values[None, :, None], "float32")
    codes, _ = put_rows(rows, rows, *[tf.zeros([1, 1, len(values), 1], "uint8")] * 2, tf.constant([0], "int64"))
    want = [*CODES[np.isfinite(CODES)], 448.0, -448.0, 448.0, 0.0, 2.0**-9, 1.0, 1.25, 0.0]
    np.testing.assert_array_equal(CODES[codes.numpy().ravel()], want)
    nan, _ = put_rows(rows * np.nan, rows, *[tf.zeros([1, 1, len(values), 1], "uint8")] * 2, tf.constant([0], "int64"))
    assert np.isnan(CODES[nan.numpy()]).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_prompts(device, dtype):
    """Several queries of a sequence: each by the composition, with the steps that it may see."""
    x = in_8_bits(given([30, 3, 64], 4, 2, 16, 8, dtype, rope=False))
    query = tf.stack([x["query"], tf.roll(x["query"], 1, -1), tf.roll(x["query"], 2, -1)], 1)
    last, cached = x["places"].numpy(), {}  # where there are no numbers yet
    for name in ("keys", "values"):
        codes = x[name].numpy().reshape(-1, 2, 16)
        codes[last] = 11
        x[name] = tf.constant(codes.reshape(x[name].shape))
        cached[name] = wide(x[name], dtype)
    y = paged_attention(query, x["keys"], x["values"], x["table"], x["lengths"], scale=0.25, align="last", left=-1, right=0)
    none = tf.fill([3], tf.constant(-1, "int64"))
    for i in range(3):
        one = {**x, **cached, "query": query[:, i], "lengths": x["lengths"] - (2 - i), "places": none}
        check(y[:, i], one, dtype, scale=0.25)


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_the_function(device, jit_compile):
    """Eagerly, in a graph and in XLA: as over pages of query's dtype."""
    rng = np.random.default_rng(0)
    codes = tf.constant(rng.integers(0, 120, [9, 4, 2, 8]), "uint8")
    query, table = tf.constant(rng.normal(size=[2, 3, 4, 8]), "float32"), tf.constant([[0, 3, 8], [7, 1, 1]])
    run = lambda pages: tfuse.paged_attention(query, pages, pages, table, tf.constant([10, 7]), scale=0.01)
    made = run if jit_compile is None else tf.function(run, jit_compile=jit_compile)
    np.testing.assert_allclose(made(codes), run(wide(codes, "float32")), rtol=1e-5)


def test_more_pages_than_are_widened_at_one_time(device):
    """Of 40 sequences of 4 MB in float32 each."""
    rng = np.random.default_rng(0)
    codes = tf.constant(rng.integers(0, 120, [64, 64, 2, 128]), "uint8")
    table = tf.constant(rng.integers(0, 64, [40, 32]), "int64")
    query, lengths = tf.constant(rng.normal(size=[40, 1, 2, 128]), "float32"), tf.constant(rng.integers(1, 2048, [40]), "int64")
    run = lambda keys: paged_attention(query, keys, keys, table, lengths, scale=0.001, align="last", left=-1, right=0)
    np.testing.assert_allclose(run(codes), run(wide(codes, "float32")), rtol=2e-5, atol=1e-4)


def test_dtypes_that_are_refused():
    x = given([5], 4, 2, 8, 4, "float32")
    x.update({name: tf.cast(x[name], "float64") for name in ("keys", "values")})
    with pytest.raises(tf.errors.InvalidArgumentError, match="the cache must be of float32, or of uint8 for .*got float64"):
        op(*x.values())


# ---- generation ----


def test_generate():
    """Requests get the same tokens alone and together, and by the model's own logits they are nearly the likeliest ones."""
    lm, given = model("Llama"), [[5, 17, 3], [8] * 70, [5, 17], list(range(1, 40))]
    run = lambda some, **options: tfuse.generate(lm, some, 8, sampler="greedy", stop_token_ids=None, **options)
    found = run(given, cache_dtype="float8_e4m3fn", batch_invariant=True)
    assert found == [run([prompt], cache_dtype="float8_e4m3fn", batch_invariant=True)[0] for prompt in given]
    less = []
    for prompt, new in zip(given, found):
        ids = np.array([prompt + new])
        logits = np.asarray(lm({"token_ids": ids, "padding_mask": np.ones_like(ids)}))[0, len(prompt) - 1 : -1]
        less.extend((logits.max(-1) - logits[np.arange(len(new)), new]) / logits.std())
    assert np.mean(less) < 0.1
    with pytest.raises(ValueError, match="cache_dtype must be None, .* or \"float8_e4m3fn\", got 'int8'"):
        run(given, cache_dtype="int8")


def test_there_are_more_pages(monkeypatch):
    monkeypatch.setattr("tfuse.generation.pages._free", lambda device: 1 << 23)
    lm = model("Llama")
    pages = lambda dtype: Engine(lm, rows=512, cache_dtype=dtype)._pages.available()
    assert pages("float8_e4m3fn") // 4 == pages(None)  # of float32


def test_model_generate(as_on_a_gpu):
    lm, x = model("Llama"), prompts([5, 3, 70], 90)
    with tfuse.enabled(cache_dtype="float8_e4m3fn"):
        found = np.asarray(lm.generate(x, stop_token_ids=None)["token_ids"])
        assert batch.cache_dtype == "float8_e4m3fn"
    assert batch.cache_dtype is None
    with tfuse.enabled():
        other = np.asarray(lm.generate(x, stop_token_ids=None)["token_ids"])
    one = [tfuse.generate(lm, [row[:n].tolist()], 90 - n, sampler="greedy", stop_token_ids=None, cache_dtype="float8_e4m3fn")[0]
           for row, n in zip(np.asarray(x["token_ids"]), (5, 3, 70))]
    for row, n, mine in zip(found, (5, 3, 70), one):
        np.testing.assert_array_equal(row[n:], mine)
    assert (found != other).any()
    with pytest.raises(ValueError, match="cache_dtype must be"):
        tfuse.enable(cache_dtype="float16")
