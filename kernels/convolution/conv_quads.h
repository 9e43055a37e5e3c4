/* conv_quads.h - a convolution of stride 2 over few channels as one of stride 1 over 16 of them, for images that have
 * too few for tensor cores, by space-to-depth: the first layer of most networks.
 *
 * A quad is two rows and two columns of x, with its padding, as one position with 16 channels: 8 for each of the two
 * rows, of which 2 c are the channels of its two columns and the rest 0. With q(x)[i][j][half][e] = x[2 i + half][2 c j
 * + e], columns and channels of x being one axis, and the kernel arranged alike, with 0 for the taps that a window of
 * an odd size has not,
 *
 *   y[p][q] = sum over r, t of x[2 p + r][2 c q + t] k[r][t]
 *           = sum over i, j, half, e of q(x)[p + i][q + j][half][e] q(k)[i][j][half][e]
 *
 * The products are the same ones, and others with a tap of 0. So an infinity or NaN in x also reaches the result whose
 * window, of an odd size, ends just before it. The kernel's gradient is read out of that of q(k), and has no such. */
#ifndef TFUSE_KERNELS_CONV_QUADS_H_
#define TFUSE_KERNELS_CONV_QUADS_H_

#include <stdint.h>

/* Channels of a quad, those of one of its rows, and so many of x at most. */
enum { CONV_QUAD_HALF = 8, CONV_QUAD = 2 * CONV_QUAD_HALF, CONV_QUAD_MOST = CONV_QUAD_HALF / 2 };

/* One of the two tensors is [batch][rows][cols][inner], the other [batch][quad_rows][quad_cols][2][8][inner]. */
typedef struct conv_quads_args {
  const void *from;
  void *to;
  uint32_t units;                       /* of the one in quads: packs of an image, elements of a kernel  */
  int back;                             /* out of quads, for a kernel                                    */
  int rows, cols;                       /* of x, or of the kernel; columns and channels are one axis     */
  int above, left;                      /* rows and columns of that kind before the first                */
  int wide;                             /* columns of that kind in a quad                                */
  uint32_t quad_rows, quad_cols, inner; /* inner: outputs of a kernel, 1 of images      */
} conv_quads_args;

/* Where in [rows][cols] an element of a quad is; negative: nowhere, it is 0. */
static inline int64_t conv_quads_source(const conv_quads_args *a, uint32_t i, uint32_t j, int half, int e) {
  const int row = 2 * (int)i + half - a->above, col = a->wide * (int)j + e - a->left;
  const int there = e < a->wide && row >= 0 && row < a->rows && col >= 0 && col < a->cols;
  return there ? (int64_t)row * a->cols + col : -1;
}

#ifndef TFU_DEVICE
#include "kernels/convolution/conv_own.h"

/* Whether quads can serve it; if so, the convolution of quads without its x and kernel, and how these two are made. */
int tfu_conv_in_quads(conv_pass pass, tfu_dtype dtype, const conv_args *a, conv_args *made, conv_quads_args *image,
                      conv_quads_args *kernel);
/* Bytes of x, and of the kernel, in quads. */
static inline size_t conv_quads_image_bytes(const conv_quads_args *image) {
  return (size_t)image->units * CONV_QUAD_HALF * 2;
}
static inline size_t conv_quads_kernel_bytes(const conv_quads_args *kernel) { return (size_t)kernel->units * 2; }

/* Queues it on the call's stream, where quads are the faster way; else, and where cuDNN does not serve it, *served is
 * 0.
 */
TFU_MUST_USE tfu_code tfu_conv_quads(tfu_call *call, conv_pass pass, tfu_dtype dtype, const conv_args *a, int *served);
#endif

#endif
