#include "kernels/convolution/conv_weights.h"

#include <limits.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(conv_weights);
static tfu_kernel narrow_kernel = {.module = &module, .name = "conv_weights_narrow"};
static tfu_kernel widen_kernel = {.module = &module, .name = "conv_weights_widen"};

tfu_code tfu_conv_weights_transpose(tfu_call *call, tfu_dtype dtype, int widen, int64_t rows, int64_t outputs,
                                    void *wide, void *narrow) {
  conv_weights_args a = {.from = wide, .to = narrow, .rows = rows, .cols = outputs};
  if (widen) a = (conv_weights_args){.from = narrow, .to = wide, .rows = outputs, .cols = rows};
  const int64_t blocks = divide_up(rows, CONV_WEIGHTS_TILE) * divide_up(outputs, CONV_WEIGHTS_TILE);
  if (!blocks) return TFU_OK;
  TFU_REQUIRE(call->err, blocks <= INT_MAX, "the kernel is too large: %lld blocks", (long long)blocks);
  const tfu_grid grid = {.x = (unsigned)blocks, .threads = TFU_THREADS};
  return tfu_launch(call, widen ? &widen_kernel : &narrow_kernel, 0, dtype, grid, &a);
}
