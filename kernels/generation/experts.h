/* experts.h - an expert by the ops that it is made of, on either device, and what launches hand the device.
 *
 * A pair is a row of x and one expert of it: pair r * k + s is for numbers[r, s], of k to a row. */
#ifndef TFUSE_KERNELS_EXPERTS_H_
#define TFUSE_KERNELS_EXPERTS_H_

#include <stdint.h>

enum {
  EXPERTS_THREADS = 256,
  EXPERTS_ROWS = 4,    /* that a block multiplies a part of a kernel with, each time that it reads that */
  EXPERTS_LANES = 8,   /* threads that share a row of that part, a pack of 16 bytes each */
  EXPERTS_MOST = 1024, /* pairs of a launch */
};

/* y[pair] = x[pair / share] . kernel[e] for each pair of expert e; where `up` is given, act(that) * (x . up[e]). */
typedef struct expert_product_args {
  const void *x, *kernel, *up;
  void *y;
  const int64_t *numbers;
  int64_t inputs, outputs;
  int64_t pitch; /* elements from one row of a kernel to the next */
  int pairs, share, activation;
} expert_product_args;

/* y[r] = residual[r] + the sum of weights[r, s] * part[r, s]. */
typedef struct expert_sum_args {
  const void *weights, *part, *residual;
  const int64_t *numbers;
  void *y;
  int64_t elements, outputs; /* of y; of a row */
  int top_k, experts;
} expert_sum_args;

/* One expert after the other: sum[r] = sum[r] + weight of the expert * part[r], from 0 on in the first, and in the last
 * y[r] = residual[r] + that. */
typedef struct expert_add_args {
  const void *weights, *part, *residual;
  const int64_t *numbers;
  void *sum, *y;
  int64_t elements, outputs;
  int top_k, expert, experts;
} expert_add_args;

#ifndef TFU_DEVICE
#include "kernels/core/recycle.h"

/* The experts of a call one by one, of at most so many rows each, all in the same memory. */
typedef struct expert_parts {
  tfu_compute_fn *linear, *gated;
  void *wide, *inner; /* the two factors, and what they make */
  tfu_recycled space;
} expert_parts;
/* Takes the memory. The call must have taken all of its own before. */
TFU_MUST_USE tfu_code tfu_expert_open(tfu_call *call, int64_t rows, expert_parts *parts);
/* y = expert(e, x). */
TFU_MUST_USE tfu_code tfu_expert(tfu_call *call, expert_parts *parts, int64_t e, tfu_tensor x, tfu_tensor y);
#endif

#endif
