/* Rnn on the GPU: by cuDNN where it serves, otherwise by the ops that it is made of. */
#include "kernels/recurrent/rnn.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(rnn);

static tfu_kernel before_kernel = {.module = &module, .name = "rnn_before"};

static tfu_code before(tfu_call *call, tfu_dtype dtype, rnn_before_args *a) {
  const int64_t blocks = divide_up(a->batch * a->steps * a->units, TFU_THREADS);
  TFU_REQUIRE(call->err, blocks <= INT32_MAX, "%lld states are too many for one launch",
              (long long)(a->batch * a->steps * a->units));
  return tfu_launch(call, &before_kernel, 0, dtype, (tfu_grid){.x = (unsigned)blocks, .threads = TFU_THREADS}, a);
}

static const rnn_parts parts = {.linear = tfu_linear_gpu,
                                .linear_grad = tfu_linear_grad_gpu,
                                .recurrence = tfu_recurrence_gpu,
                                .recurrence_grad = tfu_recurrence_grad_gpu,
                                .before = before};

tfu_code tfu_rnn_gpu(tfu_call *call) {
  int served;
  TFU_TRY(tfu_rnn_cudnn(call, 0, &served, &call->why));
  return served ? TFU_OK : tfu_rnn_by_parts(call, &parts);
}

tfu_code tfu_rnn_grad_gpu(tfu_call *call) {
  int served;
  TFU_TRY(tfu_rnn_cudnn(call, 1, &served, &call->why));
  return served ? TFU_OK : tfu_rnn_grad_by_parts(call, &parts);
}
