#include "kernels/attention/float8_pages.h"

#include <string.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/recycle.h"
#include "kv_cache.h"

tfu_code tfu_is_float8_cache(tfu_call *call, tfu_dtype cache, tfu_dtype dtype, int *is_float8) {
  TFU_REQUIRE(call->err, cache == dtype || cache == TFU_U8,
              "the cache must be of %s, or of uint8 for float8_e4m3fn, got %s", tfu_dtype_name(dtype),
              tfu_dtype_name(cache));
  *is_float8 = cache != dtype;
  return TFU_OK;
}

/* Sequences b .. of a tensor whose first axis they are. */
static tfu_tensor sequences(const tfu_tensor *t, int64_t b, int64_t n) {
  tfu_tensor some = *t;
  some.shape.dim[0] = n;
  const int64_t of_one = tfu_count(&t->shape) / t->shape.dim[0];
  some.data = (char *)t->data + b * of_one * (int64_t)tfu_dtype_size(t->dtype);
  return some;
}

tfu_code tfu_float8_paged_attention(tfu_call *call, const float8_pages_parts *parts) {
  const tfu_tensor *in = call->in, *table = &in[TFU_PAGED_TABLE], *keys = &in[TFU_PAGED_KEY];
  const tfu_dtype dtype = in[TFU_PAGED_QUERY].dtype;
  const int64_t batch = table->shape.dim[0], width = table->shape.dim[1];
  const int64_t some = tfu_float8_sequences(call);
  widen_pages_args a = {.width = (int)width, .there = (int)keys->shape.dim[0], .size = (int)keys->shape.dim[1]};
  tfu_tensor wide[2], numbers = {.dtype = TFU_I64, .shape = {.rank = 2, .dim = {some, width}}};
  tfu_recycled space;
  if (!tfu_count(&call->out[0].shape)) return TFU_OK;
  tfu_recycled_open(&space, call);
  for (int i = 0; i < 2; i++) {
    wide[i] = (tfu_tensor){.dtype = dtype, .shape = in[TFU_PAGED_KEY + i].shape};
    wide[i].shape.dim[0] = some * width;
    TFU_TRY(tfu_scratch_like(call, wide[i], &wide[i]));
    a.pages[i] = in[TFU_PAGED_KEY + i].data;
    a.wide[i] = wide[i].data;
    a.elements[i] = wide[i].shape.dim[1] * wide[i].shape.dim[2] * wide[i].shape.dim[3];
  }
  TFU_TRY(tfu_scratch_like(call, numbers, &numbers));
  a.numbers = numbers.data;
  for (int64_t b = 0; b < batch; b += some) {
    const int64_t n = least(some, batch - b);
    tfu_call *part = tfu_part(&space, &tfu_paged_attention);
    memcpy(part->attr, call->attr, sizeof part->attr);
    part->in[TFU_PAGED_QUERY] = sequences(&in[TFU_PAGED_QUERY], b, n);
    part->in[TFU_PAGED_LENGTHS] = sequences(&in[TFU_PAGED_LENGTHS], b, n);
    part->in[TFU_PAGED_TABLE] = sequences(&numbers, 0, n);
    part->in[TFU_PAGED_KEY] = wide[0];
    part->in[TFU_PAGED_VALUE] = wide[1];
    part->out[0] = sequences(&call->out[0], b, n);
    a.table = (const int64_t *)table->data + b * width;
    a.lengths = part->in[TFU_PAGED_LENGTHS].data;
    a.count = (int)(n * width);
    TFU_TRY(parts->widen(call, dtype, &a));
    TFU_TRY(parts->attention(part));
    call->kernel = part->kernel;
  }
  return TFU_OK;
}
