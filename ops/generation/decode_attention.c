/* Attention of one new step of each sequence over a paged KV cache, which the step's own key and value are put into
 * before, as decoding has it. It is
 *
 *   query, key = Rope(query, key, positions), where positions are given
 *   new_keys, new_values = PutRows(key, value, keys, values, places)
 *   output = PagedAttention(query, new_keys, new_values, table, lengths), of each query over `left` keys before its own
 *
 * with query [batch, heads, head_dim], key and value [batch, key_heads, head_dim], keys and values [pages, page_size,
 * key_heads, head_dim], and places, positions and lengths [batch]. Lengths count the new step: its place is that of
 * step lengths - 1 by the table, or negative for a sequence that has ended, whose cache stays as it is. No other
 * sequence has that place. Pairs of rope are half of `rotary` elements apart. The cache may be of 8 bits, as PutRows
 * has it. In a chain the cache is written in place. */
#include "ops/generation/decode_attention.h"

#include <float.h>

#include "kv_cache.h"
#include "tfuse.h"

static tfu_code check_rank(const char *name, const tfu_shape *s, int rank, const char *axes, tfu_error *err) {
  TFU_REQUIRE(err, s->rank == TFU_UNKNOWN || s->rank == rank, "%s must be %s, got shape %s", name, axes,
              tfu_show(s).text);
  return TFU_OK;
}

static int64_t size_of(const tfu_shape *s, int axis) { return s->rank == TFU_UNKNOWN ? TFU_UNKNOWN : s->dim[axis]; }

/* Key and value, new ones and those of the cache. */
static tfu_code check_cache(const tfu_shape *in, tfu_error *err) {
  static const char *const names[] = {"key", "value", "keys", "values"};
  for (int i = 0; i < 4; i++)
    TFU_TRY(check_rank(names[i], &in[TFU_DECODE_KEY + i], i < 2 ? 3 : 4,
                       i < 2 ? "[batch, heads, head_dim]" : "[pages, page_size, heads, head_dim]", err));
  for (int i = 0; i < 2; i++) {
    const tfu_shape *one = &in[TFU_DECODE_KEY + i], *all = &in[TFU_DECODE_KEYS + i];
    const tfu_shape wanted = {.rank = 3, .dim = {size_of(&in[TFU_DECODE_QUERY], 0), size_of(all, 2), size_of(all, 3)}};
    TFU_TRY(tfu_match(names[i], one, i ? "[batch of query] and values' heads" : "[batch of query] and keys' heads",
                      &wanted, err));
  }
  tfu_shape wanted = in[TFU_DECODE_KEYS];
  if (wanted.rank == 4) wanted.dim[3] = size_of(&in[TFU_DECODE_VALUES], 3);
  return tfu_match("values", &in[TFU_DECODE_VALUES], "keys up to head_dim", &wanted, err);
}

static tfu_code check_rope(const tfu_shape *in, const tfu_value *attr, tfu_error *err) {
  const int64_t dim = size_of(&in[TFU_DECODE_QUERY], 2), rotary = attr ? attr[TFU_DECODE_ROTARY].i : 0;
  if (dim == TFU_UNKNOWN || !tfu_given(&in[TFU_DECODE_POSITIONS])) return TFU_OK;
  TFU_REQUIRE(err, dim % 2 == 0, "head_dim must be even where there are positions, got shape %s",
              tfu_show(&in[TFU_DECODE_QUERY]).text);
  TFU_REQUIRE(err, rotary >= 0 && rotary % 2 == 0 && rotary <= dim,
              "rotary must be even and at most head_dim, %d, got %d", (int)dim, (int)rotary);
  const tfu_shape *given = &in[TFU_DECODE_FREQUENCIES], wanted = {.rank = 1, .dim = {(rotary ? rotary : dim) / 2}};
  if (attr && tfu_given(given)) TFU_TRY(tfu_match("frequencies", given, "[pairs that are rotated]", &wanted, err));
  return TFU_OK;
}

