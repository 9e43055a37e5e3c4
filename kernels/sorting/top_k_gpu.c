#include "kernels/sorting/top_k.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/sorting/order.h"
#include "kernels/sorting/radix.h"
#include "kernels/sorting/sort.h"

TFU_MODULE(top_k);
enum { VALUES, WHOLE };
static const char *const variants[] = {"values", "whole"};
static tfu_kernel top_k = {.module = &module, .name = "top_k", .variants = variants};
static tfu_kernel top_k_keys = {.module = &module, .name = "top_k_keys", .keys = tfu_bits};

TFU_TUNABLE(most_k, 1024, 1, 2048);       /* beyond which whole rows are sorted                               */
TFU_TUNABLE(least_enough, 512, 64, 2048); /* kept ones before the first sorting                               */
TFU_TUNABLE(top_blocks, 5, 1, 32);        /* per multiprocessor: so many parts of rows there are, if possible */

enum { SORTED_COLS = 256 }; /* rows of so many or fewer are sorted, several by one block */
enum { MOST_PARTS = 1024 };

static tfu_code by_sorting(tfu_call *call, const tfu_tensor *x, int64_t rows, int64_t cols, int64_t k) {
  int32_t *indices;
  TFU_SCRATCH(call, rows * cols, indices);
  const radix_job job = {.from = x->data,
                         .dtype = x->dtype,
                         .order = tfu_wide_order_of(x->dtype, 1, 1),
                         .rows = rows,
                         .cols = cols,
                         .indices = indices};
  TFU_TRY(tfu_radix_gpu(call, &job));
  return tfu_move_gpu(call, x->dtype,
                      (move_args){.from = x->data,
                                  .to = call->out[0].data,
                                  .indices = indices,
                                  .n = rows * k,
                                  .k = k,
                                  .cols = cols,
                                  .stride = cols,
                                  .copied = call->out[1].data});
}

/* Bytes of shared memory for what is kept. */
static size_t shared_of(int enough, size_t key) { return 2 * (size_t)enough * (key + sizeof(uint32_t)); }

static tfu_code launch(tfu_call *call, top_args *a, tfu_dtype dtype, size_t key) {
  const tfu_grid grid = {
      .x = (unsigned)(a->rows * a->parts), .threads = TFU_THREADS, .shared = (unsigned)shared_of(a->enough, key)};
  if (a->from_indices) return tfu_launch(call, &top_k_keys, 0, tfu_bits_of(key), grid, a);
  return tfu_launch(call, &top_k, dtype < TFU_FLOATS ? VALUES : WHOLE, dtype, grid, a);
}

tfu_code tfu_top_k_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0];
  const int64_t rows = tfu_rows(&x->shape), cols = tfu_cols(&x->shape), k = tfu_cols(&call->out[0].shape);
  const size_t size = tfu_dtype_size(x->dtype), key = size == 8 ? 8 : 4;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_REQUIRE(call->err, cols <= INT32_MAX, "a row must have less than 2^31 values, got %lld", (long long)cols);
  if (rows * k == 0) return TFU_OK;
  int enough = least_enough();
  while (enough < 2 * k && enough < INT32_MAX / 2) enough *= 2;
  if (cols <= SORTED_COLS || k > most_k() || rows > INT32_MAX / MOST_PARTS ||
      shared_of(enough, key) > (size_t)tfu_dynamic_shared(&device))
    return by_sorting(call, x, rows, cols, k);
  top_args a = {.x = x->data,
                .values = call->out[0].data,
                .numbers = x->data,
                .indices = call->out[1].data,
                .order = tfu_wide_order_of(x->dtype, 1, 1),
                .rows = rows,
                .cols = cols,
                .number_cols = cols,
                .part_cols = cols,
                .parts = 1,
                .of_16_bits = size == 2,
                .k = (int)k,
                .enough = enough};
  /* Parts are worth their second launch where they are long against what they give; each has at least k. */
  const int64_t wanted = (int64_t)device.multiprocessors * top_blocks() / rows, longest = cols / (16 * (int64_t)enough);
  int64_t parts = wanted < longest ? wanted : longest;
  if (parts > MOST_PARTS) parts = MOST_PARTS;
  while (parts > 1 && cols - (parts - 1) * divide_up(cols, parts) < k) parts--;
  if (parts <= 1) return launch(call, &a, x->dtype, key);
  top_args of_parts = a;
  TFU_TRY(tfu_scratch(call, (size_t)(rows * parts * k) * key, &of_parts.keys));
  TFU_SCRATCH(call, rows * parts * k, of_parts.indices);
  of_parts.parts = (int)parts;
  of_parts.part_cols = divide_up(cols, parts);
  of_parts.values = NULL;
  TFU_TRY(launch(call, &of_parts, x->dtype, key));
  a.x = of_parts.keys;
  a.from_indices = (uint32_t *)of_parts.indices;
  a.cols = a.part_cols = parts * k;
  return launch(call, &a, x->dtype, key);
}
