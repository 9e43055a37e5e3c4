/* gated.h - what the launch hands the device. half is 0 where a and b are tensors of their own. */
#ifndef TFUSE_GATED_H_
#define TFUSE_GATED_H_

#include "kernels/core/gpu/walk.h"

typedef struct gated_args {
  tfu_walk walk;
  void *y;
  const void *a, *b;
  int64_t half; /* a and b are halves of rows of 2 * half elements */
} gated_args;

typedef struct gated_grad_args {
  tfu_walk walk;
  void *da, *db;
  const void *dy, *a, *b;
  int64_t half;
} gated_grad_args;

#endif
