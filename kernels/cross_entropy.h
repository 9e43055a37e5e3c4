/* cross_entropy.h - what the launch hands the device, for integer labels and for probabilities. */
#ifndef TFUSE_CROSS_ENTROPY_H_
#define TFUSE_CROSS_ENTROPY_H_

#include "kernels/core/rows.h"

#define TFU_CROSS_ENTROPY_ELEMENTS 32 /* of a row that a thread has at most */

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

#endif
