"""Attention whose scores are never stored: any length, forward and backward, in memory linear in it; ragged sequences, and
caches in pages."""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config

from tfuse._core import _philox, _rows
from tfuse._core._op import FusedOp, composite, given, real, vjp

ALIGNMENTS = ("first", "last")


# ---- plain TensorFlow ----


def _attend(query, key, value, bias, allowed, element, seed, scale, soft_cap, rate):
    """Output and log(sum of exp) where `allowed` broadcasts to [batch, heads, queries, keys]; `element` tells which element
    of the generator decides on the dropout of each."""
    dtype, heads, key_heads = query.dtype, _rows.size(query, 2), _rows.size(key, 2)
    query, key, value = (tf.cast(x, real(dtype)) for x in (query, key, value))
    if not isinstance(heads, int) or heads != key_heads:
        group = heads // key_heads
        key, value = tf.repeat(key, group, 2), tf.repeat(value, group, 2)
    scale, soft_cap, rate = (float(np.float32(x)) for x in (scale, soft_cap, rate))  # the op's attributes are floats
    scores = tf.einsum("bqhd,bkhd->bhqk", query, key) * scale
    if soft_cap:
        scores = soft_cap * tf.tanh(scores / soft_cap)
    if given(bias):
        scores = scores + tf.cast(bias, scores.dtype)
    scores = tf.where(allowed, scores, tf.constant(-np.inf, scores.dtype))
    greatest = tf.reduce_max(scores, -1, keepdims=True)
    greatest = tf.stop_gradient(tf.where(tf.math.is_finite(greatest), greatest, tf.zeros([], greatest.dtype)))
    p = tf.exp(scores - greatest)
    total = tf.reduce_sum(p, -1, keepdims=True)
    nothing = tf.equal(total, 0)
    total = tf.where(nothing, tf.ones([], total.dtype), total)
    stats = tf.where(nothing, tf.constant(-np.inf, total.dtype), tf.math.log(total) + greatest)
    p = p / total
    if given(seed):
        kept = _philox.kept_at(tf.broadcast_to(element, tf.shape(p)), seed, rate)
        p = tf.where(kept, p / (1 - rate), tf.zeros([], p.dtype))
    return tf.cast(tf.einsum("bhqk,bkhd->bqhd", p, value), dtype), tf.squeeze(stats, -1)


def _in_band(i, j, shift, left, right):
    """Whether key j is one that query i may attend to by its place."""
    allowed = tf.fill(tf.shape(i + shift - j), True)
    if left >= 0:
        allowed &= j >= i + shift - left
    if right >= 0:
        allowed &= j <= i + shift + right
    return allowed


def _long(x):
    return tf.cast(x, tf.int64)


def _plain(query, key, value, bias, mask, query_lengths, key_lengths, seed, scale=1.0, align="first", left=-1, right=-1,
           soft_cap=0.0, rate=0.0, deterministic=False, tf32=False):
    if query.shape.rank == 3:
        return _plain_ragged(query, key, value, query_lengths, key_lengths, seed, scale, align, left, right, soft_cap, rate)
    queries, keys = _rows.size(query, 1), _rows.size(key, 1)
    lengths = [tf.reshape(n if given(n) else _long(all), [-1, 1, 1, 1])
               for n, all in [(query_lengths, queries), (key_lengths, keys)]]
    i, j = tf.range(_long(queries))[:, None], tf.range(_long(keys))
    allowed = _in_band(i, j, lengths[1] - lengths[0] if align == "last" else tf.zeros([1, 1, 1, 1], tf.int64), left, right)
    allowed &= (i < lengths[0]) & (j < lengths[1])
    if given(mask):
        allowed &= mask
    shape = [_rows.size(query, 0), _rows.size(query, 2), queries, keys]
    element = tf.reshape(tf.range(tf.cast(_rows.product(shape), tf.int64)), shape) if given(seed) else None
    return _attend(query, key, value, bias, allowed, element, seed, scale, soft_cap, rate)


