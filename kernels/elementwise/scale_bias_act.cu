/* y = act(x * scale + bias), and its gradient: g = dy * act'(x * scale + bias), dx = g * scale, dscale = sum of g * x,
 * dbias = sum of g. Bound by memory traffic: each tensor is read or written once. */
#include "kernels/core/device/channels.cuh"

TFU_CHANNELS_ACT(scale_bias_act, 1, 2, 1, 0, 0, { y[0] = value(x[0] * w[0] + w[1]); })

TFU_CHANNELS_ACT(scale_bias_act_grad, 2, 2, 1, 2, 0, {
  const REAL g = x[0] * slope(x[1] * w[0] + w[1]);
  y[0] = g * w[0];
  s[0] = g * x[1];
  s[1] = g;
})

#define X(name)                                                      \
  TFU_KERNEL_FOR_ACTIVATION(scale_bias_act, tfu_channels_args, name) \
  TFU_KERNEL_FOR_ACTIVATION(scale_bias_act_grad, tfu_channels_args, name)
TFU_ACTIVATIONS(X)
#undef X
