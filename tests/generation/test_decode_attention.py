"""DecodeAttention: one new step of each sequence, its key and value put into a paged cache, and attention over that."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tfuse
from tfuse import cases
from tfuse._core import _chain, _library
from tfuse.generation import steps

raw, take_rows = _library.raw("decode_attention"), _library.raw("take_rows")
FLOATS = ["float32", "float64", "float16", "bfloat16"]
LENGTHS = [300, 0, 1, 63, 64, 65, 1000]
ENDED = 4  # the sequence without a new step
NAMES = ["query", "key", "value", "keys", "values", "places", "positions", "table", "lengths"]


def op(*inputs, frequencies=(), **attributes):
    return raw(*inputs, tf.constant(frequencies, tf.float32), **attributes)


def given(lengths, heads, key_heads, dim, page, dtype, rope=True, seed=3, ended=None, value_dim=None):
    """Inputs by their names. What no sequence has of the cache, and the places of new steps, are NaN, and what no sequence has
    of the table are numbers that are no pages."""
    rng, lengths = np.random.default_rng(seed), np.array(lengths)
    batch, width = len(lengths), -(-max(lengths.max(), 1) // page)
    table = np.where(rng.random([batch, width]) < 0.5, -3, 1 << 40)
    pages = rng.permutation(batch * width)
    caches = [np.full([batch * width, page, key_heads, d], np.nan) for d in (dim, value_dim or dim)]
    places = np.full([batch], -1)
    for b, length in enumerate(lengths):
        mine = -(-length // page)
        table[b, :mine], pages = pages[:mine], pages[mine:]
        for cache in caches:
            rows = rng.normal(size=[mine * page, *cache.shape[2:]])
            rows[length - (b != ended):] = np.nan
            cache[table[b, :mine]] = rows.reshape(-1, *cache.shape[1:])
        if length and b != ended:
            places[b] = table[b, (length - 1) // page] * page + (length - 1) % page
    floats = rng.normal(size=[batch, heads, dim]), rng.normal(size=[batch, key_heads, dim]), rng.normal(
        size=[batch, key_heads, value_dim or dim]), *caches
    positions = np.maximum(lengths - 1, 0) if rope else np.zeros([0])
    return dict(zip(NAMES, [*(tf.cast(tf.constant(x), dtype) for x in floats),
                            *(tf.constant(x, "int64") for x in (places, positions, table, lengths))]))


def rotated(x, positions, base=10000.0, rotary=0, rope_scale=1.0, frequencies=None, angles="float64"):
    """Angles are of that type: one of 999 is off by 1e-13 in float64, and so are its sine and cosine, in any order of steps."""
    rotary, real = rotary or x.shape[-1], np.dtype(angles).type
    frequencies = real(base)**(-2 * np.arange(rotary // 2).astype(real) / rotary) if frequencies is None else np.array(
        frequencies, "float32")
    angles = positions.numpy()[:, None, None] * real(rope_scale) * frequencies
    s, c = (tf.cast(tf.constant(f(angles).astype("float64")), x.dtype) for f in (np.sin, np.cos))
    p, q, rest = tf.split(x, [rotary // 2, rotary // 2, x.shape[-1] - rotary], -1)
    return tf.concat([p * c - q * s, q * c + p * s, rest], -1)


def composed(dtype, x, scale=1.0, left=-1, soft_cap=0.0, **rope):
    """Output and rotated keys by TensorFlow's own ops."""
    x = types.SimpleNamespace(**{name: tf.cast(t, dtype) if t.dtype.is_floating else t for name, t in x.items()})
    query, key = (rotated(t, x.positions, **rope) if len(x.positions) else t for t in (x.query, x.key))
    group, found = query.shape[1] // key.shape[1], []
    for b, length in enumerate(x.lengths.numpy()):
        rows = [tf.reshape(tf.gather(cache, x.table[b, :-(-length // cache.shape[1])]), [-1, *cache.shape[2:]])[:length]
                for cache in (x.keys, x.values)]
        if x.places[b] >= 0:
            rows = [tf.concat([old[:-1], new[b:b + 1]], 0) for old, new in zip(rows, (key, x.value))]
        first = 0 if left < 0 else max(length - 1 - left, 0)
        keys, values = (tf.repeat(t[first:], group, 1) for t in rows)
        scores = tf.einsum("hd,jhd->hj", query[b], keys) * tf.cast(scale, dtype)
        if soft_cap:
            scores = tf.tanh(scores / tf.cast(soft_cap, dtype)) * tf.cast(soft_cap, dtype)
        found.append(tf.einsum("hj,jhd->hd", tf.nn.softmax(scores), values))
    return tf.stack(found), key


def truth(x, **options):
    """What composed() gives in float64, of angles that are more exact than that."""
    return composed("float64", x, angles="longdouble", **options)


def numbers(x):
    return tf.cast(x, "float64").numpy()


def bits(x):
    return tf.bitcast(x, {2: tf.uint16, 4: tf.uint32, 8: tf.uint64}[x.dtype.size]).numpy()


def typical(x, dtype, **options):
    """The error of TensorFlow's ops in this dtype, on other samples of the same sizes."""
    found = []
    for n in (1, 2, 3, 5):
        other = {**x, "query": tf.roll(x["query"], n, -1)}
        (want, _), (naive, _) = truth(other, **options), composed(dtype, other, **options)
        found.append(cases.error(naive, numbers(want)))
    return max(found)


def check(x, dtype, **options):
    """Against float64: the error is at most twice that of TensorFlow's ops in the same dtype. Of 16 bits the root mean square
    counts: the largest of thousands of roundings is luck. The cache has the new rows."""
    new_keys, new_values, y = op(*x.values(), **options)
    (want, key), (naive, naive_key) = truth(x, **options), composed(dtype, x, **options)
    error = lambda got, want: np.sqrt(np.mean(np.square(numbers(got) - numbers(want))))
    assert np.isfinite(numbers(y)).all()
    if tf.as_dtype(dtype).size == 2:
        assert error(y, want) <= max(2 * error(naive, want), 1e-13)
    else:
        most, found = cases.allowed(naive, numbers(want), dtype), cases.error(y, numbers(want))
        assert found <= most or found <= 2 * typical(x, dtype, **options)
    places = x["places"].numpy()
    for old, new, row, exact, other in ((x["keys"], new_keys, x["key"], key, naive_key),
                                        (x["values"], new_values, x["value"], x["value"], x["value"])):
        was, found = (bits(t).reshape(-1, *row.shape[1:]).copy() for t in (old, new))
        rows = tf.reshape(new, [-1, *row.shape[1:]]).numpy()[places[places >= 0]]
        assert error(rows, tf.boolean_mask(exact, places >= 0)) <= max(
            2 * error(tf.boolean_mask(other, places >= 0), tf.boolean_mask(exact, places >= 0)), 1e-13)
        was[places[places >= 0]] = found[places[places >= 0]]
        np.testing.assert_array_equal(found, was)


def is_served(device):
    """Whether the GPU has the kernel that does it in one launch."""
    if "GPU" not in device:
        return False
    gpu = tf.config.list_physical_devices("GPU")[0]
    return tf.config.experimental.get_device_details(gpu)["compute_capability"] >= (9, 0)


def last_kernel():
    return [row["kernel"] for row in tfuse.explain() if row["op"] == "DecodeAttention" and row["when"] == "ran"][-1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads, key_heads, dim, page", [(2, 2, 64, 16), (8, 2, 64, 64), (8, 1, 128, 64), (32, 2, 64, 7),
                                                         (6, 2, 96, 40), (8, 1, 256, 32), (16, 1, 128, 100)])
def test_values(device, heads, key_heads, dim, page, dtype):
    check(given(LENGTHS, heads, key_heads, dim, page, dtype, ended=ENDED), dtype, scale=dim**-0.5)
    if is_served(device) and tf.as_dtype(dtype).size == 2:
        assert last_kernel() == "attention step"


@pytest.mark.parametrize("heads, key_heads, dim, value_dim", [(4, 2, 80, 80), (17, 1, 64, 64), (4, 2, 64, 128)])
def test_what_the_kernel_does_not_serve(device, heads, key_heads, dim, value_dim):
    check(given(LENGTHS, heads, key_heads, dim, 64, "bfloat16", ended=ENDED, value_dim=value_dim), "bfloat16", scale=dim**-0.5)
    assert last_kernel() != "attention step"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rope, options", [
    (False, {}), (True, {"base": 500000.0, "rotary": 48, "rope_scale": 0.25}), (True, {"left": 0}), (True, {"left": 70}),
    (False, {"left": 1 << 40}), (True, {"soft_cap": 2.0}), (False, {"soft_cap": 5.0, "left": 31}), (False, {"scale": -1.5})],
                         ids=str)
def test_options(device, rope, options, dtype):
    check(given(LENGTHS, 8, 2, 64, 64, dtype, rope=rope, ended=ENDED), dtype, **{"scale": 0.125, **options})


@pytest.mark.parametrize("dim, key_heads", [(64, 8), (128, 2), (256, 1)])
@pytest.mark.parametrize("length", [300, 2000])
def test_a_sequence_by_itself(device, length, dim, key_heads):
    """Has the same bits as among others, whatever blocks share its keys."""
    among = given([*range(1, 300, 18), length, *range(7, 250, 15)], 4 * key_heads, key_heads, dim, 64, "bfloat16")
    at = among["lengths"].numpy().tolist().index(length)
    alone = {name: t if name in ("keys", "values") else t[at:at + 1] for name, t in among.items()}
    for left in (-1, 130):
        (keys, values, y), (one_keys, one_values, one) = (op(*x.values(), scale=dim**-0.5, left=left) for x in (among, alone))
        np.testing.assert_array_equal(bits(y)[at], bits(one)[0])
        place = alone["places"].numpy()[0]
        for all_rows, one_row in ((keys, one_keys), (values, one_values)):
            flat = lambda t: bits(t).reshape(-1, key_heads, dim)[place]
            np.testing.assert_array_equal(flat(all_rows), flat(one_row))


@pytest.mark.parametrize("late", [False, True], ids=["", "late lengths"])
@pytest.mark.parametrize("lengths", [[40], [300, 7, 129, 64, 1, 30], [90] * 40], ids=len)
def test_in_a_chain(device, lengths, late):
    """The cache is written in place. The op before makes query, key and value, and must have ended before they are read: each
    time they are others; from the third time on it is a graph. So must one that writes the lengths."""
    batch, heads, key_heads, dim, width = len(lengths), 8, 2, 64, 256
    x = given(lengths, heads, key_heads, dim, 64, "bfloat16")
    rng = np.random.default_rng(5)
    weights = [tf.cast(tf.constant(rng.normal(size=[width, n * dim]) / 16), "bfloat16") for n in (heads, key_heads, key_heads)]
    hidden = [tf.cast(tf.constant(rng.normal(size=[batch, width])), "bfloat16") for _ in range(5)]
    now, y, long = tf.zeros_like(hidden[0]), tf.zeros([batch, heads, dim], "bfloat16"), x["lengths"] + 0
    caches = [tf.identity(x[name] + 0) for name in ("keys", "values")]
    chain = _chain.Chain()
    made = chain.call("projections", chain.input(now), None, *map(chain.input, weights), *[None] * 4)
    query, key, value = (t.seen_as(batch, n, dim) for t, n in zip(made, (heads, key_heads, key_heads)))
    cached = list(map(chain.input, caches))
    zero = tf.zeros([1], "int64")
    put = lambda chain, value, to: chain.call("take_rows", chain.input(value[None]), chain.input(zero), into=[to])
    length = chain.input(long)
    if late:
        put(chain, x["lengths"], length)
    chain.call("decode_attention", query, key, value, *cached, *(chain.input(x[name]) for name in NAMES[5:8]), length, None,
               into=[*cached, chain.input(y)], scale=0.125)
    for h in hidden:
        copy = _chain.Chain()
        put(copy, tf.reshape(h, [-1]), copy.input(now))
        if late:
            put(copy, tf.zeros_like(long), copy.input(long))
        copy.run()
        chain.run()
        made = _library.raw("projections")(h, tf.zeros([0]), *weights, *[tf.zeros([0], "bfloat16")] * 4)
        query, key, value = (tf.reshape(t, [batch, -1, dim]) for t in made)
        wanted = op(*{**x, "query": query, "key": key, "value": value}.values(), scale=0.125)
        for found, want in zip((*caches, y), wanted):
            rows = tf.range(found.shape[0], dtype=tf.int64)  # a copy, since what was read of a tensor once is kept
            flat = lambda t: tf.reshape(t, [t.shape[0], -1])
            np.testing.assert_array_equal(bits(take_rows(flat(found), rows)), bits(flat(want)))


def test_no_sequences(device):
    x = given([5], 4, 2, 64, 8, "bfloat16")
    none = {name: t if name in ("keys", "values") else t[:0] for name, t in x.items()}
    keys, values, y = op(*none.values())
    assert y.shape == (0, 4, 64)
    np.testing.assert_array_equal(bits(keys), bits(x["keys"]))
    np.testing.assert_array_equal(bits(values), bits(x["values"]))


def test_unknown_sizes():
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec([None] * n, t) for n, t in zip(
        (3, 3, 3, 4, 4, 1, 1, 2, 1), (*["float32"] * 5, *["int64"] * 4))])
    def run(*x):
        found = op(*x)
        shapes.extend(t.shape.as_list() for t in found)
        return found

    x = given([5, 9], 4, 2, 8, 4, "float32")
    for found, want in zip(run(*x.values()), op(*x.values())):
        np.testing.assert_array_equal(found, want)
    assert shapes == [[None] * 4, [None] * 4, [None] * 3]