def _plain_ragged(query, key, value, query_splits, key_splits, seed, scale, align, left, right, soft_cap, rate):
    """All sequences as one, in which a step attends to those of its own sequence alone."""
    splits, steps, places = (query_splits, key_splits), (_rows.size(query, 0), _rows.size(key, 0)), []
    for of, n in zip(splits, steps):
        steps_of = tf.range(_long(n))
        sequence = tf.searchsorted(of, steps_of, "right") - 1
        inside = (sequence >= 0) & (sequence < tf.size(of) - 1)
        sequence = tf.where(inside, sequence, 0)
        places.append((inside, sequence, steps_of - tf.gather(of, sequence)))
    (q_inside, q_sequence, i), (k_inside, k_sequence, j) = places
    lengths = [of[1:] - of[:-1] for of in splits]
    shift = tf.gather(lengths[1] - lengths[0], q_sequence) if align == "last" else tf.zeros_like(i)
    allowed = _in_band(i[:, None], j, shift[:, None], left, right)
    allowed &= q_inside[:, None] & k_inside & tf.equal(q_sequence[:, None], k_sequence)
    element = None
    if given(seed):
        heads = _rows.size(query, 1)
        rows = _long(q_sequence) * _long(heads) + tf.range(_long(heads))[:, None]
        element = ((rows * _long(steps[0]) + i)[..., None] * _long(steps[1]) + j)[None]
    output, stats = _attend(query[None], key[None], value[None], tf.zeros([0], query.dtype), allowed, element, seed, scale,
                            soft_cap, rate)
    return output[0], stats[0]


def _plain_grad(doutput, query, key, value, bias, mask, query_lengths, key_lengths, seed, output, stats, dstats, dbias_for,
                **attributes):
    f = lambda *inputs: _plain(*inputs, mask, query_lengths, key_lengths, seed, **attributes)
    *gradients, dbias = vjp(f)([doutput, dstats if given(dstats) else None], query, key, value, bias)
    return [*gradients, dbias if given(dbias_for) else tf.zeros([0], query.dtype)]


def _widened(pages, dtype):
    """Pages of numbers of dtype; those of uint8 have codes of float8_e4m3fn."""
    if pages.dtype != tf.uint8:
        return pages
    codes = np.arange(256, dtype=np.uint8).view(tf.dtypes.experimental.float8_e4m3fn.as_numpy_dtype).astype(np.float32)
    return tf.gather(tf.cast(codes, dtype), tf.cast(pages, tf.int32))


def _plain_paged(query, key_pages, value_pages, table, key_lengths, scale=1.0, align="last", left=-1, right=-1,
                 soft_cap=0.0):
    batch, width = (_rows.size(table, a) for a in (0, 1))
    steps = _rows.product([width, _rows.size(key_pages, 1)])
    key, value = (tf.reshape(_widened(tf.gather(pages, tf.clip_by_value(table, 0, _long(_rows.size(pages, 0) - 1))), query.dtype),
                             [batch, steps, *(_rows.size(pages, a) for a in (2, 3))]) for pages in (key_pages, value_pages))
    nothing = lambda dtype: tf.zeros([0], dtype)
    return _plain(query, key, value, nothing(query.dtype), nothing(tf.bool), nothing(tf.int64), key_lengths,
                  nothing(tf.int64), scale, "last", left, right, soft_cap)[0]


# ---- the ops ----


def _gradient(node, doutput, dstats):
    bias = node.inputs[3]
    wanted = given(bias) and node.wanted(3)
    *gradients, dbias = _grad(doutput, *node.inputs, *node.outputs, dstats, bias if wanted else None, **node.attrs(
        "scale", "align", "left", "right", "soft_cap", "rate", "deterministic", "tf32"))
    return [*gradients, dbias if wanted else None, None, None, None, None]


# Axes by letters: batch, time (queries), heads, dimension of a head; steps (keys), key heads, dimension of a value.
_AXES = {"query": "bthd", "key": "bskd", "value": "bskv", "bias": "bhts", "mask": "bhts", "query_lengths": "b",
         "key_lengths": "b", "doutput": "bthv", "output": "bthv", "stats": "bht", "dstats": "bht", "dbias_for": "bhts"}
_PAGED_AXES = {"query": "bthd", "key_pages": "pnkd", "value_pages": "pnkv", "table": "bw", "key_lengths": "b"}

_grad = FusedOp("AttentionGrad", _plain_grad, axes=_AXES, multiples="hk", stretched="bhts", like={"dbias": "dbias_for"})
_attention = FusedOp("Attention", _plain, _gradient, axes=_AXES, multiples="hk", stretched="bhts", stretching=["bias", "mask"])
_paged = FusedOp("PagedAttention", _plain_paged, axes=_PAGED_AXES, multiples="hk")


