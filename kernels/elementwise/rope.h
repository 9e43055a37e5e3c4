/* rope.h - what the launch hands the device, for query or for key. */
#ifndef TFUSE_KERNELS_ROPE_H_
#define TFUSE_KERNELS_ROPE_H_

#include "kernels/core/gpu/walk.h"

typedef struct rope_args {
  tfu_walk walk; /* over first halves of pairs, `half` of a head; over all elements where interleaved; over pairs, one
                    by one, in rope_part */
  void *y;
  const void *x, *positions;
  int64_t half;            /* pairs of a head that turn                           */
  int64_t head_dim, heads; /* elements of a head, heads of a token                */
  int64_t time;            /* tokens of a batch entry                             */
  int kind;                /* positions: 0 one number, 1 per entry, 2 per token   */
  int wide;                /* positions are int64                                 */
  int interleaved;
  double scale, base; /* of positions (negative: turns back); of the wavelengths */
} rope_args;

#endif
