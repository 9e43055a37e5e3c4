/* Rows of tables and caches by their numbers, as decoding has them.
 *
 * TakeRows: y[r] = table[ids[r]], as an embedding. A number that there is not gives zeros.
 *
 * PutRows: keys and values of new steps, put into a cache,
 *
 *   new_keys[places[r]] = key[r],  new_values[places[r]] = value[r],
 *
 * and all other rows as they are in keys and values. A place that there is not is left out: padding has -1. Places must
 * differ from each other. The last two axes, heads and head_dim, are a row; so the cache may be [rows, heads, head_dim]
 * or pages of rows, [pages, page_size, heads, head_dim]. A cache of uint8 has numbers of float8_e4m3fn, to which rows
 * are rounded. In a chain the cache is written in place. */
#include "kv_cache.h"
#include "tfuse.h"

static tfu_code take_rule(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  TFU_REQUIRE(err, in[0].rank == TFU_UNKNOWN || in[0].rank == 2, "table must be [rows, width], got shape %s",
              tfu_show(&in[0]).text);
  out[0].rank = TFU_UNKNOWN;
  if (in[1].rank == TFU_UNKNOWN) return TFU_OK;
  out[0] = tfu_append(&in[1], in[0].rank == 2 ? in[0].dim[1] : TFU_UNKNOWN);
  return TFU_OK;
}

const tfu_op tfu_take_rows = {
    .name = "TakeRows",
    .doc = "Rows of a table by their numbers; zeros for a number that there is not.",
    .in = {"table: T", "ids: int64"},
    .out = {"y: T"},
    .attr = {"T: {float, half, bfloat16, double, int64}"},
    .shape = take_rule,
    TFU_KERNELS(take_rows),
    .capturable = 1,
};

/* Whether both end in the same two axes. */
static tfu_code check(const char *a_name, const tfu_shape *a, const char *b_name, const tfu_shape *b, tfu_error *err) {
  TFU_REQUIRE(err, a->rank == TFU_UNKNOWN || a->rank >= 3, "%s must end in axes of heads and head_dim, got shape %s",
              a_name, tfu_show(a).text);
  if (a->rank == TFU_UNKNOWN || b->rank < 3) return TFU_OK;
  for (int i = 1; i <= 2; i++)
    TFU_REQUIRE(err, tfu_may_be(a->dim[a->rank - i], b->dim[b->rank - i]),
                "%s must have the heads and head_dim of %s %s, got shape %s", a_name, b_name, tfu_show(b).text,
                tfu_show(a).text);
  return TFU_OK;
}

static tfu_code put_rule(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  TFU_TRY(check("key", &in[0], "keys", &in[2], err));
  TFU_TRY(check("value", &in[1], "values", &in[3], err));
  TFU_TRY(check("keys", &in[2], "key", &in[0], err));
  TFU_TRY(check("values", &in[3], "value", &in[1], err));
  const tfu_shape *const rows[] = {&in[1], &in[4]};
  static const char *const names[] = {"value up to heads", "places"};
  for (int i = 0; i < 2 && in[0].rank != TFU_UNKNOWN; i++) {
    tfu_shape wanted = in[0], mine = *rows[i];
    wanted.rank -= 2;
    if (i == 0 && mine.rank != TFU_UNKNOWN) mine.rank -= 2;
    TFU_TRY(tfu_match(names[i], &mine, "the rows of key", &wanted, err));
  }
  out[0] = in[2];
  out[1] = in[3];
  return TFU_OK;
}

const tfu_op tfu_put_rows = {
    .name = "PutRows",
    .doc =
        "A cache of keys and values with rows of new steps put in by their places; a place that there is not is left "
        "out.",
    .in = {"key: T", "value: T", "keys: C", "values: C", "places: int64"},
    .out = {"new_keys: C", "new_values: C"},
    .attr = {TFU_T_FLOATS, TFU_C_CACHE},
    .shape = put_rule,
    TFU_KERNELS(put_rows),
    .capturable = 1,
};
