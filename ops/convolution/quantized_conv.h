/* quantized_conv.h - arguments and attributes of QuantizedConv, as kernels see them. */
#ifndef TFUSE_QUANTIZED_CONV_H_
#define TFUSE_QUANTIZED_CONV_H_

#include "ops/convolution/conv.h"

enum { TFU_QCONV_X, TFU_QCONV_KERNEL, TFU_QCONV_SCALE, TFU_QCONV_BIAS, TFU_QCONV_RESIDUAL, TFU_QCONV_SIZES };

/* Products of whole numbers need no tf32: the first one is relu. The window's are where Conv has them. */
enum { TFU_QCONV_RELU = TFU_CONV_TF32, TFU_QCONV_RESIDUAL_SCALE = TFU_CONV_BEFORE + 1, TFU_QCONV_Y_SCALE };

/* A kernel as Conv has it: [spatial axes, channels of a group, outputs]. */
static inline tfu_shape tfu_qconv_kernel(const tfu_shape *kernel) {
  tfu_shape s = *kernel;
  for (int i = 1; i < s.rank; i++) s.dim[i - 1] = kernel->dim[i];
  if (s.rank > 0) s.dim[s.rank - 1] = kernel->dim[0];
  return s;
}

/* What a step of the residual stands for. */
static inline float tfu_qconv_residual_scale(const tfu_call *call) {
  return call->in[TFU_QCONV_RESIDUAL].dtype == TFU_I8 ? call->attr[TFU_QCONV_RESIDUAL_SCALE].f : 1;
}

/* Of types, which a shape rule does not see. */
static inline TFU_MUST_USE tfu_code tfu_qconv_check(const tfu_call *call) {
  const tfu_tensor *residual = &call->in[TFU_QCONV_RESIDUAL];
  TFU_REQUIRE(call->err,
              !tfu_given(&residual->shape) || residual->dtype == TFU_I8 || residual->dtype == call->out[0].dtype,
              "residual must be int8, or %s like the result, got %s", tfu_dtype_name(call->out[0].dtype),
              tfu_dtype_name(residual->dtype));
  return TFU_OK;
}

#endif
