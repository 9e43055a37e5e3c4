/* quantized_conv.h - what the launches of QuantizedConv hand the device, and the tiles of its kernel on tensor cores.
 *
 * A block takes tile after tile. It sums 64 or 128 bytes of terms at a time, and has some such parts in shared memory:
 * those of the next tiles are on their way while one is finished. */
#ifndef TFUSE_KERNELS_QUANTIZED_CONV_H_
#define TFUSE_KERNELS_QUANTIZED_CONV_H_

#include "kernels/convolution/conv.h"
#include "kernels/core/divisor.h"

/* What y is. */
enum { QUANTIZED_CONV_I8, QUANTIZED_CONV_F32, QUANTIZED_CONV_F16, QUANTIZED_CONV_BF16 };

/* v = sum * scale + bias + residual * residual_scale; y = act(v), of int8 round(act(v) * y_scale), clipped. The kernel
 * lies as [outputs, window, channels of a group]. */
typedef struct quantized_conv_args {
  conv_shape s;
  const int8_t *x, *kernel;
  const float *scale, *bias; /* [outputs]; bias may be NULL */
  const void *residual;      /* NULL: none */
  void *y;
  float residual_scale;
  int relu, y_kind;
  /* An int8 y is y_least + y_steps * (v * y_step + y_first), of which what is in brackets is from 0 to 1. For floats,
   * y_step is 1 and y_first 0. */
  float y_step, y_first, y_steps, y_least;
  int narrow; /* the residual is int8; else it is what y is */
  /* Of a sum. */
  int terms;
  /* Of tiles: positions of y in 32 bits; how many tiles there are, and the numbers that places are
   * divided by: tiles along the outputs and along the positions, and positions along the last two axes of y. */
  int positions, tiles;
  tfu_divisor across, down, high, wide;
} quantized_conv_args;

/* A part: `line` bytes of terms, 64 or 128, of each position and output, and scale and bias, which the last part of a
 * tile needs. What warpgroups multiply begins at a multiple of 1024 bytes. */
#define QUANTIZED_CONV_STAGE(rows, columns, line) ((((rows) + (columns)) * (line) + 8 * (columns) + 1023) / 1024 * 1024)

#endif