TFU_SHAPE_RULE(decode_shape) {
  const tfu_shape *query = &in[TFU_DECODE_QUERY], *keys = &in[TFU_DECODE_KEYS];
  TFU_TRY(check_rank("query", query, 3, "[batch, heads, head_dim]", err));
  TFU_TRY(check_cache(in, err));
  const int64_t batch = size_of(query, 0), heads = size_of(query, 1), shared = size_of(keys, 2);
  TFU_REQUIRE(err, tfu_may_be(size_of(query, 2), size_of(keys, 3)),
              "query must have the head_dim of keys %s, got shape %s", tfu_show(keys).text, tfu_show(query).text);
  TFU_REQUIRE(err, heads <= 0 || shared == TFU_UNKNOWN || (shared > 0 && heads % shared == 0),
              "the heads of query, %lld, must be a multiple of those of keys, %lld", (long long)heads,
              (long long)shared);
  const tfu_shape table = {.rank = 2, .dim = {batch, TFU_UNKNOWN}}, each = {.rank = 1, .dim = {batch}};
  TFU_TRY(tfu_match("places", &in[TFU_DECODE_PLACES], "[batch of query]", &each, err));
  if (tfu_given(&in[TFU_DECODE_POSITIONS]))
    TFU_TRY(tfu_match("positions", &in[TFU_DECODE_POSITIONS], "[batch of query]", &each, err));
  TFU_TRY(tfu_match("table", &in[TFU_DECODE_TABLE], "[batch of query, pages of a sequence]", &table, err));
  TFU_TRY(tfu_match("lengths", &in[TFU_DECODE_LENGTHS], "[batch of query]", &each, err));
  TFU_TRY(check_rope(in, attr, err));
  const float cap = attr ? attr[TFU_DECODE_SOFT_CAP].f : 0;
  TFU_REQUIRE(err, cap >= 0 && cap <= FLT_MAX, "soft_cap must be finite and at least 0, got %g", cap);
  for (int i = 0; i < 2; i++) out[TFU_DECODE_NEW_KEYS + i] = in[TFU_DECODE_KEYS + i];
  out[TFU_DECODE_OUTPUT] = (tfu_shape){.rank = 3, .dim = {batch, heads, size_of(&in[TFU_DECODE_VALUES], 3)}};
  return TFU_OK;
}

/* The rotated query and key, and what attention wants. */
static size_t more_room(const tfu_call *call) {
  const tfu_shape *query = &call->in[TFU_DECODE_QUERY].shape, *key = &call->in[TFU_DECODE_KEY].shape;
  const size_t size = tfu_dtype_size(call->in[TFU_DECODE_QUERY].dtype);
  tfu_call paged = {.op = &tfu_paged_attention, .invariant = call->invariant}; /* of query, keys and values */
  if (query->rank != 3 || !tfu_known(query, 0) || !tfu_known(key, 0)) return tfu_paged_attention.room;
  paged.in[TFU_PAGED_QUERY].dtype = call->in[TFU_DECODE_QUERY].dtype;
  paged.in[TFU_PAGED_QUERY].shape = (tfu_shape){.rank = 4, .dim = {query->dim[0], 1, query->dim[1], query->dim[2]}};
  paged.in[TFU_PAGED_KEY] = call->in[TFU_DECODE_KEYS];
  paged.in[TFU_PAGED_VALUE] = call->in[TFU_DECODE_VALUES];
  paged.in[TFU_PAGED_TABLE] = call->in[TFU_DECODE_TABLE];
  return (size_t)(tfu_count(query) + tfu_count(key)) * size + 4096 + tfu_paged_attention.room +
         tfu_paged_attention.more_room(&paged);
}

const tfu_op tfu_decode_attention = {
    .name = "DecodeAttention",
    .doc =
        "Attention of one new step of each sequence over a cache in pages, with rope of query and key; the new key and "
        "value are put into the cache.",
    .in = {"query: T", "key: T", "value: T", "keys: C", "values: C", "places: int64", "positions: int64",
           "table: int64", "lengths: int64", "frequencies: float"},
    .out = {"new_keys: C", "new_values: C", "output: T"},
    .attr = {"base: float = 10000.0", "rotary: int = 0", "rope_scale: float = 1.0", "scale: float = 1.0",
             "left: int = -1", "soft_cap: float = 0.0", TFU_T_FLOATS, TFU_C_CACHE},
    .shape = decode_shape,
    TFU_KERNELS(decode_attention),
    .capturable = 1,
    .more_room = more_room,
};
