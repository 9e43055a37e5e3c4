/* scale_bias_act.h - what the launch hands the device. A count is 0 for "none", 1 for one number, else the channels. */
#ifndef TFUSE_SCALE_BIAS_ACT_H_
#define TFUSE_SCALE_BIAS_ACT_H_

#include "kernels/core/gpu/walk.h"

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

#ifndef TFU_DEVICE
/* For other ops, whose pass over memory this is too. The tensors are [n / cols, cols]; those of the call are looked at
 * for their alignment, all others begin on a 16-byte boundary. */

/* y = act(x + bias); bias may be NULL, y may be x. */
TFU_MUST_USE tfu_code tfu_bias_act_launch(tfu_call *call, int activation, tfu_dtype dtype, int64_t n, int64_t cols,
                                          void *y, const void *x, const void *bias);
/* dx = dy * act'(x), and its sums over the rows in dbias, unless that is empty; in its dtype, or the arithmetic type.
 * dx may be dy. */
TFU_MUST_USE tfu_code tfu_act_grad_launch(tfu_call *call, int activation, tfu_dtype dtype, int64_t n, int64_t cols,
                                          void *dx, const void *dy, const void *x, const tfu_tensor *dbias);
#endif

#endif
