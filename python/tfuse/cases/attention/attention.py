import functools
import os

import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _philox
from tfuse.cases import Case, Input, Timed, by_name, fitting, of_terms, squares, sums, twice

# A case's shape is (batch, queries, keys, heads, key heads, head_dim).
_SHAPES = [(2, 5, 7, 4, 2, 8), (1, 1, 1, 1, 1, 1), (0, 3, 4, 2, 1, 8), (2, 0, 5, 2, 2, 8), (2, 3, 0, 2, 1, 8),
           (1, 70, 67, 2, 2, 7), (2, 66, 30, 4, 1, 40), (1, 20, 130, 2, 2, 64), (1, 33, 64, 2, 1, 72),
           (1, 1, 129, 4, 2, 128), (1, 9, 66, 3, 1, 256), (1, 5, 70, 1, 1, 320)]
_fit = fitting(6, lambda rows, columns: (min(rows, 2), min(rows, 40), min(columns, 70), 4, 2, 32))


def _summed(shape):
    """Over keys, over a head's dimension, or, for the gradients of key and value, over all queries that a head serves."""
    _, queries, keys, heads, key_heads, head_dim = shape
    return max(keys, head_dim, queries * heads // key_heads)


def value_dim(shape):
    """Not head_dim everywhere."""
    return shape[5] + 3 if shape[5] in (7, 8) else shape[5]


# ---- what it means, in float64 ----


def allowed(batch, queries, keys, mask=None, is_causal=False, window=None, align="first", query_lengths=None,
            key_lengths=None):
    """[batch, 1 or heads, queries, keys]: which keys a query attends to."""
    of = lambda lengths, all: np.full([batch, 1, 1, 1], all) if lengths is None else lengths.reshape(-1, 1, 1, 1)
    return _seen(np.arange(queries)[:, None], np.arange(keys), of(query_lengths, queries), of(key_lengths, keys), mask, is_causal,
                 window, align)


def _seen(i, j, q, k, mask, is_causal, window, align):
    """Whether query i attends to key j, of q queries and k keys; of arrays or tensors."""
    at = i + (k - q if align == "last" else 0)
    before, after = window if isinstance(window, tuple) else (window, window)
    right = 0 if is_causal else after
    kept = (i < q) & (j < k)
    kept = kept if before is None else kept & (j >= at - before)
    kept = kept if right is None else kept & (j <= at + right)
    return kept if mask is None else kept & mask


def weights(query, key, bias=None, scale=None, dropout=0.0, seed=None, soft_cap=None, **places):
    """Softmax of the scores; what dropout multiplies it by; log(sum of exp); the derivative of a score by query . key; and
    the size of what the exponential is taken of. key has the heads of query."""
    kept = allowed(query.shape[0], query.shape[1], key.shape[1], **places)
    scale = float(np.float32(query.shape[-1]**-0.5 if scale is None else scale))
    s, slope, before = np.einsum("bqhd,bkhd->bhqk", query, key) * scale, scale, 0
    if soft_cap:  # what is off before the cap is so after it, times the cap's derivative
        cap = float(np.float32(soft_cap))
        derivative = 1 / np.cosh(s / cap)**2
        s, slope, before = cap * np.tanh(s / cap), scale * derivative, np.abs(s) * derivative
    s = np.where(kept, s if bias is None else s + bias, -np.inf)
    greatest = np.max(s, -1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isfinite(greatest), greatest, 0))
    total = np.sum(e, -1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (greatest + np.log(total))[..., 0] if s.shape[-1] else np.full(s.shape[:-1], -np.inf)
    p = e / np.where(total == 0, 1, total)
    rate = float(np.float32(dropout))  # the op's attribute is a float
    factor = _philox.kept_numpy(p.shape, seed, rate) / (1 - rate) if dropout else 1
    size = np.maximum(np.where(np.isfinite(s), np.abs(s) + before, 0), np.where(np.isfinite(lse), np.abs(lse), 0)[..., None])
    return p, factor, lse, slope, size


def _group(query, key):
    return query.shape[2] // max(key.shape[2], 1)


def reference(query, key, value, **options):
    """A weight, exp(score - lse), is off by the rounding of these two, times their size."""
    group = _group(query, key)
    key, value = np.repeat(key, group, 2), np.repeat(value, group, 2)
    p, factor, _, _, size = weights(query, key, **options)
    kept = of_terms(p * factor, (p * factor)**2 * (1 + size * size))
    return sums(lambda p, value: np.einsum("bhqk,bkhd->bqhd", p, value), kept, value)


def gradient(dy, query, key, value, dlse=0, bias=None, **options):
    """Of query, key, value, and bias where there is one.

    Gradients of scores are differences, which cancel where a query attends to one key above all: their terms are
    doutput * value, times the weight, which is as in reference().
    """
    group, shared = _group(query, key), key.shape
    key, value = np.repeat(key, group, 2), np.repeat(value, group, 2)
    p, factor, _, slope, size = weights(query, key, bias, **options)
    scores = lambda dy, value, factor: np.einsum("bqhd,bkhd->bhqk", dy, value) * factor
    over_heads = lambda x: x.reshape(*shared[:3], group, x.shape[-1]).sum(3)  # those that share a key
    by_key = lambda x, y: over_heads(np.einsum("bhqk,bqhd->bkhd", x, y))
    by_query = lambda x, y: np.einsum("bhqk,bkhd->bqhd", x, y)
    dp, p2 = sums(scores, dy, value, factor), p * p * (1 + size * size)
    ds = of_terms(p * (np.asarray(dp) - np.sum(p * dp, -1, keepdims=True) + np.asarray(dlse)[..., None]),
                  p2 * (squares(dp) + np.sum(p * p * squares(dp), -1, keepdims=True)))
    dscores = sums(np.multiply, slope, ds)
    gradients = [sums(by_query, dscores, key), sums(by_key, dscores, query),
                 sums(by_key, of_terms(p * factor, p2 * factor**2), dy)]
    return gradients if bias is None else [*gradients, sums(lambda x: unstretched(x, bias.shape), ds)]


def unstretched(x, shape):
    """x summed over what a tensor of `shape` is stretched along."""
    shape = (1,) * (x.ndim - len(shape)) + tuple(shape), shape
    axes = tuple(a for a, size in enumerate(shape[0]) if size == 1)
    return x.sum(axes, keepdims=True).reshape(shape[1])


# ---- the same in stock TensorFlow, as Keras writes it ----


def naive(query, key, value, bias=None, scale=None, dropout=0.0, seed=None, drop=None, soft_cap=None, **places):
    group = _group(query, key)
    if group > 1:
        key, value = tf.repeat(key, group, 2), tf.repeat(value, group, 2)
    s = tf.einsum("bqhd,bkhd->bhqk", query, key) * tf.cast(query.shape[-1]**-0.5 if scale is None else scale, query.dtype)
    s = soft_cap * tf.tanh(s / soft_cap) if soft_cap else s
    s = s if bias is None else s + bias
    s = tf.cast(s, tf.float64 if s.dtype == tf.float64 else tf.float32)
    kept = _allowed(query, key, **places)
    if kept is not None:
        s = tf.where(kept, s, s.dtype.min / 2)
    p = tf.nn.softmax(s)
    if kept is not None:
        p = tf.where(kept, p, tf.zeros([], p.dtype))
    if dropout:
        p = drop(p, dropout) if drop else _philox.dropped(p, _philox.seed_tensor(seed), dropout)
    return tf.einsum("bhqk,bkhd->bqhd", tf.cast(p, query.dtype), value)


def _allowed(query, key, mask=None, is_causal=False, window=None, align="first", query_lengths=None, key_lengths=None):
    if not is_causal and window is None and query_lengths is None and key_lengths is None:
        return mask
    queries, keys = tf.shape(query, tf.int64)[1], tf.shape(key, tf.int64)[1]
    lengths = (tf.reshape(all if n is None else tf.cast(n, tf.int64), [-1, 1, 1, 1])
               for n, all in [(query_lengths, queries), (key_lengths, keys)])
    return _seen(tf.range(queries)[:, None], tf.range(keys), *lengths, mask, is_causal, window, align)


# ---- cases ----

_QUERY = Input(lambda s: (s[0], s[1], s[3], s[5]))
_KEY = Input(lambda s: (s[0], s[2], s[4], s[5]))
_VALUE = Input(lambda s: (s[0], s[2], s[4], value_dim(s)))
_OUTPUT = Input(lambda s: (s[0], s[1], s[3], value_dim(s)))
_BIAS = Input(lambda s: (s[3], s[1], s[2]))
_MASK = Input(lambda s: (s[0], 1, s[1], s[2]), lambda rng, own, _: rng.random(own) < 0.7, "bool", False)
_LENGTHS = {name: Input(lambda s: s[:1], lambda rng, own, s, axis=axis: rng.integers(0, s[axis] + 1, own), "int64", False)
            for name, axis in [("query_lengths", 1), ("key_lengths", 2)]}


def case(name, names=(), **more):
    """A case of query, key and value with the inputs that are named."""
    inputs = {"query": _QUERY, "key": _KEY, "value": _VALUE, **{n: {"bias": _BIAS, "mask": _MASK, **_LENGTHS}[n] for n in names}}
    return Case(name=name, run=by_name(tfuse.attention, inputs), plain=by_name(naive, inputs),
                reference=by_name(reference, inputs), gradient=by_name(gradient, ["dy", *inputs]), inputs=inputs,
                outputs={"output": _OUTPUT}, summed=_summed, shapes=_SHAPES, fit=_fit, **more)


# ---- keys and values in pages ----

_PAGE = 4


def _width(shape):
    """The pages of a sequence, the last of which its keys may fill in part; one more than all of them belongs to none."""
    return -(-shape[2] // _PAGE)


def _pages(dim):
    return Input(lambda s: (s[0] * _width(s) + 1, _PAGE, s[4], dim(s)))


def _table(rng, own, shape):
    return rng.permutation(own[0] * own[1] + 1)[:own[0] * own[1]].reshape(own)


def _of_pages(f, gather, reshape):
    """f of what the pages of the table hold, of arrays or tensors."""
    def call(query, key_pages, value_pages, table, key_lengths, **options):
        key, value = (reshape(gather(pages, table, axis=0), [table.shape[0], table.shape[1] * _PAGE, *pages.shape[2:]])
                      for pages in (key_pages, value_pages))
        return f(query, key, value, is_causal=True, align="last", key_lengths=key_lengths, **options)
    return call


def _paged_gradient(dy, query, key_pages, value_pages, table, key_lengths, **options):
    of_pages = _of_pages(functools.partial(gradient, dy), np.take, np.reshape)
    dquery, *others = of_pages(query, key_pages, value_pages, table, key_lengths, **options)

    def in_pages(pages, of):
        made = np.zeros_like(pages)
        made[table] = np.reshape(of, [*table.shape, *pages.shape[1:]])  # no page is in the table twice
        return made

    return [dquery, *(sums(functools.partial(in_pages, pages), of) for of, pages in zip(others, (key_pages, value_pages)))]


_PAGED = Case(name="paged_attention", run=tfuse.paged_attention, plain=_of_pages(naive, tf.gather, tf.reshape),
              reference=_of_pages(reference, np.take, np.reshape), gradient=_paged_gradient, shapes=_SHAPES, fit=_fit,
              summed=_summed, options=[{}, {"window": 20, "scale": 0.5}, {"soft_cap": 1.5}],
              inputs={"query": _QUERY, "key_pages": _pages(lambda s: s[5]), "value_pages": _pages(value_dim),
                      "table": Input(lambda s: (s[0], _width(s)), _table, "int64", False),
                      "key_lengths": _LENGTHS["key_lengths"]},
              outputs={"output": _OUTPUT}, special=False)

_DROPOUT = {"dropout": 0.25, "seed": 7}


# ---- the benchmark's ----

# Where this is said, the library leaves cuDNN alone, and its own kernel is what is timed.
_OWN = os.environ.get("TFUSE_CUDNN") == "0"
_CAUSAL = (("is_causal", True),)


def _flops(shape, options):
    """Two products forward, five backward; half of that where causal."""
    batch, queries, keys, heads, _, head_dim = shape
    once = 2 * batch * heads * head_dim * queries * keys / (2 if options.get("is_causal") else 1)
    return 2 * once, 5 * once


def _elements(shape):
    """What is read and written at least: query, key, value and output, or those and their gradients."""
    batch, queries, keys, heads, key_heads, head_dim = shape
    return twice(2 * batch * head_dim * (queries * heads + keys * key_heads))


def _stock_can(shape):
    """Stock TensorFlow stops at 2^31 scores, and needs memory for several times as many."""
    return shape[0] * shape[1] * shape[2] * shape[3] < 2**31


def _timed(name, sizes, bars=(), causal=(False, True), also=(), **more):
    """`also` are options beside is_causal."""
    options = [{**({"is_causal": True} if c else {}), **dict(also)} for c in causal]
    return Timed(case(name + ", own kernel" * _OWN, options=options), sizes, elements=_elements, stock_can=_stock_can,
                 bars={("bfloat16", *where): limits for where, limits in bars}, **more)


_D128, _D64, _GROUPED = (4, 4096, 4096, 16, 16, 128), (4, 4096, 4096, 32, 32, 64), (4, 4096, 4096, 16, 4, 128)
_ODD = (4, 4095, 4095, 16, 16, 128)
_CURVE = [(max(1, 16384 // n), n, n, 16, 16, 128) for n in (128, 512, 1024, 2048, 8192, 16384, 32768, 131072)]
_SINGLE = [(1, n, n, 16, 16, 128) for n in (512, 2048, 4096)] + [(8, 4096, 4096, 16, 16, 128)]  # the last: 2^31 scores
_GEMMA = (4, 4096, 4096, 8, 4, 256)  # heads of Gemma 2 with 2 billion parameters
_DECODE = [(1, 1, 32768, 32, 8, 128), (8, 1, 32768, 32, 8, 128)]
_FAST = ([((_D128, ()), {"tflops": 250}), ((_D128, _CAUSAL), {"tflops": 88})] if _OWN else
         [((_D128, ()), {"tflops": 660, "backward_tflops": 530}), ((_D128, _CAUSAL), {"tflops": 580, "backward_tflops": 460})])

CASES = [
    case("attention", options=[
        {}, {"is_causal": True}, {"is_causal": True, "align": "last", "window": 20, "scale": 0.5}, {"window": (3, None)},
        {**_DROPOUT, "is_causal": True}, {"soft_cap": 3.0}]),
    case("attention, bias and mask", ["bias", "mask"], options=[
        {}, {"is_causal": True, **_DROPOUT}, {"soft_cap": 2.0, "scale": 0.7, **_DROPOUT}]),
    case("attention, lengths", ["mask", "query_lengths", "key_lengths"], options=[
        {"window": (9, 4), **_DROPOUT}, {"is_causal": True, "align": "last"}, {"window": 9, "soft_cap": 1.0}]),
    _PAGED,
]
TIMES = [
    _timed("attention, speed", [_D128, _D64, _GROUPED, _ODD], _FAST, sweep=_CURVE + _SINGLE, flops=_flops,
           cpu_sizes=[(1, 1024, 1024, 8, 8, 64)]),
    _timed("attention, soft cap", [_D128, _GEMMA], also={"soft_cap": 50.0}, flops=_flops,
           cpu_sizes=[(1, 1024, 1024, 8, 8, 64)]),
    _timed("attention, decoding", _DECODE, [((shape, ()), {"forward": 80}) for shape in _DECODE] * (not _OWN), causal=[False],
           cpu_sizes=[(1, 1, 8192, 32, 8, 128)]),
]
