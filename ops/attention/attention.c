/* Attention: for every query i of a head, the mean of the values, weighted by
 *
 *   p_ij = softmax over j of  cap(scale * query_i . key_j) + bias_ij,
 *
 * over the keys j that the query attends to: mask_ij is true; j < key_lengths; and, with s = 0, or the difference of
 * the two lengths where they are aligned at the last step, i + s - left <= j <= i + s + right (negative: no limit;
 * causal attention is right = 0). A query without keys, or beyond its length, gives 0. stats is log(sum of exp) of
 * each query's scores, -infinity where there are none. With a seed, dropout sets p_ij to 0 or divides it by 1 - rate:
 * element ((b * heads + h) * queries + i) * keys + j of philox.h decides, with the longest sequences' sizes.
 * cap(x) is soft_cap * tanh(x / soft_cap), and x where soft_cap is 0.
 *
 * query is [batch, queries, heads, head_dim]; key and value may have fewer heads, each serving as many query heads, and
 * value another head_dim. bias and mask broadcast to [batch, heads, queries, keys]. Ragged sequences come one after
 * the other, [steps, heads, head_dim], and their lengths as [batch + 1] splits; stats is [heads, steps] then. What is
 * not given is an empty vector. tf32 allows float32 products on a GPU to read their factors with 10 bits after the
 * point. Lengths are int64: TensorFlow keeps int32 in the CPU's memory, and would have the CPU
 * wait for the GPU to copy them. */
#include "ops/attention/attention.h"

#include <float.h>

#include "kv_cache.h"
#include "tfuse.h"

static int known(int64_t size) { return size != TFU_UNKNOWN; }
static int differ(int64_t a, int64_t b) { return known(a) && known(b) && a != b; }

static tfu_code check_lengths(const char *name, const tfu_shape *lengths, const char *of, const tfu_shape *x,
                              tfu_error *err) {
  if (lengths->rank == TFU_UNKNOWN || x->rank == TFU_UNKNOWN) return TFU_OK;
  if (x->rank == 3) {
    TFU_REQUIRE(err, lengths->rank == 1 && tfu_given(lengths),
                "%s must be the [batch + 1] splits of %s, which is ragged, got shape %s", name, of,
                tfu_show(lengths).text);
    return TFU_OK;
  }
  if (!tfu_given(lengths)) return TFU_OK;
  tfu_shape batch = *x;
  batch.rank = 1;
  return tfu_match(name, lengths, of, &batch, err);
}

/* Sizes of query, key and value, in[0 .. 3]. */
static tfu_code check_heads(const tfu_shape *in, int paged, tfu_error *err) {
  static const char *const names[2][3] = {{"query", "key", "value"}, {"query", "key_pages", "value_pages"}};
  for (int i = 0; i < 3; i++) {
    const int dense = in[i].rank == 4, ragged = in[i].rank == 3 && !paged;
    TFU_REQUIRE(err, in[i].rank == TFU_UNKNOWN || dense || ragged, "%s must be %s, got shape %s", names[paged][i],
                paged && i ? "[pages, steps of a page, heads, head_dim]"
                           : "[batch, time, heads, head_dim], or [steps, heads, head_dim] where ragged",
                tfu_show(&in[i]).text);
    TFU_REQUIRE(err, in[i].rank == TFU_UNKNOWN || in[0].rank == TFU_UNKNOWN || in[i].rank == in[0].rank,
                "%s must be %s like query %s, got shape %s", names[paged][i], in[0].rank == 4 ? "dense" : "ragged",
                tfu_show(&in[0]).text, tfu_show(&in[i]).text);
  }
  if (in[0].rank == TFU_UNKNOWN || in[1].rank == TFU_UNKNOWN || in[2].rank == TFU_UNKNOWN) return TFU_OK;
  const int h = in[0].rank - 2;
  tfu_shape wanted = in[1];
  wanted.dim[h + 1] = in[2].dim[h + 1];
  TFU_TRY(tfu_match(names[paged][2], &in[2], paged ? "key_pages up to head_dim" : "key up to head_dim", &wanted, err));
  TFU_REQUIRE(err, !differ(in[0].dim[h + 1], in[1].dim[h + 1]), "%s must have the head_dim of query %s, got shape %s",
              names[paged][1], tfu_show(&in[0]).text, tfu_show(&in[1]).text);
  TFU_REQUIRE(err, paged || h == 1 || !differ(in[0].dim[0], in[1].dim[0]),
              "key must have the batch of query %s, got shape %s", tfu_show(&in[0]).text, tfu_show(&in[1]).text);
  const int64_t heads = in[0].dim[h], shared = in[1].dim[h];
  TFU_REQUIRE(err, !known(heads) || !known(shared) || (shared > 0 && heads % shared == 0) || heads == 0,
              "the heads of query, %lld, must be a multiple of those of key, %lld; got shapes %s and %s",
              (long long)heads, (long long)shared, tfu_show(&in[0]).text, tfu_show(&in[1]).text);
  return TFU_OK;
}

