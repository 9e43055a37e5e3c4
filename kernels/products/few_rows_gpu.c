#include "kernels/products/few_rows.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"

TFU_MODULE(few_rows);

/* Columns of a block's tile. Of a gated unit, half of them are of each kernel, and 64 are what memory gives at once. */
static int columns_of(const few_rows_args *a, int tiles) { return a->gated && tiles <= 2 ? 128 : 64; }

static int64_t tiles_of(const few_rows_args *a, int columns) {
  int64_t tiles = 0;
  for (int i = 0; i < TFU_COUNT(a->of) && !a->gated; i++) tiles += divide_up(a->of[i].outputs, columns);
  return a->gated ? divide_up(a->of[0].outputs, columns / 2) : tiles;
}

/* Blocks that share the rows of the kernel: as many as there is one of on each multiprocessor, or fewer, so that those
 * of the next kernel find room. They do not depend on the rows of x. */
static int splits_of(const few_rows_args *a, int multiprocessors) {
  const int64_t steps = a->inputs / FEW_ROWS_STEP, tiles = tiles_of(a, columns_of(a, 1));
  int splits = 1;
  while (splits < FEW_ROWS_SPLITS && steps >= 2 * splits * FEW_ROWS_WARPS && 2 * tiles * splits <= multiprocessors)
    splits *= 2;
  return splits;
}

static int is_served(const few_rows_args *a, tfu_dtype dtype, const tfu_device *device) {
  uintptr_t all = (uintptr_t)a->x | (uintptr_t)a->gamma;
  int64_t outputs = 0;
  for (int i = 0; i < TFU_COUNT(a->of); i++) all |= (uintptr_t)a->of[i].kernel, outputs |= a->of[i].outputs;
  return device->capability >= 90 && (dtype == TFU_BF16 || (dtype == TFU_F16 && !a->gamma)) && a->inputs > 0 &&
         a->inputs % FEW_ROWS_STEP == 0 && outputs % 8 == 0 && all % 16 == 0;
}

/* Rows from `first` on, `most` at most. */
static few_rows_args rows_from(few_rows_args a, int first, int most) {
  const int64_t size = 2; /* bytes of an element */
  if (first == 0 && a.rows <= most) return a;
  a.x = (const char *)a.x + first * a.inputs * size;
  if (a.residual) a.residual = (const char *)a.residual + first * a.of[0].outputs * size;
  for (int i = 0; i < TFU_COUNT(a.of); i++)
    if (a.of[i].y) a.of[i].y = (char *)a.of[i].y + first * a.of[i].outputs * size;
  if (a.row_scale) a.row_scale += first;
  a.rows = a.rows - first < most ? a.rows - first : most;
  return a;
}

tfu_code tfu_few_rows_run(tfu_call *call, few_rows_args a, tfu_dtype dtype, int constant, int *served) {
  static const char *const variants[] = {"64", "128"};
  static tfu_kernel kernels[] = {{.module = &module, .name = "few_rows_1", .variants = variants},
                                 {.module = &module, .name = "few_rows_2", .variants = variants},
                                 {.module = &module, .name = "few_rows_4_64"}};
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  *served = is_served(&a, dtype, &device);
  if (!*served) return TFU_OK;
  a.splits = splits_of(&a, device.multiprocessors);
  call->kernel = "few rows";
  for (int first = 0; first < a.rows; first += FEW_ROWS_MOST) {
    few_rows_args some = rows_from(a, first, FEW_ROWS_MOST);
    const int which = some.rows > 32 ? 2 : some.rows > 16, columns = columns_of(&a, 1 << which);
    const tfu_grid grid = {.x = (unsigned)(tiles_of(&a, columns) * a.splits),
                           .threads = 32 * FEW_ROWS_WARPS,
                           .shared = (unsigned)(FEW_ROWS_WARPS * FEW_ROWS_DEPTH * FEW_ROWS_STAGE(1 << which, columns)),
                           .cluster = a.splits > 1 ? (unsigned)a.splits : 0,
                           .overlap = constant};
    TFU_TRY(tfu_launch(call, &kernels[which], columns > 64, dtype, grid, &some));
  }
  return TFU_OK;
}
