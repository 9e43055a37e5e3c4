#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/products/few_rows.h"

TFU_MODULE(few_rows_tiled);

enum { COLUMNS = 2 * FEW_ROWS_TILED_SIDE };

/* Blocks that share the rows of the kernel are as many as there are so many of on each multiprocessor, or fewer. */
TFU_TUNABLE(tiled_blocks, 2, 1, 4);

static int64_t tiles_of(const few_rows_args *a) {
  int64_t tiles = 0;
  for (int i = 0; i < TFU_COUNT(a->of) && !a->gated; i++) tiles += divide_up(a->of[i].outputs, COLUMNS);
  return a->gated ? divide_up(a->of[0].outputs, FEW_ROWS_TILED_SIDE) : tiles;
}

/* They do not depend on the rows of x. A warp has a stage at least. */
static int splits_of(const few_rows_args *a, int multiprocessors) {
  const int64_t steps = a->inputs / FEW_ROWS_TILED_STEP, tiles = tiles_of(a);
  int splits = 1;
  while (splits < FEW_ROWS_SPLITS && steps >= splits * FEW_ROWS_WARPS &&
         2 * tiles * splits <= (int64_t)tiled_blocks() * multiprocessors)
    splits *= 2;
  return splits;
}

/* 2 to which power so many stages are, or -1. */
static int shift_of(int64_t stages) {
  int shift = 0;
  while (shift < 30 && (int64_t)1 << shift < stages) shift++;
  return (int64_t)1 << shift == stages ? shift : -1;
}

static int is_served(const few_rows_args *a, tfu_dtype dtype, const tfu_device *device) {
  uintptr_t all = (uintptr_t)a->x | (uintptr_t)a->gamma;
  int64_t outputs = 0;
  for (int i = 0; i < TFU_COUNT(a->of); i++) {
    all |= (uintptr_t)a->of[i].kernel | (uintptr_t)a->of[i].scale;
    outputs |= a->of[i].outputs;
  }
  return device->capability >= 90 && (dtype == TFU_BF16 || (dtype == TFU_F16 && !a->gamma)) && a->inputs > 0 &&
         a->inputs % FEW_ROWS_TILED_STEP == 0 && a->inputs < INT32_MAX && a->group_shift >= 0 && outputs % 8 == 0 &&
         all % 16 == 0;
}

static int shift_of_group(const few_rows_args *a, int64_t group) {
  return group >= a->inputs ? 30 : group % FEW_ROWS_TILED_STEP ? -1 : shift_of(group / FEW_ROWS_TILED_STEP);
}

tfu_code tfu_few_rows_tiled_serves(tfu_call *call, few_rows_args a, int64_t group, tfu_dtype dtype, int *served) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  a.group_shift = shift_of_group(&a, group);
  *served = is_served(&a, dtype, &device);
  return TFU_OK;
}

tfu_code tfu_few_rows_tiled_run(tfu_call *call, few_rows_args a, int bits, int64_t group, tfu_dtype dtype, int constant,
                                int *served) {
  static const char *const variants[] = {"8", "4"};
  static tfu_kernel kernels[] = {{.module = &module, .name = "few_rows_tiled_1", .variants = variants},
                                 {.module = &module, .name = "few_rows_tiled_2", .variants = variants}};
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  a.group_shift = shift_of_group(&a, group);
  *served = is_served(&a, dtype, &device);
  if (!*served) return TFU_OK;
  a.splits = splits_of(&a, device.multiprocessors);
  call->kernel = "few rows, tiles";
  for (int first = 0; first < a.rows; first += FEW_ROWS_TILED_MOST) {
    few_rows_args some = tfu_few_rows_from(a, first, FEW_ROWS_TILED_MOST);
    const int two = some.rows > 16;
    const tfu_grid grid = {.x = (unsigned)(tiles_of(&a) * a.splits),
                           .threads = 32 * FEW_ROWS_WARPS,
                           .shared = (unsigned)(FEW_ROWS_WARPS * FEW_ROWS_DEPTH * FEW_ROWS_TILED_STAGE(1 + two, bits)),
                           .cluster = a.splits > 1 ? (unsigned)a.splits : 0,
                           .overlap = constant};
    TFU_TRY(tfu_launch(call, &kernels[two], bits == 4, dtype, grid, &some));
  }
  return TFU_OK;
}
