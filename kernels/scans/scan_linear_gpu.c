#include "kernels/scans/scan_linear.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"

TFU_MODULE(scan_linear);
TFU_MODULE_AS(rows_module, scan_linear_rows);
static const char *const ways[] = {"forward", "backward", "forward_single", "backward_single"};
static tfu_kernel columns = {.module = &module, .name = "scan_linear", .variants = ways};
static tfu_kernel rows = {.module = &rows_module, .name = "scan_linear_rows", .variants = ways};

/* Blocks of a multiprocessor that are wanted, and below a quarter of which chunks are cut, since these cost another
 * look at memory; and the positions of a chunk, at least, in multiples of which it is cut. */
enum { WANTED_COLUMNS = 2, WANTED_ROWS = 4, SHORTEST = 256, MOST_CHUNKS = 256, PACK = 16 };

/* Whether packs of so many bytes begin where those that lie side by side do, `length` of them each time. */
static int has_packs(const scan_linear_args *a, int64_t length, tfu_dtype dtype, size_t bytes) {
  const uintptr_t all = (uintptr_t)a->a | (uintptr_t)a->b | (uintptr_t)a->h | (uintptr_t)a->y | (uintptr_t)a->da |
                        (uintptr_t)a->initial | (uintptr_t)a->dinitial;
  return (all | (uintptr_t)((size_t)length * tfu_dtype_size(dtype))) % bytes == 0;
}

static tfu_code scan(tfu_call *call, scan_linear_args a, tfu_kernel *kernel, int packs, int64_t blocks, int wanted) {
  const tfu_dtype dtype = call->in[0].dtype;
  const int variant = a.back + (packs ? 0 : 2);
  if (blocks == 0) return TFU_OK;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_REQUIRE(call->err, blocks <= INT32_MAX, "%lld columns are too many for one launch", (long long)a.columns);
  const int64_t all = (int64_t)wanted * device.multiprocessors;
  if (4 * blocks <= all && a.length >= 2 * SHORTEST) {
    const int64_t chunks = least(least(all / blocks, a.length / SHORTEST), MOST_CHUNKS);
    a.chunk = divide_up(divide_up(a.length, chunks), SHORTEST) * SHORTEST;
    a.chunks = (int)divide_up(a.length, a.chunk);
  }
  const tfu_grid grid = {.x = (unsigned)blocks, .y = (unsigned)a.chunks, .threads = TFU_LINEAR_THREADS};
  if (a.chunks > 1) {
    const size_t stored = tfu_dtype_size(dtype), real = tfu_dtype_size(tfu_real(dtype));
    const size_t pair = 2 * (stored > real ? stored : real); /* complex numbers are computed in as they are */
    TFU_TRY(tfu_scratch(call, (size_t)(a.chunks * a.columns) * pair, &a.totals));
    a.find = 1;
    TFU_TRY(tfu_launch(call, kernel, variant, dtype, grid, &a));
    a.find = 0;
  }
  return tfu_launch(call, kernel, variant, dtype, grid, &a);
}

static tfu_code run(tfu_call *call) {
  const tfu_dtype dtype = call->in[0].dtype;
  const int64_t size = (int64_t)tfu_dtype_size(dtype);
  scan_linear_args a = tfu_scan_linear_of(call);
  if (a.inner > 1) {
    const int packs = has_packs(&a, a.inner, dtype, TFU_LINEAR_BYTES);
    const int64_t block = 32 * (packs && size < TFU_LINEAR_BYTES ? TFU_LINEAR_BYTES / size : 1);
    return scan(call, a, &columns, packs, a.columns / a.inner * divide_up(a.inner, block), WANTED_COLUMNS);
  }
  const int packs = has_packs(&a, a.length, dtype, PACK);
  const int64_t each = divide_up(a.length, packs ? PACK / size : 1);
  for (a.lanes = 1; a.lanes < 32 && a.lanes < each;) a.lanes *= 2;
  return scan(call, a, &rows, packs, divide_up(a.columns * a.lanes, TFU_LINEAR_THREADS), WANTED_ROWS);
}
tfu_code tfu_scan_linear_gpu(tfu_call *call) { return run(call); }
tfu_code tfu_scan_linear_grad_gpu(tfu_call *call) { return run(call); }
