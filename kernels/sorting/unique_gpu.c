#include "kernels/sorting/unique.h"

#include "kernels/core/gpu/choice.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/sorting/order.h"
#include "kernels/sorting/radix.h"

TFU_MODULE(unique);
static tfu_kernel mark = {.module = &module, .name = "unique_mark"};
static tfu_kernel number = {.module = &module, .name = "unique_number"};
static tfu_kernel count = {.module = &module, .name = "unique_count"};
static tfu_kernel write = {.module = &module, .name = "unique_write"};

tfu_code tfu_unique_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0], *out = call->out;
  const int64_t n = tfu_count(&x->shape),
                tiles = (n + TFU_THREADS * TFU_UNIQUE_EACH - 1) / (TFU_THREADS * TFU_UNIQUE_EACH);
  const size_t size = tfu_dtype_size(x->dtype), key = size == 8 ? 8 : 4, word = sizeof(uint32_t);
  if (n == 0) return tfu_clear(call, out[3].data, word);
  TFU_TRY(tfu_clear(call, out[0].data, (size_t)n * size));
  TFU_TRY(tfu_clear(call, out[2].data, (size_t)n * word));
  void *keys, *places, *marks, *of, *heads, *before;
  TFU_TRY(tfu_scratch(call, (size_t)n * key, &keys));
  TFU_TRY(tfu_scratch(call, (size_t)n * word, &places));
  TFU_TRY(tfu_scratch(call, (size_t)n * word, &marks));
  TFU_TRY(tfu_scratch(call, (size_t)n * word, &of));
  TFU_TRY(tfu_scratch(call, (size_t)n * word, &heads));
  TFU_TRY(tfu_scratch(call, (size_t)tiles * word, &before));
  const radix_job job = {.from = x->data,
                         .dtype = x->dtype,
                         .order = tfu_wide_order_of(x->dtype, 0, 1),
                         .rows = 1,
                         .cols = n,
                         .sorted = keys,
                         .keys = 1,
                         .places = places};
  TFU_TRY(tfu_radix_gpu(call, &job));
  unique_args a = {.x = x->data,
                   .keys = keys,
                   .places = places,
                   .marks = marks,
                   .of = of,
                   .heads = heads,
                   .before = before,
                   .y = out[0].data,
                   .idx = out[1].data,
                   .count = out[2].data,
                   .number = out[3].data,
                   .nan = UINT64_MAX,
                   .n = n,
                   .is_float = job.order.is_float,
                   .size = (int)size};
  const tfu_dtype tag = size == 8 ? TFU_F64 : TFU_F32;
  const tfu_grid grid = {.x = (unsigned)tiles, .threads = TFU_THREADS};
  TFU_TRY(tfu_launch(call, &mark, 0, tag, grid, &a));
  TFU_TRY(tfu_count_before(call, before, tiles, out[3].data));
  a.by_keys = 1;
  TFU_TRY(tfu_launch(call, &number, 0, TFU_F32, grid, &a));
  a.by_keys = 0;
  TFU_TRY(tfu_launch(call, &count, 0, TFU_F32, grid, &a));
  TFU_TRY(tfu_count_before(call, before, tiles, out[3].data));
  TFU_TRY(tfu_launch(call, &number, 0, TFU_F32, grid, &a));
  return tfu_launch(call, &write, 0, TFU_F32, grid, &a);
}
