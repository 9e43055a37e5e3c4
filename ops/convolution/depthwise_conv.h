/* depthwise_conv.h - arguments and attributes of the depthwise convolutions, as kernels see them. */
#ifndef TFUSE_DEPTHWISE_CONV_OP_H_
#define TFUSE_DEPTHWISE_CONV_OP_H_

#include "activations.h"
#include "ops/convolution/window.h"

/* In this order for both ops. */
enum {
  TFU_DEPTHWISE_ACTIVATION,
  TFU_DEPTHWISE_PADDING,
  TFU_DEPTHWISE_STRIDE_H,
  TFU_DEPTHWISE_STRIDE_W,
  TFU_DEPTHWISE_DILATION_H,
  TFU_DEPTHWISE_DILATION_W
};
#define TFU_DEPTHWISE_ATTRS                                                                               \
  TFU_ACTIVATION_ATTR, TFU_PADDING_ATTR, "stride_h: int = 1", "stride_w: int = 1", "dilation_h: int = 1", \
      "dilation_w: int = 1"

enum { TFU_DEPTHWISE_X, TFU_DEPTHWISE_KERNEL, TFU_DEPTHWISE_BIAS, TFU_DEPTHWISE_SIZE, TFU_DEPTHWISE_KEEP };
enum { TFU_DEPTHWISE_Y, TFU_DEPTHWISE_PRE };

/* Of the gradient. */
enum {
  TFU_DEPTHGRAD_DY,
  TFU_DEPTHGRAD_X,
  TFU_DEPTHGRAD_KERNEL,
  TFU_DEPTHGRAD_BIAS,
  TFU_DEPTHGRAD_PRE,
  TFU_DEPTHGRAD_WANT_DX,
  TFU_DEPTHGRAD_WANT_DKERNEL
};
enum { TFU_DEPTHGRAD_DX, TFU_DEPTHGRAD_DKERNEL, TFU_DEPTHGRAD_DBIAS };

/* What a call computes: the windows along both axes, over [batch, height, width, channels]; every channel has
 * `multiplier` results. */
typedef struct tfu_depthwise {
  int64_t batch, channels, multiplier;
  tfu_window h, w;
} tfu_depthwise;

/* Of shapes that are known: x [batch, height, width, channels], kernel [size_h, size_w, channels, multiplier]. */
static inline TFU_MUST_USE tfu_code tfu_depthwise_read(const tfu_shape *x, const tfu_shape *kernel,
                                                       const tfu_value *attr, tfu_depthwise *d, tfu_error *err) {
  *d = (tfu_depthwise){.batch = x->dim[0], .channels = x->dim[3], .multiplier = kernel->dim[3]};
  d->h = (tfu_window){.in = x->dim[1],
                      .size = kernel->dim[0],
                      .stride = attr[TFU_DEPTHWISE_STRIDE_H].i,
                      .dilation = attr[TFU_DEPTHWISE_DILATION_H].i};
  d->w = (tfu_window){.in = x->dim[2],
                      .size = kernel->dim[1],
                      .stride = attr[TFU_DEPTHWISE_STRIDE_W].i,
                      .dilation = attr[TFU_DEPTHWISE_DILATION_W].i};
  TFU_TRY(tfu_window_position(&d->h, attr[TFU_DEPTHWISE_PADDING].i, "height", err));
  return tfu_window_position(&d->w, attr[TFU_DEPTHWISE_PADDING].i, "width", err);
}

#endif
