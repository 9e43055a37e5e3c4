#include "kernels/attention/float8_pages.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"

TFU_MODULE(float8_pages);

enum { MOST = 1 << 30 }; /* elements of a launch: what kernels divide is less than 2^31 */

tfu_code tfu_narrow_rows_gpu(tfu_call *call, tfu_dtype dtype, const narrow_rows_args *given) {
  static tfu_kernel kernel = {.module = &module, .name = "narrow_rows"};
  const int64_t span = given->span.by, most = span ? MOST / span * span : 0;
  narrow_rows_args a = *given;
  if (!given->elements) return TFU_OK;
  TFU_REQUIRE(call->err, most, "a row of %lld elements is too long", (long long)span);
  for (int64_t at = 0; at < given->elements; at += most) {
    a.from = (const char *)given->from + at * (int64_t)tfu_dtype_size(dtype);
    a.number = given->number + at / span;
    a.elements = least(most, given->elements - at);
    const tfu_grid grid = {.x = (unsigned)least(divide_up(a.elements, FLOAT8_PAGES_THREADS), 1 << 16),
                           .threads = FLOAT8_PAGES_THREADS};
    TFU_TRY(tfu_launch(call, &kernel, 0, dtype, grid, &a));
  }
  return TFU_OK;
}

tfu_code tfu_widen_pages_gpu(tfu_call *call, tfu_dtype dtype, const widen_pages_args *given) {
  static tfu_kernel kernel = {.module = &module, .name = "widen_pages"};
  const tfu_grid grid = {.x = (unsigned)given->count, .y = 2, .threads = FLOAT8_PAGES_THREADS};
  widen_pages_args a = *given;
  return a.count ? tfu_launch(call, &kernel, 0, dtype, grid, &a) : TFU_OK;
}
