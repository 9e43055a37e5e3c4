/* conv_windows.h - im2col on the CPU: what windows see, [window, channels of a group], copied together as rows of a
 * matrix for some thousand positions at a time. */
#ifndef TFUSE_CONV_WINDOWS_H_
#define TFUSE_CONV_WINDOWS_H_

#include "kernels/convolution/conv.h"

typedef struct conv_windows {
  const conv_shape *s;
  int spread;                  /* ConvData's: positions are x's, elements y's */
  const char *from;            /* of a group */
  char *to;                    /* [rows, window, width] */
  int64_t all, most;           /* positions, and how many are copied at a time */
  int64_t first, rows;         /* those that are */
  int64_t pixel, width;        /* bytes: from one position of the tensor to the next, and of the group there */
  const int64_t *grid, *image; /* sizes of what positions count, and of the tensor that is read */
} conv_windows;

/* Those of the first group, and memory for them. */
TFU_MUST_USE tfu_code tfu_conv_windows_open(tfu_call *call, const conv_shape *s, int spread, const tfu_tensor *from,
                                            conv_windows *w);
/* The next positions, as many as are copied at a time; 0 after the last. */
int tfu_conv_windows_next(conv_windows *w);

static inline conv_windows conv_windows_of_group(conv_windows w, int64_t group) {
  w.from += group * w.width;
  return w;
}

#endif
