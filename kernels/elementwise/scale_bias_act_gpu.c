#include "kernels/elementwise/scale_bias_act.h"

#include "kernels/core/gpu/channels.h"

TFU_MODULE(scale_bias_act);

static tfu_kernel forward = TFU_ACTIVATION_KERNEL("scale_bias_act");
static tfu_kernel backward = TFU_ACTIVATION_KERNEL("scale_bias_act_grad");

static int activation_of(const tfu_call *call) { return (int)call->attr[TFU_SCALE_BIAS_ACT_ACTIVATION].i; }

tfu_code tfu_scale_bias_act_gpu(tfu_call *call) {
  return tfu_channels_gpu(call, &forward, activation_of(call), &tfu_scale_bias_act_channels);
}

tfu_code tfu_scale_bias_act_grad_gpu(tfu_call *call) {
  return tfu_channels_gpu(call, &backward, activation_of(call), &tfu_scale_bias_act_grad_channels);
}

/* ---- for other ops ---- */

tfu_code tfu_bias_act_launch(tfu_call *call, int activation, tfu_dtype dtype, int64_t n, int64_t cols, void *y,
                             const void *x, const void *bias) {
  tfu_channels_args a = {.x = {x}, .y = {y}, .w = {NULL, bias}, .count = {0, bias ? cols : 0}};
  return tfu_channels_launch(call, &forward, activation, &tfu_scale_bias_act_channels, dtype, n, cols, &a, NULL);
}

tfu_code tfu_act_grad_launch(tfu_call *call, int activation, tfu_dtype dtype, int64_t n, int64_t cols, void *dx,
                             const void *dy, const void *x, const tfu_tensor *dbias) {
  tfu_channels_args a = {.x = {dy, x}, .y = {dx}};
  const tfu_tensor sums[2] = {{.dtype = dbias->dtype, .shape.rank = 1}, *dbias}; /* none of dy * x */
  if (tfu_count(&dbias->shape) == 0) cols = 1;
  return tfu_channels_launch(call, &backward, activation, &tfu_scale_bias_act_grad_channels, dtype, n, cols, &a, sums);
}