@composite
def attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False, dropout=0.0, window=None,
              query_lengths=None, key_lengths=None, seed=None, align="first", deterministic=None, return_lse=False, soft_cap=None):
    """Returns softmax(scale * query . key + bias) . value, over the keys that each query attends to.

    As keras.ops.dot_product_attention, without ever storing the scores. A query that attends to no key, or that lies beyond
    its length, gives 0. On a GPU float32 is rounded to TF32 before it is multiplied where
    tf.config.experimental.enable_tensor_float_32_execution() allows that, as it does by default.

    Args:
      query: float tensor, [batch, queries, heads, head_dim]; or a tf.RaggedTensor [batch, (queries), heads, head_dim], and
        then so are key and value, and there is no bias, no mask and no lengths.
      key: [batch, keys, key heads, head_dim]. The heads of query are a multiple of those of key: each head of key serves
        as many heads of query, one after the other (grouped and multi-query attention).
      value: like key, possibly with another head_dim, which the result then has.
      bias: is added to the scores; broadcasts to [batch, heads, queries, keys], and has a gradient.
      mask: booleans, True where a query attends to a key; broadcasts likewise.
      scale: factor of the scores; None: 1 / sqrt(head_dim).
      is_causal: whether query i attends to keys up to i only.
      dropout: the probability with which a weight is set to 0; the others are divided by 1 - dropout.
      window: w: query i attends to the w keys before the i-th and the w after it only; or (before, after), None for no
        limit. Where is_causal, there is none after.
      query_lengths, key_lengths: integers, [batch]: how many steps of a sequence there are; what lies beyond is not seen,
        but must not be NaN or infinite where cuDNN serves. A key cache that is filled in part is a matter of key_lengths.
        Out of range they are an error on the CPU; on a GPU they are cut to it.
      seed: which weights dropout sets to 0: an integer, an int64 tensor of shape [], a keras.random.SeedGenerator, or
        None, which draws one at every call.
      align: where causal attention and the window see query i: at key i ("first"), or so that the last query of a sequence
        is at its last key ("last"), as when decoding from a cache.
      deterministic: whether gradients must repeat bit for bit; None: as tf.config.experimental.enable_op_determinism()
        says.
      return_lse: whether to return log(sum of exp) of each query's scores too.
      soft_cap: c: scores become c * tanh(scale * query . key / c), before bias and mask, so that none is beyond c, as in
        Gemma 2; None or 0: they stay as they are.

    Returns:
      [batch, queries, heads, head_dim of value]; or, where return_lse is true, that and [batch, heads, queries] in float32
      (float64 of float64), -infinity where a query attends to nothing. Of ragged inputs, RaggedTensors with the rows of
      query; the second is [batch, (queries), heads] then.

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, lengths out of range, or a soft_cap
        that is negative or not finite.

    Example:
      query, key = tf.random.normal([2, 16, 8, 64]), tf.random.normal([2, 16, 2, 64])
      y = tfuse.attention(query, key, key, is_causal=True)  # each head of key serves four of query

      # One step of decoding, from a cache with room for 16 steps, of which 10 and 12 are there.
      y = tfuse.attention(query[:, :1], key, key, key_lengths=tf.constant([10, 12]))
    """
    if align not in ALIGNMENTS:
        raise ValueError("attention: align must be one of %s, got %r" % (", ".join(ALIGNMENTS), align))
    if not 0 <= dropout < 1:
        raise ValueError("attention: dropout must be at least 0 and less than 1, got %r" % (dropout,))
    left, right = _band(window, is_causal)
    if deterministic is None:
        deterministic = config.is_op_determinism_enabled()
    splits = None
    if any(isinstance(x, tf.RaggedTensor) for x in (query, key, value)):
        others = {"bias": bias, "mask": mask, "query_lengths": query_lengths, "key_lengths": key_lengths}
        splits, (query, key, value), (query_lengths, key_lengths) = _flat(query, key, value, others)
    else:
        _check_heads(query, key, value)
    query, scale = _scaled(query, key, scale)
    output, stats = _attention(
        query, key, value, bias, mask, _integers("query_lengths", query_lengths), _integers("key_lengths", key_lengths),
        _philox.seed_tensor(seed) if dropout else None, scale=scale, align=align, left=left, right=right,
        soft_cap=_cap(soft_cap), rate=float(dropout), deterministic=bool(deterministic),
        tf32=query.dtype == tf.float32 and config.tensor_float_32_execution_enabled())
    if splits is not None:
        output, stats = (tf.RaggedTensor.from_row_splits(x, splits, validate=False) for x in (output, tf.transpose(stats)))
    return (output, stats) if return_lse else output


