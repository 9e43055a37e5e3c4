/* quantized_conv.h - what the launches of QuantizedConv hand the device, and the tiles of its kernel on tensor cores.
 *
 * A block has DOWN x ACROSS warps, of 64 positions by OWN outputs each, and takes tile after tile of so many. It sums
 * LINE bytes of terms at a time, and has STAGES such parts in shared memory: those of the next tiles are on their way
 * while one is finished. */
#ifndef TFUSE_KERNELS_QUANTIZED_CONV_H_
#define TFUSE_KERNELS_QUANTIZED_CONV_H_

#include "kernels/convolution/conv.h"
#include "kernels/core/divisor.h"

/* What y is. */
enum { QUANTIZED_CONV_I8, QUANTIZED_CONV_F32, QUANTIZED_CONV_F16, QUANTIZED_CONV_BF16 };

/* v = sum * scale + bias + residual * residual_scale; y = act(v), of int8 round(act(v) * y_scale). The kernel lies as
 * [outputs, window, channels of a group]. */
typedef struct quantized_conv_args {
  conv_shape s;
  const int8_t *x, *kernel;
  const float *scale, *bias; /* [outputs]; bias may be NULL */
  const void *residual;      /* NULL: none */
  void *y;
  float residual_scale, y_scale;
  int relu, y_kind;
  int narrow; /* the residual is int8; else it is what y is */
  /* Of tiles: how many there are, and the numbers that places are divided by: tiles along the outputs and along the
   * positions, and positions along the last two axes of y. */
  int tiles;
  tfu_divisor across, down, high, wide;
} quantized_conv_args;

enum { QUANTIZED_CONV_HIGH = 64 /* of a warp */, QUANTIZED_CONV_LINE = 64, QUANTIZED_CONV_STAGES = 4 };
/* A part is a line for each position and output, and scale and bias, which the last part of a tile needs. */
#define QUANTIZED_CONV_STAGE(down, across, own) \
  (((down)*QUANTIZED_CONV_HIGH + (across) * (own)) * QUANTIZED_CONV_LINE + 8 * (across) * (own))
#define QUANTIZED_CONV_SHARED(down, across, own) (QUANTIZED_CONV_STAGES * QUANTIZED_CONV_STAGE(down, across, own))

#endif
