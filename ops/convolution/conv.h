/* conv.h - arguments and attributes of the three convolution ops, as kernels see them. */
#ifndef TFUSE_CONV_H_
#define TFUSE_CONV_H_

#include "ops/convolution/window.h"

/* In this order for all three; Conv has one more. Numbers per spatial axis are in words, tfu_axis_number. */
enum { TFU_CONV_TF32, TFU_CONV_PADDING, TFU_CONV_STRIDES, TFU_CONV_DILATION, TFU_CONV_BEFORE, TFU_CONV_RELU };
#define TFU_CONV_WINDOW_ATTRS                                                                                          \
  "padding: {'before', 'same', 'causal'} = 'before'", "strides: int = 1099512676353", "dilation: int = 1099512676353", \
      "before: int = 0"
#define TFU_CONV_ATTRS "tf32: bool = false", TFU_CONV_WINDOW_ATTRS
enum { TFU_CONV_PAD_BEFORE, TFU_CONV_PAD_SAME, TFU_CONV_PAD_CAUSAL };
enum { TFU_CONV_AXES = 3 };

enum { TFU_CONV_X, TFU_CONV_KERNEL, TFU_CONV_BIAS, TFU_CONV_RESIDUAL, TFU_CONV_SIZES };
enum { TFU_CONV_DATA_Y, TFU_CONV_DATA_KERNEL, TFU_CONV_DATA_SIZES };
enum { TFU_CONV_FILTER_X, TFU_CONV_FILTER_Y, TFU_CONV_FILTER_SIZES };

/* Scratch of a captured call: what plans of cuDNN want beside the tensors, the kernel in their order, and what it may
 * take to align it. */
enum { TFU_CONV_ROOM = (64 << 20) + 512 };
/* And beside that: two copies of a float32 kernel in 16 bits, and x and kernel in quads. */
tfu_room_fn tfu_conv_more_room, tfu_conv_data_more_room, tfu_conv_filter_more_room;

/* The shape rule of Conv without bias and residual. */
TFU_MUST_USE tfu_code tfu_conv_shape(const tfu_shape *x, const tfu_shape *kernel, const tfu_shape *sizes, tfu_shape *y,
                                     const tfu_value *attr, tfu_error *err);

#endif
