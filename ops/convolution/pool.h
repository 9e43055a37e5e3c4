/* pool.h - arguments and attributes of pooling, as kernels see them. */
#ifndef TFUSE_POOL_OP_H_
#define TFUSE_POOL_OP_H_

#include "ops/convolution/window.h"

/* Axes that windows move along: depth, height and width, in attributes and shapes in this order. */
enum { TFU_POOL_AXES = 3 };
enum {
  TFU_POOL_PADDING,
  TFU_POOL_WINDOW,
  TFU_POOL_STRIDE = TFU_POOL_WINDOW + TFU_POOL_AXES,
  TFU_POOL_BEFORE = TFU_POOL_STRIDE + TFU_POOL_AXES,
  TFU_POOL_AFTER
};
#define TFU_POOL_ATTRS                                                                                          \
  "padding: {'valid', 'same', 'causal', 'pairs', 'zeros'} = 'valid'", "window_d: int = 1", "window_h: int = 1", \
      "window_w: int = 1", "stride_d: int = 1", "stride_h: int = 1", "stride_w: int = 1", "before: int = 0",    \
      "after: int = 0"

enum { TFU_POOL_X, TFU_POOL_SIZE, TFU_POOL_KEEP };
enum { TFU_POOL_Y, TFU_POOL_POSITIONS };
enum { TFU_MAXGRAD_DY, TFU_MAXGRAD_POSITIONS, TFU_MAXGRAD_SIZE };
enum { TFU_AVERAGEGRAD_DY, TFU_AVERAGEGRAD_SIZE };

/* Places inside of windows are bytes, TFU_POOL_BYTES channels' in a word of int64; the first channel's is the lowest.
 */
enum { TFU_POOL_MOST = 256, TFU_POOL_BYTES = 8 };

/* Windows over [batch, depth, height, width, channels]. */
typedef struct tfu_pool {
  int64_t batch, channels;
  int zeros; /* positions outside of x count, as 0 */
  tfu_window axis[TFU_POOL_AXES];
} tfu_pool;

/* Of x, whose sizes and channels are those of `x`. */
static inline TFU_MUST_USE tfu_code tfu_pool_read(const tfu_shape *x, const tfu_value *attr, tfu_pool *p,
                                                  tfu_error *err) {
  static const char *const names[TFU_POOL_AXES] = {"depth", "height", "width"};
  const int64_t padding = attr[TFU_POOL_PADDING].i;
  *p = (tfu_pool){.batch = x->dim[0], .channels = x->dim[4], .zeros = padding == TFU_PAD_ZEROS};
  for (int i = 0; i < TFU_POOL_AXES; i++) {
    p->axis[i] = (tfu_window){.in = x->dim[1 + i],
                              .size = attr[TFU_POOL_WINDOW + i].i,
                              .stride = attr[TFU_POOL_STRIDE + i].i,
                              .dilation = 1,
                              .before = tfu_axis_number(attr[TFU_POOL_BEFORE].i, i),
                              .after = tfu_axis_number(attr[TFU_POOL_AFTER].i, i)};
    TFU_TRY(tfu_window_position(&p->axis[i], padding, names[i], err));
  }
  return TFU_OK;
}

#endif
