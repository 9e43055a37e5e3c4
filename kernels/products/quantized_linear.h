/* quantized_linear.h - what the launches hand the device. */
#ifndef TFUSE_KERNELS_QUANTIZED_LINEAR_H_
#define TFUSE_KERNELS_QUANTIZED_LINEAR_H_

#include "kernels/core/gpu/walk.h"
#include "kernels/products/quantized_kernel.h"

typedef struct dequantize_args {
  quantized_kernel kernel;
  void *w; /* [inputs, outputs], or codes, [outputs, inputs] of int8 */
} dequantize_args;

enum {
  QUANT_TURNED_ROWS = 256, /* of a kernel, that a block transposes          */
  QUANT_WARP_TILES = 8     /* one below the other, that become numbers again */
};

/* What becomes of the rows of x: they are divided, number by number, or rounded: to whole numbers up to 127, or to what
 * these stand for. */
enum { QUANT_DIVIDED, QUANT_WHOLE, QUANT_ROUNDED };
typedef struct quantize_rows_args {
  const void *x, *input_scale; /* input_scale, where rows are divided */
  void *y;                     /* like x, or int8 */
  float *row_scale, *row_sum;  /* of whole numbers: what one stands for, and the sum of those in int8 */
  int64_t inputs;
  int how;
} quantize_rows_args;

/* y = act((sums - zero * row_sum) * scale * row_scale + bias) + residual. */
typedef struct quantized_finish_args {
  quantized_kernel kernel; /* of one group */
  const int32_t *sums;     /* [rows, outputs] */
  const float *row_scale, *row_sum;
  const void *bias, *residual; /* may be NULL */
  void *y;
  int64_t rows;
  int activation;
} quantized_finish_args;

#endif
