#include "kernels/scans/scan_linear.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/layout/transpose.h"

TFU_MODULE(scan_linear);
TFU_MODULE_AS(ring_module, scan_linear_ring);
static tfu_kernel kernel = {.module = &module, .name = "scan_linear"};
static const char *const ways[] = {"forward", "backward"};
static tfu_kernel ring = {.module = &ring_module, .name = "scan_linear_ring", .variants = ways};

/* Threads below which columns are cut into chunks, which costs another look at memory; and the least that a chunk has.
 */
enum { ENOUGH = 64, SHORTEST = 64, MOST_CHUNKS = 256 };

/* Whether rows are whole packs, enough of them for a block, where packs can be copied ahead. */
static int has_packs(const scan_linear_args *a, tfu_dtype dtype, const tfu_device *device) {
  const int64_t bytes = a->inner * (int64_t)tfu_dtype_size(dtype);
  const uintptr_t all = (uintptr_t)a->a | (uintptr_t)a->b | (uintptr_t)a->h;
  return dtype != TFU_F64 && device->capability >= 80 && 2 * a->inner > TFU_RING_THREADS && bytes % 16 == 0 &&
         all % 16 == 0;
}

static tfu_code scan_columns(tfu_call *call, scan_linear_args a, tfu_dtype dtype) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t blocks = divide_up(a.columns, TFU_LINEAR_THREADS), wanted = (int64_t)ENOUGH * device.multiprocessors;
  if (2 * a.columns < wanted && a.length >= 2 * SHORTEST) {
    const int64_t chunks = least(least(divide_up(wanted, a.columns), a.length / SHORTEST), MOST_CHUNKS);
    a.chunk = divide_up(a.length, chunks);
    a.chunks = (int)divide_up(a.length, a.chunk);
  }
  TFU_REQUIRE(call->err, blocks <= INT32_MAX, "%lld columns are too many for one launch", (long long)a.columns);
  if (a.chunks == 1 && has_packs(&a, dtype, &device)) {
    const int64_t strips = divide_up(a.inner, TFU_RING_THREADS);
    const size_t stage = (size_t)TFU_RING_ROWS * TFU_RING_THREADS * tfu_dtype_size(dtype) * (a.back ? 3 : 2);
    const tfu_grid strip = {.x = (unsigned)(a.columns / a.inner * strips),
                            .threads = TFU_RING_THREADS,
                            .shared = (unsigned)(TFU_RING_STAGES * stage)};
    return tfu_launch(call, &ring, a.back, dtype, strip, &a);
  }
  const tfu_grid grid = {.x = (unsigned)blocks, .y = (unsigned)a.chunks, .threads = TFU_LINEAR_THREADS};
  if (a.chunks > 1) {
    const size_t pair = 2 * tfu_dtype_size(tfu_real(dtype));
    TFU_TRY(tfu_scratch(call, (size_t)(a.chunks * a.columns) * pair, &a.totals));
    a.find = 1;
    TFU_TRY(tfu_launch(call, &kernel, 0, dtype, grid, &a));
    a.find = 0;
  }
  return tfu_launch(call, &kernel, 0, dtype, grid, &a);
}

/* [rows, columns] as [columns, rows]. */
static tfu_code transpose(tfu_call *call, const void *from, void *to, int64_t rows, int64_t columns, int64_t size) {
  const tfu_permutation p = {.axes = 2, .size = {columns, rows}, .from = {1, columns}, .to = {rows, 1}};
  return tfu_permute_gpu(call, p, from, to, size);
}

/* Rows, whose positions lie side by side, as columns: what is read is transposed before, what is written after. */
static tfu_code scan_rows(tfu_call *call, scan_linear_args a, tfu_dtype dtype) {
  const int64_t rows = a.columns, size = (int64_t)tfu_dtype_size(dtype);
  const void **const read[] = {&a.a, &a.b, &a.h};
  void **const written[] = {&a.y, &a.da};
  void *to[TFU_COUNT(written)] = {NULL};
  for (int i = 0; i < TFU_COUNT(read); i++) {
    void *memory;
    if (!*read[i]) continue;
    TFU_TRY(tfu_scratch(call, (size_t)(rows * a.length * size), &memory));
    TFU_TRY(transpose(call, *read[i], memory, rows, a.length, size));
    *read[i] = memory;
  }
  for (int i = 0; i < TFU_COUNT(written); i++) {
    to[i] = *written[i];
    if (to[i]) TFU_TRY(tfu_scratch(call, (size_t)(rows * a.length * size), written[i]));
  }
  a.inner = rows;
  TFU_TRY(scan_columns(call, a, dtype));
  for (int i = 0; i < TFU_COUNT(written); i++)
    if (to[i]) TFU_TRY(transpose(call, *written[i], to[i], a.length, rows, size));
  return TFU_OK;
}

static tfu_code run(tfu_call *call) {
  const scan_linear_args a = tfu_scan_linear_of(call);
  const int rows = a.inner == 1 && a.columns > 1 && a.length > 1;
  return (rows ? scan_rows : scan_columns)(call, a, call->in[0].dtype);
}
tfu_code tfu_scan_linear_gpu(tfu_call *call) { return run(call); }
tfu_code tfu_scan_linear_grad_gpu(tfu_call *call) { return run(call); }
