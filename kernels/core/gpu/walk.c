#include "kernels/core/gpu/walk.h"

#include "kernels/core/arithmetic.h"

/* The length of a joined row, in elements. Rows that start inside a cache line cost the odd shapes a fifth of their
 * speed, and a last block of threads with little to do costs the narrow ones more: so enough rows to end on a line, and
 * of those numbers one that nearly fills its blocks. Where that would be all rows, the whole tensor is one joined row.
 */
static int64_t joined_width(int64_t rows, int64_t cols, int64_t size) {
  enum { LINE = 128, TRIES = 16, GOOD = 32 /* of 1024 */ };
  const int64_t pack = 16 / size, block = TFU_THREADS * pack;
  int64_t align = 1, best = 0, best_waste = 0;
  while (align * cols * size % LINE) align *= 2;
  int64_t join = divide_up(divide_up(block, cols), align) * align;
  for (int tries = 0; tries < TRIES && !(best && best_waste < GOOD); tries++, join += align) {
    const int64_t width = join * cols, whole = divide_up(width, block) * block;
    const int64_t waste = (whole - width) * 1024 / whole;
    if (!best || waste < best_waste) best = join, best_waste = waste;
  }
  return best < rows ? best * cols : divide_up(rows * cols, pack) * pack;
}

tfu_code tfu_walk_plan_of(tfu_call *call, int64_t n, tfu_dtype dtype, int64_t cols, int blocks_per_processor,
                          tfu_walk *walk, tfu_grid *grid) {
  const int64_t size = (int64_t)tfu_dtype_size(dtype);
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  if (cols < 1) cols = 1;
  *walk =
      (tfu_walk){.n = n, .width = joined_width(n < cols ? 1 : n / cols, cols, size), .aligned = tfu_aligned(call, n)};
  walk->rows = (int)(n / walk->width); /* a width of 512 or more, or n itself: an int will do */
  const int64_t columns = divide_up(walk->width * size, TFU_THREADS * 16), rows = divide_up(n, walk->width);
  int64_t row_blocks = (int64_t)device.multiprocessors * blocks_per_processor / columns;
  if (row_blocks > rows) row_blocks = rows;
  if (row_blocks > 65535) row_blocks = 65535;
  if (row_blocks < 1) row_blocks = 1; /* no rows still have sums: zero */
  *grid = (tfu_grid){.x = (unsigned)columns, .y = (unsigned)row_blocks, .threads = TFU_THREADS};
  return TFU_OK;
}

tfu_code tfu_walk_plan(tfu_call *call, int64_t cols, int blocks_per_processor, tfu_walk *walk, tfu_grid *grid) {
  const tfu_tensor *x = &call->in[0];
  return tfu_walk_plan_of(call, tfu_count(&x->shape), x->dtype, cols, blocks_per_processor, walk, grid);
}
