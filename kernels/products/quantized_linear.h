/* quantized_linear.h - what the launch hands the device. */
#ifndef TFUSE_KERNELS_QUANTIZED_LINEAR_H_
#define TFUSE_KERNELS_QUANTIZED_LINEAR_H_

#include "kernels/core/gpu/walk.h"
#include "kernels/products/quantized_kernel.h"

typedef struct dequantize_args {
  quantized_kernel kernel;
  void *w; /* [inputs, outputs] */
} dequantize_args;

#endif
