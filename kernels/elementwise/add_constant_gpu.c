#include "kernels/core/gpu/choice.h"
#include "kernels/core/gpu/map_gpu.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(add_constant);
#include "kernels/elementwise/add_constant.h"

TFU_CHOICE(grad_blocks, 8, 1, 256); /* per multiprocessor; each leaves a partial sum per thread and column */

tfu_code tfu_add_constant_grad_gpu(tfu_call *call) {
  static tfu_kernel kernel = {.module = &module, .name = "add_constant_grad"};
  const tfu_tensor *dy = &call->in[0];
  tfu_map_args a = {.in = {dy->data}};
  tfu_grid grid;
  TFU_TRY(tfu_walk_plan(call, 1, grad_blocks(), &a.walk, &grid));
  TFU_TRY(tfu_scratch(call, (size_t)(grid.y * a.walk.width) * tfu_dtype_size(tfu_real(dy->dtype)), &a.y));
  TFU_TRY(tfu_launch(call, &kernel, 0, dy->dtype, grid, &a));
  return tfu_fold_gpu(call, a.y, grid.y, a.walk.width, 1, &call->out[0]);
}
