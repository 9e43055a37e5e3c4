/* cross_entropy.h - what the launch hands the device, for integer labels and for probabilities. */
#ifndef TFUSE_CROSS_ENTROPY_H_
#define TFUSE_CROSS_ENTROPY_H_

#include "kernels/core/gpu/rows.h"

#define TFU_CROSS_ENTROPY_ELEMENTS 32 /* of a row that a thread has at most */
/* The same of two tensors, logits and probabilities: at [8192, 50304] in bfloat16, on an H200, blocks with 32 of each
 * take 0.68 ms where those with 16 take 0.43. */
#define TFU_DENSE_ELEMENTS 16

typedef struct cross_entropy_args {
  tfu_row_plan rows;
  const void *x, *targets;
  const void *labels; /* int64 if wide, else int32; NULL: targets are given                                    */
  void *loss, *stats; /* of each row: stats are (maximum, sum of exponentials), and with targets their sum     */
  void *dx;           /* of the gradient, which reads stats and dloss                                          */
  void *dtargets;     /* NULL: not wanted                                                                      */
  const void *dloss;
  int64_t ignore;
  int wide;
  float smoothing, z_loss;
} cross_entropy_args;

#ifndef TFU_DEVICE
/* For ops that have rows of logits in memory of their own: all of it, or its gradient. `a` has everything but the plan;
 * `aligned` says that x, and dx, begin on a 16-byte boundary. dx may be x. */
TFU_MUST_USE tfu_code tfu_sparse_cross_entropy_launch(tfu_call *call, int gradient, tfu_dtype dtype, int64_t rows,
                                                      int64_t cols, int aligned, cross_entropy_args *a);
#endif

#endif
