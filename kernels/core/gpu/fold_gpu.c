#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(fold);
static tfu_kernel fold = {.module = &module, .name = "fold"};

/* A block sums 32 channels, a line of memory, or 8, a sector, where that leaves too few blocks to fill a GPU. */
static tfu_code launch(tfu_call *call, tfu_dtype dtype, tfu_fold_args a) {
  enum { LINE = 32, SECTOR = 8, MANY = 4096 };
  int64_t most = 1;
  for (int q = 0; q < a.quantities; q++)
    if (a.count[q] > most) most = a.count[q];
  a.channels = most >= MANY ? LINE : SECTOR;
  const int64_t blocks = divide_up(most, a.channels);
  const tfu_grid grid = {.x = (unsigned)blocks, .y = (unsigned)a.quantities, .threads = TFU_THREADS};
  return tfu_launch(call, &fold, 0, dtype, grid, &a);
}

tfu_code tfu_fold_gpu(tfu_call *call, const void *partial, int64_t blocks, int64_t width, int quantities,
                      const tfu_tensor *out) {
  enum { FEW = 1024 }; /* partial sums of a channel that one step adds up */
  const tfu_dtype real = tfu_real(out->dtype);
  tfu_fold_args a = {.from = partial, .blocks = blocks, .width = width, .quantities = quantities};
  int64_t most_copies = 0;
  if (quantities > TFU_FOLD_MOST)
    return tfu_fail(call->err, TFU_INTERNAL, "%d sums at once, and a fold has room for %d", quantities, TFU_FOLD_MOST);
  for (int q = 0; q < quantities; q++) {
    a.out[q] = out[q].data;
    a.count[q] = tfu_count(&out[q].shape);
    if (a.count[q] && width / a.count[q] > most_copies) most_copies = width / a.count[q];
  }
  if (most_copies == 0) return TFU_OK;            /* nothing is wanted */
  if (blocks > 1 && blocks * most_copies > FEW) { /* first the blocks, every column by itself; then the copies */
    void *columns;
    TFU_TRY(tfu_scratch(call, (size_t)(quantities * width) * tfu_dtype_size(real), &columns));
    tfu_fold_args first = a;
    for (int q = 0; q < quantities; q++) {
      first.out[q] = (char *)columns + (size_t)(q * width) * tfu_dtype_size(real);
      first.count[q] = width;
    }
    TFU_TRY(launch(call, real, first));
    a.from = columns;
    a.blocks = 1;
  }
  return launch(call, out->dtype, a);
}
