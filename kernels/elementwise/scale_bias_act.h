/* scale_bias_act.h - act(x * scale + bias) and its gradient, for the launch and for other ops. */
#ifndef TFUSE_SCALE_BIAS_ACT_H_
#define TFUSE_SCALE_BIAS_ACT_H_

#include "kernels/core/channels.h"
#include "tfuse.h"

enum { TFU_SCALE_BIAS_ACT_ACTIVATION }; /* the attribute */

/* x; scale and bias; y. An absent bias is -0: x + -0 is x, even for x = -0. */
static const tfu_channels tfu_scale_bias_act_channels = {1, 2, 1, 0, {1, -0.0f}};
/* dy and x; scale and bias; dx; dscale and dbias. */
static const tfu_channels tfu_scale_bias_act_grad_channels = {2, 2, 1, 2, {1, -0.0f}};

/* For other ops on the GPU, whose pass over memory this is too. The tensors are [n / cols, cols]; those of the call are
 * looked at for their alignment, all others begin on a 16-byte boundary. */

/* y = act(x + bias); bias may be NULL, y may be x. */
TFU_MUST_USE tfu_code tfu_bias_act_launch(tfu_call *call, int activation, tfu_dtype dtype, int64_t n, int64_t cols,
                                          void *y, const void *x, const void *bias);
/* dx = dy * act'(x), and its sums over the rows in dbias, unless that is empty; in its dtype, or the arithmetic type.
 * dx may be dy. */
TFU_MUST_USE tfu_code tfu_act_grad_launch(tfu_call *call, int activation, tfu_dtype dtype, int64_t n, int64_t cols,
                                          void *dx, const void *dy, const void *x, const tfu_tensor *dbias);

/* The same for other ops on the CPU: *dx is dy itself where the activation is linear, else scratch of the arithmetic
 * type.
 */
TFU_MUST_USE tfu_code tfu_act_grad_cpu(tfu_call *call, int64_t activation, const tfu_tensor *dy, const tfu_tensor *x,
                                       tfu_tensor *dx, const tfu_tensor *dbias);

#endif
