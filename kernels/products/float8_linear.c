#include "kernels/products/float8_linear.h"

#include "ops/products/float8_linear.h"

tfu_call *tfu_float8_as_linear(tfu_recycled *space, const tfu_tensor *x, const tfu_tensor *kernel) {
  const tfu_call *call = space->outer;
  tfu_call *linear = tfu_part(space, &tfu_linear);
  linear->attr[TFU_LINEAR_ACTIVATION] = call->attr[TFU_FLOAT8_ACTIVATION];
  linear->attr[TFU_LINEAR_TF32] = call->attr[TFU_FLOAT8_TF32];
  linear->in[TFU_LINEAR_X] = *x;
  linear->in[TFU_LINEAR_KERNEL] = *kernel;
  linear->in[TFU_LINEAR_BIAS] = call->in[TFU_FLOAT8_BIAS];
  linear->in[TFU_LINEAR_RESIDUAL] = call->in[TFU_FLOAT8_RESIDUAL];
  linear->out[TFU_LINEAR_Y] = call->out[TFU_FLOAT8_Y];
  linear->out[TFU_LINEAR_PRE] = call->out[TFU_FLOAT8_PRE];
  return linear;
}

tfu_call *tfu_float8_as_linear_grad(tfu_recycled *space, const tfu_tensor *dy, const tfu_tensor *x,
                                    const tfu_tensor *kernel) {
  const tfu_call *call = space->outer;
  tfu_call *grad = tfu_part(space, &tfu_linear_grad);
  grad->attr[TFU_LINEAR_TF32] = call->attr[TFU_FLOAT8_TF32];
  grad->in[TFU_LINGRAD_DY] = *dy;
  grad->in[TFU_LINGRAD_X] = *x;
  grad->in[TFU_LINGRAD_KERNEL] = *kernel;
  grad->out[TFU_LINGRAD_DX] = call->out[TFU_F8GRAD_DX];
  grad->out[TFU_LINGRAD_DKERNEL] = call->out[TFU_F8GRAD_DKERNEL];
  return grad;
}

tfu_code tfu_float8_check(tfu_call *call) {
  const tfu_tensor *kernel = &call->in[TFU_F8GRAD_KERNEL];
  const tfu_shape *history = &call->in[TFU_F8GRAD_HISTORY + TFU_FLOAT8_OF_KERNEL].shape;
  TFU_REQUIRE(call->err, !tfu_float8_kept(kernel) || tfu_count(history) == 0,
              "a kernel that is kept in float8 has no history, got kernel_history of shape %s", tfu_show(history).text);
  return TFU_OK;
}