@pytest.mark.parametrize("change, message", [
    ({"query": [2, 4, 1, 8]}, r"query must be \[batch, heads, head_dim\], got shape \[2, 4, 1, 8\]"),
    ({"query": [2, 3, 8]}, "the heads of query, 3, must be a multiple of those of keys, 2"),
    ({"query": [2, 4, 6]}, r"query must have the head_dim of keys \[7, 4, 2, 8\], got shape \[2, 4, 6\]"),
    ({"key": [2, 1, 8]}, r"key must have the shape of \[batch of query\] and keys' heads, \[2, 2, 8\], got \[2, 1, 8\]"),
    ({"value": [3, 2, 8]}, r"value must have the shape of .*\[2, 2, 8\], got \[3, 2, 8\]"),
    ({"keys": [28, 2, 8]}, r"keys must be \[pages, page_size, heads, head_dim\], got shape \[28, 2, 8\]"),
    ({"values": [6, 4, 2, 8]}, r"values must have the shape of keys up to head_dim, \[7, 4, 2, 8\], got \[6, 4, 2, 8\]"),
    ({"places": [2, 1]}, r"places must have the shape of \[batch of query\], \[2\], got \[2, 1\]"),
    ({"positions": [3]}, r"positions must have the shape of \[batch of query\], \[2\], got \[3\]"),
    ({"table": [3, 5]}, r"table must have the shape of .*, \[2, \?\], got \[3, 5\]"),
    ({"lengths": [3]}, r"lengths must have the shape of \[batch of query\], \[2\], got \[3\]"),
    ({"rotary": 10}, "rotary must be even and at most head_dim, 8, got 10"),
    ({"soft_cap": -1.0}, "soft_cap must be finite and at least 0, got -1"),
], ids=lambda x: "" if isinstance(x, str) else next(iter(x)))
def test_refusals(change, message):
    shapes = dict(zip(NAMES, ([2, 4, 8], [2, 2, 8], [2, 2, 8], [7, 4, 2, 8], [7, 4, 2, 8], [2], [2], [2, 5], [2])))
    options = {name: value for name, value in change.items() if name not in shapes}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        op(*(tf.zeros(change.get(name, shape), "float32" if name in NAMES[:5] else "int64") for name, shape in shapes.items()),
           **options)


