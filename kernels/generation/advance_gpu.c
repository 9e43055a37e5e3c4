#include "kernels/generation/advance.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/transfer.h"

TFU_MODULE(advance);

tfu_code tfu_advance_gpu(tfu_call *call) {
  static tfu_kernel kernel = {.module = &module, .name = "advance", .keys = tfu_any};
  for (int i = 0; i < 3; i++)
    if (call->out[i].data != call->in[1 + i].data)
      TFU_TRY(tfu_transfer_take(call->stream, call->out[i].data, call->in[1 + i].data,
                                (size_t)tfu_count(&call->out[i].shape) * sizeof(int64_t), call->err));
  advance_args a = tfu_advance_args(call);
  const tfu_grid grid = {.x = (unsigned)divide_up(a.batch, ADVANCE_THREADS), .threads = ADVANCE_THREADS};
  return tfu_launch(call, &kernel, 0, 0, grid, &a);
}
