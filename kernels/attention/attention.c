/* attention.c - reads the calls of the attention ops. */
#include "kernels/attention/attention.h"

#include <limits.h>

#include "kv_cache.h"
#include "ops/attention/attention.h"

static int limit(int64_t v) { return v > INT_MAX / 2 ? -1 : v < 0 ? -1 : (int)v; }

/* Elements from one place to the next along batch, heads, queries and keys. */
static void steps(const tfu_shape *t, int64_t step[4]) {
  int64_t elements = 1;
  for (int i = 0; i < 4; i++) step[i] = 0;
  for (int i = 1; i <= t->rank && i <= 4; i++) {
    const int64_t size = t->dim[t->rank - i];
    step[4 - i] = size == 1 ? 0 : elements;
    elements *= size;
  }
}

static tfu_code sizes(tfu_call *call, const tfu_shape *q, const tfu_shape *k, const tfu_shape *v, attention_args *a) {
  const int h = q->rank - 2;
  a->heads = (int)q->dim[h];
  a->key_heads = (int)k->dim[h];
  a->head_dim = (int)q->dim[h + 1];
  a->value_dim = (int)v->dim[h + 1];
  for (int i = 0; i < q->rank; i++)
    TFU_REQUIRE(call->err, q->dim[i] < INT_MAX / 2 && k->dim[i] < INT_MAX / 2 && v->dim[i] < INT_MAX / 2,
                "dimensions must be below 2^30, got query %s and key %s", tfu_show(q).text, tfu_show(k).text);
  return TFU_OK;
}

/* What all have: in[] as in ops/attention/attention.h. */
static tfu_code read(tfu_call *call, const tfu_tensor *in, attention_args *a) {
  const tfu_shape *q = &in[TFU_ATT_QUERY].shape, *k = &in[TFU_ATT_KEY].shape;
  *a = (attention_args){.query = in[TFU_ATT_QUERY].data,
                        .key = in[TFU_ATT_KEY].data,
                        .value = in[TFU_ATT_VALUE].data,
                        .bias = tfu_given_data(&in[TFU_ATT_BIAS]),
                        .mask = tfu_given_data(&in[TFU_ATT_MASK]),
                        .query_lengths = tfu_given_data(&in[TFU_ATT_QUERY_LENGTHS]),
                        .key_lengths = tfu_given_data(&in[TFU_ATT_KEY_LENGTHS]),
                        .seed = call->attr[TFU_ATT_RATE].f > 0 ? tfu_given_data(&in[TFU_ATT_SEED]) : NULL,
                        .ragged = q->rank == 3,
                        .align = (int)call->attr[TFU_ATT_ALIGN].i,
                        .left = limit(call->attr[TFU_ATT_LEFT].i),
                        .right = limit(call->attr[TFU_ATT_RIGHT].i),
                        .scale = call->attr[TFU_ATT_SCALE].f,
                        .rate = call->attr[TFU_ATT_RATE].f,
                        .tf32 = call->attr[TFU_ATT_TF32].b,
                        .soft_cap = call->attr[TFU_ATT_SOFT_CAP].f};
  TFU_TRY(sizes(call, q, k, &in[TFU_ATT_VALUE].shape, a));
  a->batch = (int)(a->ragged ? in[TFU_ATT_QUERY_LENGTHS].shape.dim[0] - 1 : q->dim[0]);
  a->queries = (int)q->dim[a->ragged ? 0 : 1];
  a->keys = (int)k->dim[a->ragged ? 0 : 1];
  steps(&in[TFU_ATT_BIAS].shape, a->bias_step);
  steps(&in[TFU_ATT_MASK].shape, a->mask_step);
  return TFU_OK;
}

tfu_code tfu_attention_read(tfu_call *call, attention_args *a) {
  TFU_TRY(read(call, call->in, a));
  a->output = call->out[0].data;
  a->stats = call->out[1].data;
  return TFU_OK;
}

tfu_code tfu_attention_grad_read(tfu_call *call, attention_args *a) {
  const tfu_tensor *in = call->in + 1;
  TFU_TRY(read(call, in, a));
  a->doutput = call->in[0].data;
  a->output = in[TFU_ATT_OUTPUT].data;
  a->stats = in[TFU_ATT_STATS].data;
  a->dstats = tfu_given_data(&in[TFU_ATT_DSTATS]);
  a->dquery = call->out[TFU_ATT_DQUERY].data;
  a->dkey = call->out[TFU_ATT_DKEY].data;
  a->dvalue = call->out[TFU_ATT_DVALUE].data;
  a->dbias = tfu_given_data(&call->out[TFU_ATT_DBIAS]);
  return TFU_OK;
}

tfu_code tfu_paged_attention_read(tfu_call *call, attention_args *a) {
  const tfu_tensor *in = call->in;
  const tfu_shape *k = &in[TFU_PAGED_KEY].shape;
  *a = (attention_args){.query = in[TFU_PAGED_QUERY].data,
                        .key = in[TFU_PAGED_KEY].data,
                        .value = in[TFU_PAGED_VALUE].data,
                        .table = in[TFU_PAGED_TABLE].data,
                        .key_lengths = in[TFU_PAGED_LENGTHS].data,
                        .output = call->out[0].data,
                        .batch = (int)in[TFU_PAGED_QUERY].shape.dim[0],
                        .queries = (int)in[TFU_PAGED_QUERY].shape.dim[1],
                        .page = (int)k->dim[1],
                        .pages = (int)k->dim[0],
                        .table_width = (int)in[TFU_PAGED_TABLE].shape.dim[1],
                        .align = TFU_ALIGN_LAST,
                        .left = limit(call->attr[TFU_ATT_LEFT].i),
                        .right = limit(call->attr[TFU_ATT_RIGHT].i),
                        .scale = call->attr[TFU_ATT_SCALE].f,
                        .soft_cap = call->attr[TFU_ATT_SOFT_CAP].f};
  TFU_TRY(sizes(call, &in[TFU_PAGED_QUERY].shape, k, &in[TFU_PAGED_VALUE].shape, a));
  const int64_t keys = (int64_t)a->page * a->table_width;
  TFU_REQUIRE(call->err, keys < INT_MAX / 2, "a sequence must have fewer than 2^30 steps, got %d pages of %d",
              a->table_width, a->page);
  a->keys = (int)keys;
  return TFU_OK;
}
