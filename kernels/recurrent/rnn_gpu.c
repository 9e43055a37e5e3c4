/* Rnn on the GPU: by cuDNN where it serves and is faster, otherwise by the ops that it is made of. */
#include "kernels/recurrent/rnn.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/recurrent/recurrence_persistent.h"
#include "ops/recurrent/recurrence.h"
#include "ops/recurrent/rnn.h"

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

/* From so many sequences on, Recurrence's persistent kernel and a product for all steps are faster than cuDNN. On an
 * H200, us a step forward, product included, LSTM: bfloat16, batch 64, 1,024 units 7.7 and 11.9; float16, batch 64 7.7
 * and 8.4, batch 8 3.0 and 2.8; float32 by TF32, batch 8 4.3 and 7.7, batch 1 3.4 and 1.6. */
static const int64_t fewest[TFU_FLOATS] = {[TFU_F32] = 4, [TFU_F16] = 17, [TFU_BF16] = 1, [TFU_F64] = INT64_MAX};

/* Sizes alone decide, since what the layer keeps for its gradient depends on it. */
static tfu_code is_by_parts(tfu_call *call, const tfu_tensor *in, int *chosen) {
  const tfu_tensor *x = &in[TFU_RNN_X], *recurrent = &in[TFU_RNN_RECURRENT];
  const int cell = (int)call->attr[TFU_RNN_CELL].i;
  const recurrence_sizes sizes = {.batch = x->shape.dim[0],
                                  .steps = x->shape.dim[1],
                                  .units = recurrent->shape.dim[0],
                                  .lstm = cell == TFU_CELL_LSTM,
                                  .gates = tfu_cell_gates(cell),
                                  .kept = tfu_cell_kept(cell)};
  *chosen = 0;
  if (sizes.batch < fewest[x->dtype]) return TFU_OK;
  TFU_TRY(tfu_recurrence_persists(call, &sizes, x->dtype, chosen));
  if (*chosen) call->why = "the recurrent kernel stays in registers";
  return TFU_OK;
}

tfu_code tfu_rnn_gpu(tfu_call *call) {
  int served;
  TFU_TRY(is_by_parts(call, call->in, &served));
  if (served) return tfu_rnn_by_parts(call, &parts);
  TFU_TRY(tfu_rnn_cudnn(call, 0, &served, &call->why));
  return served ? TFU_OK : tfu_rnn_by_parts(call, &parts);
}

tfu_code tfu_rnn_grad_gpu(tfu_call *call) {
  int served;
  TFU_TRY(is_by_parts(call, call->in + TFU_RNNGRAD_X, &served));
  if (served) return tfu_rnn_grad_by_parts(call, &parts);
  TFU_TRY(tfu_rnn_cudnn(call, 1, &served, &call->why));
  return served ? TFU_OK : tfu_rnn_grad_by_parts(call, &parts);
}
