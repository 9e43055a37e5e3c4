#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/products/few_rows.h"

TFU_MODULE(few_rows_wgmma);

enum { COLUMNS = FEW_ROWS_WGMMA_COLUMNS, TERMS = FEW_ROWS_WGMMA_TERMS };

/* Of x that a block has at once, the fewest that there is a kernel for. */
static const int rows_of[] = {8, 16, 32, 64, 128};

static int64_t tiles_of(const few_rows_args *a) {
  int64_t tiles = 0;
  for (int i = 0; i < TFU_COUNT(a->of) && !a->gated; i++) tiles += divide_up(a->of[i].outputs, COLUMNS);
  return a->gated ? divide_up(a->of[0].outputs, COLUMNS / 2) : tiles;
}

/* Blocks that share the rows of the kernel: as many as there is one of on each multiprocessor, or fewer. They do not
 * depend on the rows of x. With eight, joining the sums of 128 rows took longer on an H200 than reading twice as much
 * by each block: 2048 x 2048 took 21 us, and with four 10. */
static int splits_of(const few_rows_args *a, int multiprocessors) {
  const int64_t steps = divide_up(a->inputs, TERMS), tiles = tiles_of(a);
  int splits = 1;
  while (splits < FEW_ROWS_WGMMA_SPLITS && steps >= 4 * splits && 2 * tiles * splits <= multiprocessors) splits *= 2;
  return splits;
}

/* Bytes for the stages of a block. In half of a multiprocessor's memory the next kernel's blocks find room beside it,
 * and read ahead. Of 128 rows, half would be three stages. */
static int room_of(int rows) { return rows < 128 ? 108 << 10 : 208 << 10; }

/* What wgmma needs is in cubins alone: not in PTX, which is for GPUs that come later. */
static int has_wgmma(const tfu_device *device) {
  const int image = tfu_image_for(module.images, device->capability);
  return device->capability == 90 && image >= 0 && !module.images[image].is_ptx;
}

tfu_code tfu_few_rows_wgmma_serves(tfu_call *call, const few_rows_args *a, tfu_dtype dtype, int *served) {
  uintptr_t all = (uintptr_t)a->x | (uintptr_t)a->residual;
  int64_t outputs = 0, most = a->inputs;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  for (int i = 0; i < TFU_COUNT(a->of); i++) {
    all |= (uintptr_t)a->of[i].kernel | (uintptr_t)a->of[i].bias | (uintptr_t)a->of[i].y;
    outputs |= a->of[i].outputs;
    most = most > a->of[i].outputs ? most : a->of[i].outputs;
  }
  *served = has_wgmma(&device) && (dtype == TFU_F16 || dtype == TFU_BF16) && a->inputs > 0 && a->inputs % 8 == 0 &&
            outputs % 8 == 0 && most <= INT32_MAX / 2 && all % 16 == 0;
  return TFU_OK;
}

static tfu_code map_all(few_rows_wgmma_args *w, int rows, tfu_error *err) {
  const few_rows_args *a = &w->a;
  for (int i = 0; i < TFU_COUNT(a->of); i++)
    if (a->of[i].kernel)
      TFU_TRY(tfu_map_matrix(&w->kernel[i], a->of[i].kernel, a->inputs, a->of[i].outputs, TERMS, err));
  return tfu_map_matrix(&w->x, a->x, a->rows, a->inputs, rows, err);
}

tfu_code tfu_few_rows_wgmma_run(tfu_call *call, few_rows_args a, tfu_dtype dtype, int constant, int *served) {
  static const char *const variants[] = {"8", "16", "32", "64", "128"};
  static tfu_kernel kernel = {.module = &module, .name = "few_rows_wgmma", .variants = variants};
  tfu_device device;
  int which = 0;
  TFU_TRY(tfu_few_rows_wgmma_serves(call, &a, dtype, served));
  if (!*served || !a.rows) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  while (which < TFU_COUNT(rows_of) - 1 && rows_of[which] < a.rows) which++;
  const int rows = rows_of[which], stage = FEW_ROWS_WGMMA_STAGE(rows);
  const int64_t tiles = tiles_of(&a);
  a.splits = splits_of(&a, device.multiprocessors);
  few_rows_wgmma_args w = {.a = a, .groups = (int)divide_up(a.rows, rows)};
  w.stages = (int)least(room_of(rows) / stage, FEW_ROWS_WGMMA_STAGES);
  TFU_TRY(map_all(&w, rows, call->err));
  const tfu_grid grid = {.x = (unsigned)(tiles * w.groups * a.splits),
                         .threads = 32 * FEW_ROWS_WARPS,
                         .shared = (unsigned)(w.stages * stage),
                         .cluster = (unsigned)a.splits,
                         .overlap = constant};
  call->kernel = "few rows, wgmma";
  return tfu_launch(call, &kernel, which, dtype, grid, &w);
}
