#include "kernels/sorting/unique.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/sorting/order.h"
#include "kernels/sorting/radix.h"

TFU_MODULE(unique);
static tfu_kernel mark = {.module = &module, .name = "unique_mark", .keys = tfu_bits};
static tfu_kernel heads = {.module = &module, .name = "unique_heads", .keys = tfu_bits};
static tfu_kernel write = {.module = &module, .name = "unique_write", .keys = tfu_bits};
static tfu_kernel count = {.module = &module, .name = "unique_count", .keys = tfu_any};
static tfu_kernel number = {.module = &module, .name = "unique_number", .keys = tfu_any};

tfu_code tfu_unique_gpu(tfu_call *call) {
  enum { TILE = TFU_THREADS * TFU_UNIQUE_EACH };
  const tfu_tensor *x = &call->in[0], *out = call->out;
  const int64_t n = tfu_count(&x->shape), words = (n + 31) / 32;
  const size_t size = tfu_dtype_size(x->dtype), key = size == 8 ? 8 : 4, word = sizeof(uint32_t);
  const int bits = tfu_bits_of(key);
  const tfu_grid of_keys = {.x = (unsigned)(divide_up(n, TILE)), .threads = TFU_THREADS},
                 of_words = {.x = (unsigned)(divide_up(words, TILE)), .threads = TFU_THREADS};
  if (n == 0) return tfu_clear(call, out[3].data, word);
  TFU_TRY(tfu_clear(call, out[0].data, (size_t)n * size));
  TFU_TRY(tfu_clear(call, out[2].data, (size_t)n * word));
  void *keys, *indices, *of_heads, *ranks, *marks, *marks_before, *before, *words_before;
  TFU_TRY(tfu_scratch(call, (size_t)(n + TFU_UNIQUE_EACH) * key, &keys));
  TFU_TRY(tfu_scratch(call, (size_t)n * word, &indices));
  TFU_TRY(tfu_scratch(call, (size_t)n * word, &of_heads));
  TFU_TRY(tfu_scratch(call, (size_t)n * word, &ranks));
  TFU_TRY(tfu_scratch(call, (size_t)words * word, &marks));
  TFU_TRY(tfu_scratch(call, (size_t)words * word, &marks_before));
  TFU_TRY(tfu_scratch(call, of_keys.x * word, &before));
  TFU_TRY(tfu_scratch(call, of_words.x * word, &words_before));
  TFU_TRY(tfu_clear(call, marks, (size_t)words * word));
  const radix_job job = {.from = x->data,
                         .dtype = x->dtype,
                         .order = tfu_wide_order_of(x->dtype, 0, 1),
                         .rows = 1,
                         .cols = n,
                         .sorted = keys,
                         .keys = 1,
                         .indices = indices};
  TFU_TRY(tfu_radix_gpu(call, &job));
  unique_args a = {.x = x->data,
                   .keys = keys,
                   .indices = indices,
                   .marks = marks,
                   .marks_before = marks_before,
                   .before = before,
                   .words_before = words_before,
                   .heads = of_heads,
                   .ranks = ranks,
                   .y = out[0].data,
                   .idx = out[1].data,
                   .count = out[2].data,
                   .number = out[3].data,
                   .n = n,
                   .words = words,
                   .is_float = job.order.is_float,
                   .size = (int)size};
  TFU_TRY(tfu_launch(call, &mark, 0, bits, of_keys, &a));
  TFU_TRY(tfu_count_before(call, before, of_keys.x, out[3].data));
  TFU_TRY(tfu_launch(call, &count, 0, 0, of_words, &a));
  TFU_TRY(tfu_count_before(call, words_before, of_words.x, out[3].data));
  TFU_TRY(tfu_launch(call, &number, 0, 0, of_words, &a));
  TFU_TRY(tfu_launch(call, &heads, 0, bits, of_keys, &a));
  return tfu_launch(call, &write, 0, bits, of_keys, &a);
}
