#include "kernels/convolution/conv_kernel.h"

#include <limits.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(conv_kernel);
static tfu_kernel narrow_kernel = {.module = &module, .name = "conv_kernel_narrow"};
static tfu_kernel widen_kernel = {.module = &module, .name = "conv_kernel_widen"};

tfu_code tfu_conv_kernel_turn(tfu_call *call, tfu_dtype dtype, int widen, int64_t rows, int64_t outputs, void *wide,
                              void *narrow) {
  conv_kernel_args a = {.from = wide, .to = narrow, .rows = rows, .cols = outputs};
  if (widen) a = (conv_kernel_args){.from = narrow, .to = wide, .rows = outputs, .cols = rows};
  const int64_t blocks = divide_up(rows, CONV_KERNEL_TILE) * divide_up(outputs, CONV_KERNEL_TILE);
  if (!blocks) return TFU_OK;
  TFU_REQUIRE(call->err, blocks <= INT_MAX, "the kernel is too large: %lld blocks", (long long)blocks);
  const tfu_grid grid = {.x = (unsigned)blocks, .threads = TFU_THREADS};
  return tfu_launch(call, widen ? &widen_kernel : &narrow_kernel, 0, dtype, grid, &a);
}
