/* linear.h - what the launch hands the device. */
#ifndef TFUSE_KERNELS_LINEAR_H_
#define TFUSE_KERNELS_LINEAR_H_

#include "kernels/core/walk.h"

typedef struct linear_finish_args {
  tfu_walk walk;
  void *y;
  const void *pre, *residual, *bias;
  int64_t bias_count; /* 0: none */
} linear_finish_args;

typedef struct linear_sums_args {
  tfu_walk walk;
  const void *dy;
  void *partial; /* [row blocks][width] */
} linear_sums_args;

#endif
