/* pool.h - what the launch of pooling hands the device. */
#ifndef TFUSE_POOL_H_
#define TFUSE_POOL_H_

#include <stdint.h>

#include "kernels/core/divisor.h"

#define TFU_POOL_UNIT 8 /* channels of a thread, whose positions are one word */

typedef struct pool_axis {
  int in, out, size, stride, before;
} pool_axis;

/* y of x, or dx of dy. */
typedef struct pool_args {
  const void *from;
  void *to;
  int64_t *positions; /* written by max_pool, read by its gradient */
  int64_t units;      /* of `to`: positions times words */
  int channels, words;
  int aligned;       /* units are whole and begin on 16 bytes */
  int zeros;         /* positions outside of x count, as 0 */
  pool_axis axis[3]; /* depth, height, width */
  tfu_divisor by[4]; /* words, and the sizes of `to`, the last axis first; with 2^31 units or more, by[0].by is 0 */
} pool_args;

#endif
