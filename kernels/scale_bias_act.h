/* scale_bias_act.h - what the launch hands the device. A count is 0 for "none", 1 for one number, else the channels. */
#ifndef TFUSE_SCALE_BIAS_ACT_H_
#define TFUSE_SCALE_BIAS_ACT_H_

#include "kernels/core/walk.h"

typedef struct scale_bias_act_args {
  tfu_walk walk;
  void *y;
  const void *x, *scale, *bias;
  int64_t scale_count, bias_count;
} scale_bias_act_args;

typedef struct scale_bias_act_grad_args {
  tfu_walk walk;
  void *dx;
  void *partial; /* [row blocks][2][width]: sums of g * x, sums of g; NULL: neither is wanted */
  const void *dy, *x, *scale, *bias;
  int64_t scale_count, bias_count;
} scale_bias_act_grad_args;

#endif
