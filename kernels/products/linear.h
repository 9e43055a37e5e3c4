/* linear.h - what the launch hands the device. */
#ifndef TFUSE_KERNELS_LINEAR_H_
#define TFUSE_KERNELS_LINEAR_H_

#include "kernels/core/gpu/walk.h"

typedef struct linear_sums_args {
  const void *dy; /* [rows, cols] */
  void *partial;  /* [row blocks][cols] */
  int64_t rows, cols;
  int lanes;   /* threads side by side in a row, a power of two; the rest of a block takes other rows */
  int aligned; /* every row is so many packs */
} linear_sums_args;

#endif