static tfu_code check_scores(const tfu_shape *in, const char *name, const tfu_shape *t, tfu_error *err) {
  if (!tfu_given(t) || t->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, in[0].rank != 3, "%s must not be given where query is ragged, got shape %s", name, tfu_show(t).text);
  if (in[0].rank == TFU_UNKNOWN || in[1].rank == TFU_UNKNOWN) return TFU_OK;
  const tfu_shape scores = {.rank = 4, .dim = {in[0].dim[0], in[0].dim[2], in[0].dim[1], in[1].dim[1]}};
  return tfu_broadcasts(name, t, "the scores [batch, heads, queries, keys]", &scores, err);
}

static tfu_code check_cap(const tfu_value *attr, tfu_error *err) {
  const float cap = attr ? attr[TFU_ATT_SOFT_CAP].f : 0;
  TFU_REQUIRE(err, cap >= 0 && cap <= FLT_MAX, "soft_cap must be finite and at least 0, got %g", cap);
  return TFU_OK;
}

static tfu_code check(const tfu_shape *in, const tfu_value *attr, tfu_error *err) {
  TFU_TRY(check_heads(in, 0, err));
  TFU_TRY(check_scores(in, "bias", &in[TFU_ATT_BIAS], err));
  TFU_TRY(check_scores(in, "mask", &in[TFU_ATT_MASK], err));
  TFU_TRY(check_lengths("query_lengths", &in[TFU_ATT_QUERY_LENGTHS], "[batch] of query", &in[0], err));
  TFU_TRY(check_lengths("key_lengths", &in[TFU_ATT_KEY_LENGTHS], "[batch] of key", &in[1], err));
  if (in[0].rank == 3)
    TFU_TRY(tfu_match("key_lengths", &in[TFU_ATT_KEY_LENGTHS], "query_lengths", &in[TFU_ATT_QUERY_LENGTHS], err));
  TFU_REQUIRE(err, in[TFU_ATT_SEED].rank <= 0 || !tfu_given(&in[TFU_ATT_SEED]),
              "seed must be a single number (shape []), got shape %s", tfu_show(&in[TFU_ATT_SEED]).text);
  TFU_REQUIRE(err, !attr || (attr[TFU_ATT_RATE].f >= 0 && attr[TFU_ATT_RATE].f < 1),
              "rate must be at least 0 and less than 1, got %g", attr ? attr[TFU_ATT_RATE].f : 0);
  return check_cap(attr, err);
}

/* One number per query: [batch, heads, queries], or [heads, steps]. */
static tfu_shape per_query(const tfu_shape *query) {
  tfu_shape s = *query;
  if (s.rank == TFU_UNKNOWN) return s;
  s.rank--;
  s.dim[s.rank - 2] = query->dim[query->rank - 2];
  s.dim[s.rank - 1] = query->dim[query->rank - 3];
  return s;
}

/* Like query, with value's head_dim. */
static tfu_shape output_of(const tfu_shape *query, const tfu_shape *value) {
  tfu_shape s = *query;
  if (s.rank != TFU_UNKNOWN) s.dim[s.rank - 1] = value->rank == s.rank ? value->dim[s.rank - 1] : TFU_UNKNOWN;
  return s;
}

TFU_SHAPE_RULE(forward_shape) {
  TFU_TRY(check(in, attr, err));
  out[0] = output_of(&in[TFU_ATT_QUERY], &in[TFU_ATT_VALUE]);
  out[1] = per_query(&in[TFU_ATT_QUERY]);
  return TFU_OK;
}

const tfu_op tfu_attention = {
    .name = "Attention",
    .doc =
        "softmax(cap(scale * query . key) + bias) . value over the keys that a query attends to, and log(sum of exp) "
        "of the scores; cap(x) = soft_cap * tanh(x / soft_cap) where soft_cap is not 0.",
    .in = {"query: T", "key: T", "value: T", "bias: T", "mask: bool", "query_lengths: int64", "key_lengths: int64",
           "seed: int64"},
    .out = {"output: T", "stats: S"},
    .attr = {TFU_ATTENTION_ATTRS, "rate: float = 0.0", "deterministic: bool = false", "tf32: bool = false",
             TFU_T_FLOATS, TFU_S_REALS},
    .shape = forward_shape,
    TFU_KERNELS(attention),
    .capturable = 1,
    .room = TFU_ATTENTION_ROOM,
};

TFU_SHAPE_RULE(grad_shape) {
  const tfu_shape *same = in + 1, output = output_of(&same[TFU_ATT_QUERY], &same[TFU_ATT_VALUE]);
  const tfu_shape stats = per_query(&same[TFU_ATT_QUERY]);
  TFU_TRY(check(same, attr, err));
  TFU_TRY(tfu_match("doutput", &in[0], "the output", &output, err));
  TFU_TRY(tfu_match("output", &same[TFU_ATT_OUTPUT], "query with the head_dim of value", &output, err));
  TFU_TRY(tfu_match("stats", &same[TFU_ATT_STATS], "the queries", &stats, err));
  if (tfu_given(&same[TFU_ATT_DSTATS])) TFU_TRY(tfu_match("dstats", &same[TFU_ATT_DSTATS], "stats", &stats, err));
  for (int i = 0; i < 3; i++) out[i] = same[i];
  out[TFU_ATT_DBIAS] = same[TFU_ATT_DBIAS_FOR];
  if (tfu_given(&out[TFU_ATT_DBIAS]))
    TFU_TRY(tfu_match("dbias_for", &out[TFU_ATT_DBIAS], "bias", &same[TFU_ATT_BIAS], err));
  return TFU_OK;
}

