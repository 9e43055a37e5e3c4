/* conv.h - a convolution in numbers, for CPU and GPU alike. ops/convolution/conv.c has the formulas. */
#ifndef TFUSE_KERNELS_CONV_H_
#define TFUSE_KERNELS_CONV_H_

#include <stdint.h>

/* Always three spatial axes: those that a convolution has not come first, with a size, stride and dilation of 1. */
enum { CONV_AXES = 3 };

typedef struct conv_shape {
  int64_t batch, groups;
  int64_t c, k; /* channels and outputs of a group */
  int64_t in[CONV_AXES], out[CONV_AXES], window[CONV_AXES];
  int64_t stride[CONV_AXES], dilation[CONV_AXES], before[CONV_AXES];
} conv_shape;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* Of x, kernel and y, whose shapes belong together, and the call's attributes. */
conv_shape tfu_conv_read(const tfu_call *call, const tfu_shape *x, const tfu_shape *kernel, const tfu_shape *y);
/* Which of the tensors of Conv, ConvData and ConvFilter these are. */
conv_shape tfu_conv_forward_read(const tfu_call *call);
conv_shape tfu_conv_data_read(const tfu_call *call);
conv_shape tfu_conv_filter_read(const tfu_call *call);

/* Conv on the CPU with nothing after the sums, of a call that has no more than x, kernel and Conv's attributes. */
TFU_MUST_USE tfu_code tfu_conv_bare_cpu(tfu_call *call);

/* Elements along the three axes. */
static inline int64_t conv_volume(const int64_t *sizes) { return sizes[0] * sizes[1] * sizes[2]; }
#endif

#endif
