/* rope.h - what the launch hands the device, for query or for key. */
#ifndef TFUSE_KERNELS_ROPE_H_
#define TFUSE_KERNELS_ROPE_H_

#include "kernels/core/gpu/walk.h"
#include "kernels/core/rotation.h"

enum {
  TFU_ROPE_HEADS = 4, /* that a thread of rope_half has, at most */
};

typedef struct rope_args {
  tfu_walk walk; /* over all elements in rope_interleaved; over pairs, one by one, in rope_part */
  void *y;
  const void *x, *positions;
  rope_frequencies by;
  int64_t head_dim, heads; /* elements of a head, heads of a token                */
  int64_t time;            /* tokens of a batch entry                             */
  int64_t tokens, slices;  /* in all; parts of a token's heads, in rope_half: part i has the heads i, i + slices …  */
  int kind;                /* positions: 0 one number, 1 per entry, 2 per token   */
  int wide;                /* positions are int64                                 */
  int interleaved;
} rope_args;

#endif
