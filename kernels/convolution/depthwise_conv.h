/* depthwise_conv.h - what the launch of a depthwise convolution hands the device.
 *
 * Windows of 3 and 5 positions a side with stride 1 or 2, and those of 7 with stride 1, are computed in strips: a
 * thread has a square of SIDE * SIDE positions of the result and a few neighbouring channels. It reads every position
 * of the input that these need once, and holds the filter in registers. Threads of a block stand side by side along the
 * channels, `lanes` of them, and then along the strips, in swaths that are as high as wide, so that what neighbours
 * share is in the cache of their multiprocessor. All other windows are computed by one thread for each element. */
#ifndef TFUSE_DEPTHWISE_CONV_H_
#define TFUSE_DEPTHWISE_CONV_H_

#include <stdint.h>

#define TFU_STRIP_SIDE 4
#define TFU_STRIP_THREADS 128

/* Elements of a thread's channels for windows of `size` positions a side: more would take more registers than there
 * are.
 */
#define TFU_STRIP_CHANNELS(size, bytes) ((size) == 3 && (bytes) == 2 ? 4 : 2)

/* Blocks that a multiprocessor holds at least, by the registers that the compiler may take. */
#define TFU_STRIP_BLOCKS(size, bytes) ((size) == 7 && (bytes) == 4 ? 2 : 3)

/* A window along one axis, as in ops/convolution/window.h. */
typedef struct depthwise_axis {
  int in, out, size, stride, dilation, before;
} depthwise_axis;

/* Strips of a tensor [batch, height, width, channels]: those of a swath first, then along the width, the height and the
 * batch. */
typedef struct depthwise_strips {
  int channels, groups, lanes; /* a block has `lanes` packs of channels, of which there are `groups` times as many */
  int per;                     /* strips of a block             */
  int swath, wide, swaths;     /* strips along the height and the width of a swath; swaths along the height */
  int count;                   /* strips in all                 */
} depthwise_strips;

/* y of x, or dx of dy. */
typedef struct depthwise_args {
  const void *from, *kernel, *bias; /* bias: NULL is none */
  void *to, *pre;                   /* pre: NULL is not kept */
  depthwise_axis h, w;
  depthwise_strips strips;
  int64_t channels, multiplier, elements; /* elements of `to` */
  int activation;
} depthwise_args;

/* dkernel and dbias of x and dy, as partial sums of shares of the positions: [shares][positions of the
 * window][channels]. */
typedef struct depthwise_filter_args {
  const void *x, *dy;
  void *dkernel, *dbias; /* dbias: NULL is not wanted */
  depthwise_axis h, w;
  depthwise_strips strips;
  int64_t channels, multiplier, positions; /* positions of dy */
} depthwise_filter_args;

#endif