def test_a_step_has_one_op_for_it():
    """Of attention with one word for each sequence; for more words there are several."""
    rng = np.random.default_rng(0)
    product = lambda n, m: types.SimpleNamespace(kernel=tf.constant(rng.normal(size=[n, m]), "float32"), bias=None)
    a = types.SimpleNamespace(heads=4, shared_heads=2, head_dim=8, scale=1.0, rope=None, window=-1, soft_cap=0.0,
                              query_norm=None, key_norm=None, frequencies=None)
    for n, wanted in ((1, ["decode_attention"]), (2, ["put_rows", "paged_attention"])):
        chain = _chain.Chain()
        ints = lambda *shape: chain.input(tf.zeros(shape, tf.int64))
        at = steps._Writer(chain, 3, n, ints(3, n), ints(3, n), ints(3, n), ints(3, 5), ints(3))
        qkv = [chain.input(product(3 * n, heads * 8).kernel) for heads in (4, 2, 2)]
        at.attention(a, qkv, *(chain.input(tf.zeros([7, 4, 2, 8])) for _ in range(2)))
        assert [stem for stem, *_ in chain._calls] == wanted


@pytest.mark.parametrize("dtype", FLOATS)
def test_frequencies_that_are_given(device, dtype):
    x = given(LENGTHS, 4, 2, 64, 64, dtype, ended=ENDED)
    check(x, dtype, scale=0.125, frequencies=np.linspace(1, 0.01, 32).tolist())
