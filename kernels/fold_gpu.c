#include "kernels/core/walk.h"

TFU_MODULE(fold);
static tfu_kernel fold = {.module = &module, .name = "fold"};

static tfu_code launch(tfu_call *call, tfu_dtype dtype, tfu_fold_args a) {
  a.channels = 32;
  while (a.channels / 2 >= a.count) a.channels /= 2;
  const tfu_grid grid = {.x = (unsigned)((a.count + a.channels - 1) / a.channels), .threads = TFU_THREADS};
  return tfu_launch(call, &fold, 0, dtype, grid, &a);
}

tfu_code tfu_fold_gpu(tfu_call *call, const void *partial, int64_t blocks, int quantities, int quantity, int64_t width,
                      const tfu_tensor *out) {
  enum { FEW = 8 }; /* copies of a channel that one step sums along with the blocks */
  const tfu_dtype real = out->dtype == TFU_F64 ? TFU_F64 : TFU_F32;
  const char *from = (const char *)partial + quantity * width * (int64_t)tfu_dtype_size(real);
  tfu_fold_args a = {.out = out->data,
                     .from = from,
                     .blocks = blocks,
                     .stride = quantities * width,
                     .width = width,
                     .count = tfu_count(&out->shape)};
  if (a.count == 0) return TFU_OK;
  if (width / a.count > FEW) { /* first the blocks, every column by itself; then the copies */
    void *columns;
    TFU_TRY(tfu_scratch(call, (size_t)width * tfu_dtype_size(real), &columns));
    TFU_TRY(launch(
        call, real,
        (tfu_fold_args){
            .out = columns, .from = from, .blocks = blocks, .stride = a.stride, .width = width, .count = width}));
    a.from = columns;
    a.blocks = 1;
  }
  return launch(call, out->dtype, a);
}
