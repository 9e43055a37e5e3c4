/* conv_own.h - convolutions by our own kernels, and what they are handed. ops/convolution/conv.c has the formulas.
 *
 * direct  a thread per result; any type, groups, strides and dilation; all three products
 *
 * Sums are in float, in double for float64, in a fixed order. */
#ifndef TFUSE_KERNELS_CONV_OWN_H_
#define TFUSE_KERNELS_CONV_OWN_H_

#include "kernels/convolution/conv.h"

/* One of x, kernel and y is the result. */
typedef struct conv_args {
  conv_shape s;
  void *x, *kernel, *y;
  const void *bias, *residual; /* of y; NULL: none */
  int relu;
  int64_t slice; /* of ConvFilter: positions that one part of its sums has … */
  void *partial; /* … which are [slices][kernel], of the type that is computed in */
} conv_args;

/* Of ConvFilter's kernel: a block's outputs, and the threads that share each of them. */
enum { CONV_FILTER_OUTPUTS = 32, CONV_FILTER_SHARE = 8 };

#ifndef TFU_DEVICE
#include "tfuse.h"

typedef enum conv_product { CONV_FORWARD, CONV_DATA, CONV_FILTER, CONV_PRODUCTS } conv_product;

/* Queues it on the call's stream. */
TFU_MUST_USE tfu_code tfu_conv_own_run(tfu_call *call, conv_product product, tfu_dtype dtype, conv_args a);
#endif

#endif
