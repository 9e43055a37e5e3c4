/* softmax.h - what the launch hands the device. */
#ifndef TFUSE_SOFTMAX_H_
#define TFUSE_SOFTMAX_H_

#include "kernels/core/gpu/rows.h"
#include "kernels/core/stretch.h"

#define TFU_SOFTMAX_ELEMENTS 32 /* of a row that a thread has at most */

enum { TFU_MASK_NONE, TFU_MASK_KEEP, TFU_MASK_ADD };

typedef struct softmax_args {
  tfu_row_plan rows;
  void *y;
  const void *x, *mask;
  tfu_stretch stretch; /* where the mask's values for a row are */
  int mask_kind, log;
  float scale;
} softmax_args;

typedef struct softmax_grad_args {
  tfu_row_plan rows;
  void *dx;
  const void *dy, *y;
  int log;
  float scale;
} softmax_grad_args;

#endif