@composite
def paged_attention(query, key_pages, value_pages, table, key_lengths, scale=None, window=None, soft_cap=None):
    """Returns tfuse.attention of the last steps of sequences whose keys and values lie in pages.

    Step t of sequence b is step t % page_size of page table[b, t // page_size]. Each query attends to the steps up to its
    own: the last query of a sequence is its last step.

    Args:
      query: float tensor, [batch, queries, heads, head_dim].
      key_pages: [pages, page_size, key heads, head_dim], of query's dtype, or uint8: codes of float8_e4m3fn.
      value_pages: like key_pages, possibly with another head_dim.
      table: integers, [batch, pages of a sequence]. What lies after a sequence's length is not read.
      key_lengths: integers, [batch]: the steps of each sequence, the queries' own included.
      scale, window, soft_cap: as in tfuse.attention; of a window only the part before counts.

    Returns:
      [batch, queries, heads, head_dim of value_pages].

    Raises:
      ValueError or InvalidArgumentError: shapes or dtypes that do not belong together, or a soft_cap that is negative or
        not finite; on the CPU also a length or a page that does not exist. A GPU cuts such a length, and takes such a page for one of zeros.

    Example:
      pages = tf.random.normal([10, 16, 2, 64])  # ten pages of 16 steps, for keys and values alike
      query, table = tf.random.normal([2, 1, 8, 64]), tf.constant([[0, 3], [7, 1]])
      y = tfuse.paged_attention(query, pages, pages, table, key_lengths=tf.constant([20, 32]))
    """
    left, right = _band(window, True)
    query, scale = _scaled(query, key_pages, scale)
    return _paged(query, key_pages, value_pages, _integers("table", table), _integers("key_lengths", key_lengths),
                  scale=scale, align="last", left=left, right=right, soft_cap=_cap(soft_cap))


def _band(window, is_causal):
    """(left, right) as the op takes them: negative is no limit."""
    before, after = window if isinstance(window, (tuple, list)) else (window, window)
    for steps in (before, after):
        if steps is not None and (not isinstance(steps, (int, np.integer)) or steps < 0):
            raise ValueError("attention: window must be a number of keys, or two, none below 0; got %r" % (window,))
    return -1 if before is None else int(before), 0 if is_causal else -1 if after is None else int(after)


def _cap(soft_cap):
    """As the op takes it: 0 for none. The op's attribute is a float, which holds neither all large numbers nor all small."""
    cap = float(soft_cap or 0)
    if cap and not np.finfo(np.float32).tiny <= cap <= np.finfo(np.float32).max:
        raise ValueError("attention: soft_cap must be a finite number, at least 0, got %r" % (soft_cap,))
    return cap


def _scaled(query, key, scale):
    """Query, and the scale that is left to the op."""
    query = _rows.tensor(query)
    if scale is not None:
        return query, float(scale)
    for x in (query, key):
        shape = getattr(x, "shape", None)
        if shape and len(shape) and shape[-1]:
            return query, float(shape[-1])**-0.5
    if query.shape.rank == 0 or query.shape.rank and query.shape[-1] == 0:
        return query, 1.0
    scale = tf.cast(tf.cast(tf.shape(query)[-1], tf.float64)**-0.5, tf.float32)  # an attribute would have to be known now
    return tf.cast(tf.cast(query, real(query.dtype)) * tf.cast(scale, real(query.dtype)), query.dtype), 1.0


def _integers(name, value):
    """Lengths and the like, as int64."""
    if value is None:
        return None
    value = _rows.tensor(value)
    if not value.dtype.is_integer:
        raise ValueError("attention: %s must be integers, got %s" % (name, value.dtype.name))
    return value if value.dtype == tf.int64 else tf.cast(value, tf.int64)


def _check_heads(query, key, value):
    """The op takes tensors of three axes for the values of ragged ones, and would ask for their splits."""
    for name, x in {"query": query, "key": key, "value": value}.items():
        shape = tf.TensorShape(getattr(x, "shape", None) or tf.convert_to_tensor(x).shape)
        if shape.rank == 3:
            raise ValueError("attention: {0} must be [batch, time, heads, head_dim], got shape {1}: for one head hand over "
                             "{0}[:, :, None, :], for h heads side by side tf.reshape({0}, [batch, time, h, head_dim]); "
                             "sequences of several lengths go into a tf.RaggedTensor".format(name, list(shape)))


def _flat(query, key, value, others):
    """Splits of query; ragged tensors as the op takes them: values one sequence after the other; both splits."""
    for name, x in others.items():
        if x is not None:
            raise ValueError("attention: %s must not be given where query is ragged" % name)
    for name, x in {"query": query, "key": key, "value": value}.items():
        if not isinstance(x, tf.RaggedTensor) or x.ragged_rank != 1:
            raise ValueError("attention: query, key and value must all be ragged in the second axis alone where one is, got "
                             "%s for %s" % ("%d ragged axes" % x.ragged_rank if isinstance(x, tf.RaggedTensor) else
                                            "a dense tensor", name))
    values = value.values
    if value.row_splits is not key.row_splits:
        same = tf.debugging.assert_equal(value.row_splits, key.row_splits, "attention: value must have the rows of key")
        with tf.control_dependencies([same] if same is not None else []):
            values = tf.identity(values)
    return query.row_splits, [query.values, key.values, values], (query.row_splits, key.row_splits)
