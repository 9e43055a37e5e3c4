/* conv_weights.h - a kernel that is kept in float32, beside data of 16 bits: it is rounded, or its gradient widened, on
 * the way between our order of its elements and cuDNN's, in one launch. */
#ifndef TFUSE_KERNELS_CONV_WEIGHTS_H_
#define TFUSE_KERNELS_CONV_WEIGHTS_H_

#include <stdint.h>

#define CONV_WEIGHTS_TILE 32 /* rows and columns that a block transposes */

/* The matrix [rows][cols] becomes its transpose. */
typedef struct conv_weights_args {
  const void *from;
  void *to;
  int64_t rows, cols;
} conv_weights_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* From wide, float32 [rows, outputs], to narrow, of `dtype` [outputs, rows]; or, where `widen` is set, back. */
TFU_MUST_USE tfu_code tfu_conv_weights_transpose(tfu_call *call, tfu_dtype dtype, int widen, int64_t rows,
                                                 int64_t outputs, void *wide, void *narrow);
#endif

#endif
