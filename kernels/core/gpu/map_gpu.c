#include "kernels/core/gpu/map_gpu.h"

#include "kernels/core/gpu/choice.h"
#include "kernels/core/gpu/walk.h"

TFU_CHOICE(blocks, 64, 1, 256); /* per multiprocessor */

tfu_code tfu_map_gpu(tfu_call *call, tfu_kernel *kernel) {
  tfu_map_args a = {.y = call->out[0].data};
  tfu_grid grid;
  TFU_TRY(tfu_walk_plan(call, 1, blocks(), &a.walk, &grid));
  for (int i = 0; i < 2 && call->op->in[i]; i++) {
    a.in[i] = call->in[i].data;
    a.one[i] = call->in[i].shape.rank == 0;
  }
  return tfu_launch(call, kernel, 0, call->in[0].dtype, grid, &a);
}
