/* dropout.h - what the launch hands the device. */
#ifndef TFUSE_DROPOUT_H_
#define TFUSE_DROPOUT_H_

#include "kernels/core/gpu/walk.h"

typedef struct dropout_args {
  tfu_walk walk;
  void *y;
  const void *x, *seed;
  float rate;
} dropout_args;

#endif
