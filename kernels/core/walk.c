#include "kernels/core/walk.h"

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* How many rows to join: a multiple of what aligns them, such that the last block of a joined row is nearly full. */
static int64_t rows_to_join(int64_t cols, int64_t pack) {
  const int64_t block = TFU_THREADS * pack;
  int64_t align = 1, best = 0, best_waste = 0;
  while (align * cols % pack) align *= 2;
  int64_t first = divide_up(divide_up(block, cols), align) * align;
  if (cols >= block) first = align;
  for (int64_t join = first, tries = 0; tries < 16; join += align, tries++) {
    const int64_t width = join * cols, whole = divide_up(width, block) * block;
    const int64_t waste = (whole - width) * 1024 / whole; /* in 1/1024 */
    if (!best || waste < best_waste) best = join, best_waste = waste;
    if (best_waste < 32) break;
  }
  return best;
}

tfu_code tfu_walk_plan(tfu_call *call, int64_t cols, int blocks_per_processor, tfu_walk *walk, tfu_grid *grid) {
  const int64_t pack = 16 / (int64_t)tfu_dtype_size(call->in[0].dtype), n = tfu_count(&call->in[0].shape);
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  *walk = (tfu_walk){.n = n, .width = rows_to_join(cols > 0 ? cols : 1, pack) * (cols > 0 ? cols : 1), .aligned = 1};
  for (int i = 0; i < TFU_MAX_ARGS; i++) {
    const tfu_tensor *both[] = {&call->in[i], &call->out[i]};
    for (int k = 0; k < 2; k++)
      if (both[k]->data && tfu_count(&both[k]->shape) == n && (uintptr_t)both[k]->data % 16) walk->aligned = 0;
  }
  const int64_t columns = divide_up(walk->width, TFU_THREADS * pack), rows = divide_up(n, walk->width);
  int64_t row_blocks = (int64_t)device.multiprocessors * blocks_per_processor / columns;
  if (row_blocks > rows) row_blocks = rows;
  if (row_blocks > 65535) row_blocks = 65535;
  if (row_blocks < 1) row_blocks = 1; /* no rows still have sums: zero */
  *grid = (tfu_grid){.x = (unsigned)columns, .y = (unsigned)row_blocks, .threads = TFU_THREADS};
  return TFU_OK;
}
