/* linear_cross_entropy.h - what the launch hands the device. */
#ifndef TFUSE_KERNELS_LINEAR_CROSS_ENTROPY_H_
#define TFUSE_KERNELS_LINEAR_CROSS_ENTROPY_H_

#include <stdint.h>

/* The sum of losses times weights, by one block. */
typedef struct linear_cross_entropy_total_args {
  void *total;
  const void *losses, *weights;
  int64_t n;
} linear_cross_entropy_total_args;

#define TFU_NARROW_ELEMENTS 8 /* of a thread */

/* to = from, rounded. Both begin on a 16-byte boundary. */
typedef struct linear_cross_entropy_narrow_args {
  void *to;
  const float *from;
  int64_t n;
} linear_cross_entropy_narrow_args;

#endif
