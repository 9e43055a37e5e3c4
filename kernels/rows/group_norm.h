/* group_norm.h - what the launch hands the device. x is [samples, positions, channels]. */
#ifndef TFUSE_KERNELS_GROUP_NORM_H_
#define TFUSE_KERNELS_GROUP_NORM_H_

#include "kernels/core/gpu/walk.h"

#define TFU_GROUP_HELD_THREADS 512
#define TFU_GROUP_HELD_PARTS 8 /* at most */

typedef struct group_norm_args {
  int64_t samples, positions, channels, group; /* group: channels of one */
  int64_t chunk, chunks;                       /* positions that a block takes, and blocks of a sample */
  int groups;                                  /* of a sample                                       */
  int lanes;                                   /* threads of a position                                */
  int bundle,
      parts; /* in group_held: groups of a block, 1 or 2, and packs that a position has of them, a power of two */
  float epsilon;
  void *y;       /* or dx                                                                        */
  void *stats;   /* (mean, rstd) of samples and groups                                           */
  void *partial; /* [samples][chunks][2][channels]                                               */
  void *means;   /* backward: of samples and groups, (mean of g * n, mean of g)                  */
  const void *x, *dy, *gamma, *beta;
} group_norm_args;

#endif
