#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/products/few_rows.h"
#include "kernels/products/quantized_kernel.h"

TFU_MODULE(few_rows_tiled);

enum { COLUMNS = FEW_ROWS_TILED_COLUMNS };

/* Blocks that share the rows of the kernel are as many as there are so many of on each multiprocessor, or fewer. */
TFU_TUNABLE(tiled_blocks, 2, 1, 4);

static int64_t tiles_of(const few_rows_args *a) {
  int64_t tiles = 0;
  for (int i = 0; i < TFU_COUNT(a->of) && !a->gated; i++) tiles += divide_up(a->of[i].outputs, COLUMNS);
  return a->gated ? divide_up(a->of[0].outputs, COLUMNS) : tiles;
}

static int64_t held(const few_rows_args *a, int splits) {
  return divide_up(divide_up(a->inputs, FEW_ROWS_TILED_UNIT), splits);
}

/* They do not depend on the rows of x. Each makes a warp's units fewer. Blocks of a larger cluster find room together
 * on the multiprocessors of one part of the GPU only, where a quarter of the room may be left over. */
static int splits_of(const few_rows_args *a, int multiprocessors) {
  const int64_t tiles = tiles_of(a), room = (int64_t)tiled_blocks() * multiprocessors;
  const int64_t slices = a->gated ? FEW_ROWS_WARPS / 2 : FEW_ROWS_WARPS;
  int best = 0;
  for (int n = 1; n <= FEW_ROWS_SPLITS; n++) {
    if (held(a, n) > FEW_ROWS_TILED_HELD) continue;
    const int fewer = best && divide_up(held(a, n), slices) < divide_up(held(a, best), slices);
    if (!best || (fewer && tiles * n <= (n > 2 ? room * 3 / 4 : room))) best = n;
  }
  return best;
}

/* 2 to which power so many steps are, or -1. */
static int shift_of(int64_t steps) {
  int shift = 0;
  while (shift < 30 && (int64_t)1 << shift < steps) shift++;
  return (int64_t)1 << shift == steps ? shift : -1;
}

static int is_served(const few_rows_args *a, tfu_dtype dtype, const tfu_device *device) {
  uintptr_t all = (uintptr_t)a->x | (uintptr_t)a->gamma;
  int64_t outputs = 0;
  for (int i = 0; i < TFU_COUNT(a->of); i++) {
    all |= (uintptr_t)a->of[i].kernel | (uintptr_t)a->of[i].scale;
    outputs |= a->of[i].outputs;
  }
  return device->capability >= 90 && (dtype == TFU_BF16 || (dtype == TFU_F16 && (a->rounds || !a->gamma))) &&
         a->inputs > 0 && a->inputs % QUANT_TILE_ROWS == 0 && held(a, FEW_ROWS_SPLITS) <= FEW_ROWS_TILED_HELD &&
         a->group_shift >= 0 && outputs % 8 == 0 && outputs < INT32_MAX / 4 && all % 16 == 0;
}

int tfu_few_rows_group_shift(const few_rows_args *a, int64_t group) {
  return group >= a->inputs ? 30 : group % FEW_ROWS_TILED_STEP ? -1 : shift_of(group / FEW_ROWS_TILED_STEP);
}

tfu_code tfu_few_rows_tiled_serves(tfu_call *call, few_rows_args a, int64_t group, tfu_dtype dtype, int *served) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  a.group_shift = tfu_few_rows_group_shift(&a, group);
  *served = is_served(&a, dtype, &device);
  return TFU_OK;
}

tfu_code tfu_few_rows_tiled_run(tfu_call *call, few_rows_args a, int bits, int64_t group, tfu_dtype dtype, int constant,
                                int *served) {
  static const char *const variants[] = {"8", "4", "8_whole", "4_whole"};
  static tfu_kernel kernels[] = {{.module = &module, .name = "few_rows_tiled_1", .variants = variants},
                                 {.module = &module, .name = "few_rows_tiled_2", .variants = variants}};
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  a.group_shift = tfu_few_rows_group_shift(&a, group);
  *served = is_served(&a, dtype, &device);
  if (!*served || !a.rows) return TFU_OK;
  a.splits = splits_of(&a, device.multiprocessors);
  call->kernel = "few rows, tiles";
  /* Eights of rows that a block has; two blocks shall have room on a multiprocessor. */
  const int n = a.rows > 8 && 2 * held(&a, a.splits) <= FEW_ROWS_TILED_HELD ? 2 : 1;
  const tfu_grid grid = {.x = (unsigned)(tiles_of(&a) * divide_up(a.rows, 8 * n) * a.splits),
                         .threads = 32 * FEW_ROWS_WARPS,
                         .shared = (unsigned)FEW_ROWS_TILED_SHARED(n, held(&a, a.splits), a.rounds),
                         .cluster = a.splits > 1 ? (unsigned)a.splits : 0,
                         .overlap = constant};
  return tfu_launch(call, &kernels[n - 1], (bits == 4) + 2 * a.rounds, dtype, grid, &a);
}
