/* The epilogue of a convolution where cuDNN has no engine that does it too: y = act(pre + bias + residual), where y may
 * be pre. Bound by memory traffic: each tensor is read or written once. */
#include "kernels/core/device/channels.cuh"

/* Of pre and residual, with bias as the weight. */
TFU_CHANNELS_ACT(conv_finish, 2, 1, 1, 0, 0, { y[0] = value(x[0] + w[0] + x[1]); })

TFU_KERNEL_FOR_ACTIVATION(conv_finish, tfu_channels_args, linear)
TFU_KERNEL_FOR_ACTIVATION(conv_finish, tfu_channels_args, relu)
