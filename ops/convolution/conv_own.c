/* y = x convolved with kernel, by our own kernels (kernels/convolution/conv_own.h): Conv without what may follow.
 * conv.c has the formula; ConvData and ConvFilter are the gradients.
 *
 * `rung` says by which of the kernels, on a GPU; the CPU has one. */
#include "ops/convolution/conv_own.h"

TFU_SHAPE_RULE(own_shape) {
  return tfu_conv_shape(&in[TFU_CONV_X], &in[TFU_CONV_KERNEL], &in[TFU_CONV_OWN_SIZES], &out[0], attr, err);
}

const tfu_op tfu_conv_own = {
    .name = "ConvOwn",
    .doc =
        "x convolved with kernel, by tfuse's own kernels: on tensor cores, in shared memory, by constant memory or "
        "direct; sizes has the result's spatial axes.",
    .in = {"x: T", "kernel: T", "sizes: bool"},
    .out = {"y: T"},
    .attr = {TFU_CONV_ATTRS, TFU_CONV_OWN_RUNGS, TFU_T_FLOATS},
    .shape = own_shape,
    TFU_KERNELS(conv_own),
};
