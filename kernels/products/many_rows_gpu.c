#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/products/few_rows.h"
#include "kernels/products/quantized_kernel.h"

TFU_MODULE(many_rows);

/* What wgmma needs is in cubins alone: not in PTX, which is for GPUs that come later. */
static int has_wgmma(const tfu_device *device) {
  const int image = tfu_image_for(module.images, device->capability);
  return device->capability == 90 && image >= 0 && !module.images[image].is_ptx;
}

/* Blocks that share the rows of the kernel where there are few units. Those of a larger cluster find room together on
 * the multiprocessors of one part of the GPU only, where a quarter of the room may be left over. */
static int splits_of(int64_t units, int64_t inputs, int multiprocessors) {
  const int64_t steps = divide_up(inputs, MANY_ROWS_DEEP);
  int n = 1;
  while (n < FEW_ROWS_SPLITS && n < steps && units * (n + 1) <= (n > 1 ? multiprocessors * 3 / 4 : multiprocessors))
    n++;
  return n;
}

tfu_code tfu_many_rows_serves(tfu_call *call, few_rows_args a, int64_t group, tfu_dtype dtype, int *served) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const few_rows_product *p = &a.of[0];
  const uintptr_t all =
      (uintptr_t)a.x | (uintptr_t)a.residual | (uintptr_t)p->kernel | (uintptr_t)p->bias | (uintptr_t)p->y;
  *served = has_wgmma(&device) && dtype == TFU_BF16 && a.inputs > 0 && a.inputs % QUANT_TILE_ROWS == 0 &&
            a.inputs < INT32_MAX && p->outputs % 8 == 0 && p->outputs < INT32_MAX / 4 && all % 16 == 0 &&
            tfu_few_rows_group_shift(&a, group) >= 0;
  return TFU_OK;
}

tfu_code tfu_many_rows_run(tfu_call *call, few_rows_args a, int bits, int64_t group, tfu_dtype dtype, int *served) {
  static const char *const variants[] = {"8", "4"};
  static tfu_kernel kernels[] = {{.module = &module, .name = "many_rows_64", .variants = variants},
                                 {.module = &module, .name = "many_rows_128", .variants = variants}};
  tfu_device device;
  TFU_TRY(tfu_many_rows_serves(call, a, group, dtype, served));
  if (!*served || !a.rows) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  many_rows_args all = {.of = a};
  all.of.group_shift = tfu_few_rows_group_shift(&a, group);
  call->kernel = "many rows, tiles";
  const int wide = a.rows > 64, n = wide ? 128 : 64;
  const int64_t units = divide_up(a.of[0].outputs, FEW_ROWS_TILED_COLUMNS) * divide_up(a.rows, n);
  all.of.splits = splits_of(units, a.inputs, device.multiprocessors);
  const tfu_grid grid = {.x = (unsigned)least(units * all.of.splits, device.multiprocessors),
                         .threads = MANY_ROWS_THREADS,
                         .cluster = all.of.splits > 1 ? (unsigned)all.of.splits : 0,
                         .shared = (unsigned)MANY_ROWS_SHARED(bits, n)};
  TFU_TRY(tfu_map_matrix(&all.x, a.x, a.rows, a.inputs, n, call->err));
  return tfu_launch(call, &kernels[wide], bits == 4, dtype, grid, &all);
}
