/* y = act(a) * b, and its gradient: da = dy * b * act'(a), db = dy * act(a). a and b may be the halves of rows. */
#include "kernels/core/device/channels.cuh"

enum { A_AND_B = 3 }; /* as halves: two bits, after those of the tensors before them */

TFU_CHANNELS_ACT(gated, 2, 0, 1, 0, A_AND_B, { y[0] = value(x[0]) * x[1]; })

TFU_CHANNELS_ACT(gated_grad, 3, 0, 2, 0, (A_AND_B << 1 | A_AND_B << 3), {
  y[0] = x[0] * x[2] * slope(x[1]);
  y[1] = x[0] * value(x[1]);
})

#define X(name)                                             \
  TFU_KERNEL_FOR_ACTIVATION(gated, tfu_channels_args, name) \
  TFU_KERNEL_FOR_ACTIVATION(gated_grad, tfu_channels_args, name)
TFU_ACTIVATIONS(X)
#undef X
