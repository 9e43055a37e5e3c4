"""The ops between the products of a generation's step: rows of tables and caches, words that are drawn, sequences that grow."""

import numpy as np
import pytest
import tensorflow as tf

from tfuse import cases
from tfuse._core import _library
from tfuse.generation import steps

take_rows, put_rows = _library.raw("take_rows"), _library.raw("put_rows")
sample_logits, advance = _library.raw("sample_logits"), _library.raw("advance")
FLOATS = ["float32", "float16", "bfloat16", "float64"]


def as_float(x):
    return tf.cast(x, "float64").numpy()


# ---- rows ----


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [1, 3, 8, 1000])
@pytest.mark.parametrize("ids", [[2], [4, 0, 2, 2], [], [[1, 3], [0, -1]], [5, -1, 1 << 40]], ids=str)
def test_take_rows(dtype, width, ids):
    table, ids = tf.cast(tf.random.normal([5, width]), dtype), np.array(ids, np.int64)
    there = (ids >= 0) & (ids < 5)
    expected = np.where(there[..., None], as_float(table)[np.where(there, ids, 0)], 0)
    np.testing.assert_array_equal(as_float(take_rows(table, ids)), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("key_dim, value_dim", [(8, 8), (3, 3), (64, 16), (1, 8)])
@pytest.mark.parametrize("pages", [[10], [2, 5]], ids=str)
def test_put_rows(dtype, key_dim, value_dim, pages):
    rng = np.random.default_rng(0)
    places = np.array([[3], [-1], [0], [9], [10]], np.int64)
    new, old = [], []
    for dim in (key_dim, value_dim):
        new.append(tf.cast(tf.constant(rng.normal(size=(5, 1, 2, dim))), dtype))
        old.append(tf.cast(tf.constant(rng.normal(size=(*pages, 2, dim))), dtype))
    found = put_rows(*new, *old, places)
    for x, before, after in zip(new, old, found):
        expected = as_float(before).reshape(10, -1)
        for r, place in ((0, 3), (2, 0), (3, 9)):
            expected[place] = as_float(x)[r, 0].ravel()
        np.testing.assert_array_equal(as_float(after).reshape(10, -1), expected)
        assert not np.array_equal(as_float(before), as_float(after))  # what was given stays as it is


@pytest.mark.parametrize("call, message", [
    (lambda: take_rows(tf.zeros([2]), [0]), r"table must be \[rows, width\], got shape \[2\]"),
    (lambda: put_rows(*[tf.zeros([4, 2, 8])] * 2, *[tf.zeros([9, 2, 4])] * 2, tf.zeros([4], "int64")),
     r"key must have the heads and head_dim of keys \[9, 2, 4\], got shape \[4, 2, 8\]"),
    (lambda: put_rows(*[tf.zeros([4, 2, 8])] * 2, *[tf.zeros([9, 2, 8])] * 2, tf.zeros([3], "int64")),
     r"places must have the shape of the rows of key, \[4\], got \[3\]"),
    (lambda: put_rows(*[tf.zeros([4, 8])] * 4, tf.zeros([3], "int64")), "key must end in axes of heads and head_dim"),
], ids=["table", "head_dim", "places", "axes"])
def test_rows_that_are_refused(call, message):
    with pytest.raises(Exception, match=message):
        call()


# ---- words ----


def draw(logits, temperature=1.0, top_k=0, top_p=1.0, seed=1, step=0):
    rows = len(logits)
    return sample_logits(logits, tf.fill([rows], float(temperature)), tf.fill([rows], tf.cast(top_k, "int64")),
                         tf.fill([rows], float(top_p)), tf.range(rows, dtype="int64") + seed,
                         tf.fill([rows], tf.cast(step, "int64"))).numpy()


def likely(x, temperature, top_k, top_p):
    """The probabilities that words are drawn with."""
    p = np.exp((x - x.max()) / temperature)
    p /= p.sum()
    order = np.argsort(-x, kind="stable")
    before = np.cumsum(p[order]) - p[order]
    keep = order[(before <= top_p) if top_p < 1 else slice(None)][:top_k or None]
    kept = np.zeros_like(p)
    kept[keep] = p[keep]
    return kept / kept.sum()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("words", [1, 2, 33, 5000])
def test_the_most_likely_word(dtype, words):
    logits = tf.cast(tf.random.normal([7, words]), dtype)
    np.testing.assert_array_equal(draw(logits, temperature=0), np.argmax(as_float(logits), -1))


SAMPLERS = [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 4, 1.0), (1.0, 0, 0.6), (2.0, 5, 0.9), (1.0, 1, 1.0), (1.0, 0, 0.0)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("temperature, top_k, top_p", SAMPLERS)
def test_words_are_drawn_as_likely_as_they_are(dtype, temperature, top_k, top_p):
    """Chi-square over 20,000 draws; the values of 16 bits have many that are equal."""
    x = np.round(np.random.default_rng(3).normal(size=12) * 4) / 4
    n, p = 20000, likely(x, temperature, top_k, top_p)
    ids = draw(tf.cast(tf.constant(np.tile(x, (n, 1))), dtype), temperature, top_k, top_p)
    counts = np.bincount(ids, minlength=12)
    assert not counts[p == 0].any()
    chi = ((counts - n * p)[p > 0]**2 / (n * p[p > 0])).sum()
    degrees = max((p > 0).sum() - 1, 1)
    assert chi < degrees + 4 * np.sqrt(2 * degrees) + 4


def test_a_word_depends_on_its_row_alone():
    logits = tf.random.normal([64, 300])
    together = draw(logits, seed=5)
    alone = [draw(logits[b:b + 1], seed=5 + b)[0] for b in range(64)]
    np.testing.assert_array_equal(together, alone)
    assert (draw(logits, seed=5, step=1) != together).any() and (draw(logits, seed=6) != together).any()


def test_what_is_no_number_is_not_drawn():
    logits = np.zeros([500, 4], np.float32)
    logits[:, 1], logits[:, 3] = np.nan, -np.inf
    assert set(draw(logits)) == {0, 2} and set(draw(logits, temperature=0)) == {0}
    assert set(draw(np.full([3, 4], np.nan, np.float32))) == {0}


# ---- sequences ----


def test_sequences_grow_and_end():
    tokens = np.array([[5, 6, 0, 0], [7, 0, 0, 0], [1, 2, 3, 0], [9, 9, 0, 0]], np.int64)
    lengths, done, limits = np.array([2, 1, 3, 2]), np.array([0, 0, 0, 1]), np.array([4, 4, 4, 4])
    found = advance(np.array([8, 2, 4, 3]), tokens, lengths, done, limits, np.array([2, 11]),
                    np.array([[0, 3], [1, 4], [2, 5], [6, 7]]), page_size=2)
    names = ["new_tokens", "new_lengths", "new_done", "current", "places", "positions"]
    assert {name: getattr(found, name).numpy().tolist() for name in names} == {
        "new_tokens": [[5, 6, 8, 0], [7, 2, 0, 0], [1, 2, 3, 4], [9, 9, 0, 0]], "new_lengths": [3, 2, 4, 2],
        "new_done": [0, 1, 1, 1], "current": [8, 2, 4, 9], "places": [6, -1, -1, -1], "positions": [[2], [1], [3], [1]]}


def test_what_is_read_is_what_was_written():
    """On a GPU a tensor's numpy(), np.asarray() and bool() give again what they gave before; on a CPU these cannot fail."""
    first, second = tf.zeros([2, 2], tf.int64), tf.zeros([3], tf.int64)
    tensors = steps.Tensors(first=first, second=second)
    for value in range(1, 4):
        steps.write(tensors, first=np.full([2, 2], value), second=np.arange(3) * value)
        for found, expected in ((steps.read(first, second), [[[value] * 2] * 2, [0, value, 2 * value]]),
                                (steps.read(second), [[0, value, 2 * value]])):
            assert [x.tolist() for x in found] == expected
        assert steps.read(first)[0].shape == (2, 2)


@pytest.mark.parametrize("op, shape", [("projections", (3, 40, 56)), ("quantized_projections", (3, 256, 56)),
                                       ("take_rows", (5, 7, 24)), ("sample_logits", (6, 50))])
def test_what_is_timed_computes_what_its_rival_does(device, op, shape):
    """What is drawn at random aside."""
    for timed in cases.all_timed()[op]:
        *inputs, _ = timed.case.tensors(shape, "float32")
        options = timed.options[0]
        assert options.get("draw", "greedy") == "greedy"
        np.testing.assert_allclose(timed.case.run(*inputs, **options), timed.rival(*inputs, **options), rtol=1e-4, atol=1e-3)
