/* conv_own.h - convolutions by our own kernels, and what they are handed. ops/convolution/conv.c has the formulas.
 *
 * Forward there is a ladder of four, each with one idea more than the one before:
 *
 * - direct: a thread per result, which reads window and kernel from memory.
 * - constant: a thread per pack of a position's outputs; the kernel comes from constant memory, all lanes reading the
 *   same.
 * - shared: tiles of x in shared memory, for all taps of the window; 8 x 4 results per thread.
 * - tensor: the windows as rows of a matrix that is never written: tiles of it, copied asynchronously, on tensor cores.
 *
 * direct takes any type, groups, strides and dilation, and makes ConvData and ConvFilter, too. Sums are in float, in
 * double for float64, in a fixed order. */
#ifndef TFUSE_KERNELS_CONV_OWN_H_
#define TFUSE_KERNELS_CONV_OWN_H_

#include "kernels/convolution/conv.h"
#include "kernels/core/divisor.h"

typedef enum conv_pass { CONV_FORWARD, CONV_DATA, CONV_FILTER, CONV_PASSES } conv_pass;

/* One of x, kernel and y is the result. */
typedef struct conv_args {
  conv_shape s;
  void *x, *kernel, *y;
  const void *bias, *residual; /* of y; NULL: none */
  int relu;
  int wide; /* the kernel is float32, all else of 16 bits: cuDNN's way alone takes it so (conv_weights.h) */
  tfu_divisor y_high, y_wide; /* of tensor: y's last two axes, which positions are divided by */
  int64_t slice;              /* of ConvFilter: positions that one part of its sums has … */
  void *partial;              /* … which are [slices][kernel], of the type that is computed in */
} conv_args;

/* Of ConvFilter's kernel: a block's outputs, and the threads that share each of them. */
enum { CONV_FILTER_OUTPUTS = 32, CONV_FILTER_SHARE = 8 };

/* Constant memory, all that a GPU has for one module. */
enum { CONV_CONSTANT_BYTES = 1 << 16 };

/* Of the shared kernel: a block's results, HIGH x WIDE positions by OUTPUTS, and the channels of x that are in shared
 * memory at a time. */
enum { CONV_TILE_HIGH = 8, CONV_TILE_WIDE = 16, CONV_TILE_OUTPUTS = 64, CONV_TILE_CHANNELS = 8 };

/* Elements of x along an axis that the windows of so many results see, those between them included. */
static inline int64_t conv_seen(const conv_shape *s, int axis, int results) {
  return (results - 1) * s->stride[axis] + (s->window[axis] - 1) * s->dilation[axis] + 1;
}

#ifndef TFU_DEVICE
#include "ops/convolution/conv_own.h"
#include "tfuse.h"

/* Queues it on the call's stream: the forward pass by the rung that is wanted, or by the next one below it that
 * serves, and then call->why says why, unless it says something already. tf32: whether float32 may be rounded to that.
 */
TFU_MUST_USE tfu_code tfu_conv_own_run(tfu_call *call, conv_pass pass, conv_rung rung, int tf32, tfu_dtype dtype,
                                       conv_args a);
#endif

#endif
