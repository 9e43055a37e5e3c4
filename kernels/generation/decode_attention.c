#include "kernels/generation/decode_attention.h"

#include "kernels/core/recycle.h"
#include "kv_cache.h"
#include "ops/attention/attention.h"
#include "ops/elementwise/rope.h"
#include "ops/generation/decode_attention.h"

/* [batch, heads, head_dim] as one step of each sequence, [batch, 1, heads, head_dim]. */
static tfu_tensor one_step(tfu_tensor t) {
  t.shape = (tfu_shape){.rank = 4, .dim = {t.shape.dim[0], 1, t.shape.dim[1], t.shape.dim[2]}};
  return t;
}

static tfu_code rotate(tfu_call *call, tfu_recycled *space, tfu_compute_fn *run, tfu_tensor *query, tfu_tensor *key) {
  if (!tfu_given(&call->in[TFU_DECODE_POSITIONS].shape)) return TFU_OK;
  const tfu_tensor from[2] = {*query, *key};
  TFU_TRY(tfu_scratch_like(call, from[0], query));
  TFU_TRY(tfu_scratch_like(call, from[1], key));
  tfu_call *rope = tfu_part(space, &tfu_rope);
  rope->attr[TFU_ROPE_BASE].f = call->attr[TFU_DECODE_BASE].f;
  rope->attr[TFU_ROPE_PAIRING].i = TFU_ROPE_HALF;
  rope->attr[TFU_ROPE_ROTARY].i = call->attr[TFU_DECODE_ROTARY].i;
  rope->attr[TFU_ROPE_SCALE].f = call->attr[TFU_DECODE_ROPE_SCALE].f;
  rope->in[0] = from[0];
  rope->in[1] = from[1];
  rope->in[2] = call->in[TFU_DECODE_POSITIONS];
  rope->in[TFU_ROPE_FREQUENCIES] = call->in[TFU_DECODE_FREQUENCIES];
  rope->out[0] = *query;
  rope->out[1] = *key;
  return run(rope);
}

tfu_code tfu_decode_attention_by_parts(tfu_call *call, const decode_attention_parts *parts) {
  tfu_tensor query = one_step(call->in[TFU_DECODE_QUERY]), key = one_step(call->in[TFU_DECODE_KEY]);
  tfu_recycled space;
  tfu_recycled_open(&space, call);
  TFU_TRY(rotate(call, &space, parts->rope, &query, &key));
  tfu_call *put = tfu_part(&space, &tfu_put_rows);
  put->in[0] = key;
  put->in[1] = one_step(call->in[TFU_DECODE_VALUE]);
  put->in[2] = call->in[TFU_DECODE_KEYS];
  put->in[3] = call->in[TFU_DECODE_VALUES];
  put->in[4] = call->in[TFU_DECODE_PLACES];
  put->out[0] = call->out[TFU_DECODE_NEW_KEYS];
  put->out[1] = call->out[TFU_DECODE_NEW_VALUES];
  TFU_TRY(parts->put_rows(put));
  if (!tfu_count(&call->out[TFU_DECODE_OUTPUT].shape)) return TFU_OK;
  tfu_call *attention = tfu_part(&space, &tfu_paged_attention);
  attention->attr[TFU_ATT_SCALE].f = call->attr[TFU_DECODE_SCALE].f;
  attention->attr[TFU_ATT_ALIGN].i = TFU_ALIGN_LAST;
  attention->attr[TFU_ATT_LEFT].i = call->attr[TFU_DECODE_LEFT].i;
  attention->attr[TFU_ATT_RIGHT].i = 0;
  attention->attr[TFU_ATT_SOFT_CAP].f = call->attr[TFU_DECODE_SOFT_CAP].f;
  attention->in[TFU_PAGED_QUERY] = query;
  attention->in[TFU_PAGED_KEY] = call->out[TFU_DECODE_NEW_KEYS];
  attention->in[TFU_PAGED_VALUE] = call->out[TFU_DECODE_NEW_VALUES];
  attention->in[TFU_PAGED_TABLE] = call->in[TFU_DECODE_TABLE];
  attention->in[TFU_PAGED_LENGTHS] = call->in[TFU_DECODE_LENGTHS];
  attention->out[0] = one_step(call->out[TFU_DECODE_OUTPUT]);
  return parts->attention(attention);
}
