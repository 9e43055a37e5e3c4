#include "kernels/elementwise/dropout.h"

#include "kernels/core/gpu/tunable.h"

TFU_MODULE(dropout);

TFU_TUNABLE(blocks, 64, 1, 256); /* per multiprocessor */

tfu_code tfu_dropout_gpu(tfu_call *call) {
  static tfu_kernel kernel = {.module = &module, .name = "dropout"};
  const tfu_tensor *x = &call->in[0];
  dropout_args a = {.y = call->out[0].data, .x = x->data, .seed = call->in[1].data, .rate = call->attr[0].f};
  tfu_grid grid;
  TFU_TRY(tfu_walk_plan(call, 1, blocks(), &a.walk, &grid));
  return tfu_launch(call, &kernel, 0, x->dtype, grid, &a);
}