const tfu_op tfu_attention_grad = {
    .name = "AttentionGrad",
    .doc = "Gradient of Attention; dbias_for is bias again where its gradient is wanted.",
    .in = {"doutput: T", "query: T", "key: T", "value: T", "bias: T", "mask: bool", "query_lengths: int64",
           "key_lengths: int64", "seed: int64", "output: T", "stats: S", "dstats: S", "dbias_for: T"},
    .out = {"dquery: T", "dkey: T", "dvalue: T", "dbias: T"},
    .attr = {TFU_ATTENTION_ATTRS, "rate: float = 0.0", "deterministic: bool = false", "tf32: bool = false",
             TFU_T_FLOATS, TFU_S_REALS},
    .shape = grad_shape,
    TFU_KERNELS(attention_grad),
};

TFU_SHAPE_RULE(paged_shape) {
  const tfu_shape *table = &in[TFU_PAGED_TABLE];
  tfu_shape wanted = {.rank = 2,
                      .dim = {in[TFU_PAGED_QUERY].rank == 4 ? in[TFU_PAGED_QUERY].dim[0] : TFU_UNKNOWN, TFU_UNKNOWN}};
  TFU_TRY(check_heads(in, 1, err));
  TFU_TRY(check_cap(attr, err));
  TFU_TRY(tfu_match("table", table, "[batch of query, pages of a sequence]", &wanted, err));
  wanted.rank = 1;
  TFU_TRY(tfu_match("key_lengths", &in[TFU_PAGED_LENGTHS], "[batch] of query", &wanted, err));
  out[0] = output_of(&in[TFU_PAGED_QUERY], &in[TFU_PAGED_VALUE]);
  return TFU_OK;
}

/* Bytes of a sequence's pages in the dtype of query. */
static int64_t wide_bytes(const tfu_call *call) {
  const tfu_shape *key = &call->in[TFU_PAGED_KEY].shape, *value = &call->in[TFU_PAGED_VALUE].shape;
  const int64_t steps = call->in[TFU_PAGED_TABLE].shape.dim[1] * key->dim[1];
  return steps * key->dim[2] * (key->dim[3] + value->dim[3]) * (int64_t)tfu_dtype_size(call->in[TFU_PAGED_QUERY].dtype);
}

int64_t tfu_float8_sequences(const tfu_call *call) {
  const int64_t bytes = wide_bytes(call), batch = call->in[TFU_PAGED_TABLE].shape.dim[0];
  const int64_t most = bytes > TFU_FLOAT8_ROOM ? 1 : bytes ? TFU_FLOAT8_ROOM / bytes : batch;
  return most < batch ? most : batch;
}

/* What is widened of a cache of 8 bits, and a table of it. */
static size_t float8_room(const tfu_call *call) {
  const tfu_shape *table = &call->in[TFU_PAGED_TABLE].shape;
  if (call->in[TFU_PAGED_KEY].dtype != TFU_U8) return 0;
  if (!tfu_known(&call->in[TFU_PAGED_KEY].shape, 0) || !tfu_known(&call->in[TFU_PAGED_VALUE].shape, 0) ||
      !tfu_known(table, 0))
    return TFU_NO_ROOM;
  return (size_t)(tfu_float8_sequences(call) * (wide_bytes(call) + 8 * table->dim[1])) + 4096;
}

/* Beside that, what the splits of an invariant call leave to be joined: there is always enough for it, or the batch
 * would decide. */
static size_t paged_more_room(const tfu_call *call) {
  const tfu_shape *query = &call->in[TFU_PAGED_QUERY].shape, *value = &call->in[TFU_PAGED_VALUE].shape;
  const size_t wide = float8_room(call);
  if (!call->invariant || query->rank != 4 || query->dim[1] != 1 || !tfu_known(query, 0) || wide == TFU_NO_ROOM)
    return wide;
  return wide + (size_t)(query->dim[0] * query->dim[2] * TFU_INVARIANT_SPLITS * (tfu_cols(value) + 2)) * sizeof(float);
}

/* The keys of a sequence are in pages: step t of sequence b is step t % size of page table[b, t / size]. The queries
 * are its last steps. */
const tfu_op tfu_paged_attention = {
    .name = "PagedAttention",
    .doc = "Attention of the last steps of sequences over keys and values that lie in pages, by a table of them.",
    .in = {"query: T", "key_pages: C", "value_pages: C", "table: int64", "key_lengths: int64"},
    .out = {"output: T"},
    .attr = {TFU_ATTENTION_ATTRS, TFU_T_FLOATS, TFU_C_CACHE},
    .shape = paged_shape,
    TFU_KERNELS(paged_attention),
    .capturable = 1,
    .room = TFU_ATTENTION_ROOM,
    .more_room = paged_more_room,
};
