/* DecodeAttention on the GPU: by one kernel where that serves it, otherwise by the ops that it is made of. */
#include "kernels/generation/decode_attention.h"

#include <limits.h>

#include "kernels/attention/attention_step.h"
#include "kernels/attention/float8_pages.h"
#include "kernels/core/gpu/transfer.h"
#include "ops/generation/decode_attention.h"

static const tfu_shape *shape_of(const tfu_call *call, int i) { return &call->in[i].shape; }

/* Whether the sizes fit the kernel's integers, and rows of keys and values are of one size. */
static int is_regular(const tfu_call *call) {
  const tfu_shape *query = shape_of(call, TFU_DECODE_QUERY), *keys = shape_of(call, TFU_DECODE_KEYS);
  const int64_t page = keys->dim[1], width = shape_of(call, TFU_DECODE_TABLE)->dim[1];
  return shape_of(call, TFU_DECODE_VALUES)->dim[3] == keys->dim[3] && keys->dim[2] > 0 && page > 0 &&
         page <= INT_MAX / 4 && keys->dim[0] <= INT_MAX / page && width <= INT_MAX / 4 / page &&
         tfu_count(query) <= INT_MAX;
}

static attention_step_args args_of(const tfu_call *call) {
  const tfu_shape *query = shape_of(call, TFU_DECODE_QUERY), *keys = shape_of(call, TFU_DECODE_KEYS);
  const int64_t rotary = call->attr[TFU_DECODE_ROTARY].i ? call->attr[TFU_DECODE_ROTARY].i : query->dim[2],
                left = call->attr[TFU_DECODE_LEFT].i, width = shape_of(call, TFU_DECODE_TABLE)->dim[1];
  return (attention_step_args){
      .query = call->in[TFU_DECODE_QUERY].data,
      .key = call->in[TFU_DECODE_KEY].data,
      .value = call->in[TFU_DECODE_VALUE].data,
      .keys = call->out[TFU_DECODE_NEW_KEYS].data,
      .values = call->out[TFU_DECODE_NEW_VALUES].data,
      .output = call->out[TFU_DECODE_OUTPUT].data,
      .places = call->in[TFU_DECODE_PLACES].data,
      .positions = tfu_given_data(&call->in[TFU_DECODE_POSITIONS]),
      .table = call->in[TFU_DECODE_TABLE].data,
      .lengths = call->in[TFU_DECODE_LENGTHS].data,
      .rope = rope_frequencies_of(tfu_given_data(&call->in[TFU_DECODE_FREQUENCIES]), call->attr[TFU_DECODE_BASE].f,
                                  call->attr[TFU_DECODE_ROPE_SCALE].f, rotary / 2),
      .page = divisor_of(keys->dim[1]),
      .batch = (int)query->dim[0],
      .key_heads = (int)keys->dim[2],
      .group = (int)(query->dim[1] / keys->dim[2]),
      .head_dim = (int)query->dim[2],
      .pages = (int)keys->dim[0],
      .width = (int)width,
      .keys_most = (int)(width * keys->dim[1]),
      .left = left < 0 || left > INT_MAX / 2 ? -1 : (int)left,
      .scale = call->attr[TFU_DECODE_SCALE].f,
      .soft_cap = call->attr[TFU_DECODE_SOFT_CAP].f};
}

/* Whether the kernel may begin before those before it have ended: nothing of the same graph that comes before writes
 * what it reads then. */
static int may_begin(const tfu_call *call, const attention_step_args *a) {
  const unsigned read = 1u << TFU_DECODE_KEYS | 1u << TFU_DECODE_VALUES | 1u << TFU_DECODE_PLACES |
                        1u << TFU_DECODE_TABLE | 1u << TFU_DECODE_LENGTHS |
                        (a->positions ? 1u << TFU_DECODE_POSITIONS : 0) |
                        (a->rope.given ? 1u << TFU_DECODE_FREQUENCIES : 0);
  return (call->constant & read) == read;
}

tfu_code tfu_decode_attention_gpu(tfu_call *call) {
  static const decode_attention_parts parts = {
      .rope = tfu_rope_gpu, .put_rows = tfu_put_rows_gpu, .attention = tfu_paged_attention_gpu};
  const tfu_dtype dtype = call->in[TFU_DECODE_QUERY].dtype;
  int copied = 0, served = 0, is_float8;
  TFU_TRY(tfu_is_float8_cache(call, call->in[TFU_DECODE_KEYS].dtype, dtype, &is_float8));
  if (!is_regular(call)) return tfu_decode_attention_by_parts(call, &parts);
  for (int i = 0; i < 2; i++) {
    tfu_tensor *before = &call->in[TFU_DECODE_KEYS + i];
    const tfu_tensor *after = &call->out[TFU_DECODE_NEW_KEYS + i];
    const size_t bytes = (size_t)tfu_count(&before->shape) * tfu_dtype_size(before->dtype);
    if (after->data == before->data || !bytes) continue;
    TFU_TRY(tfu_transfer_take(call->stream, after->data, before->data, bytes, call->err));
    before->data = after->data; /* from here on the cache is written in place */
    copied = 1;
  }
  const attention_step_args a = args_of(call);
  TFU_TRY(tfu_attention_step_run(call, a, dtype, is_float8, !copied && may_begin(call, &a), &served));
  return served ? TFU_OK : tfu_decode_attention_by_parts(call, &parts);
}
