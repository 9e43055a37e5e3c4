/* batch_norm_gpu.h - what the launches of batch normalisation hand the device.
 *
 * The passes over memory are elementwise formulas with weights and sums per channel (kernels/core/channels.h). Between
 * them, what is per channel is settled. */
#ifndef TFUSE_BATCH_NORM_GPU_H_
#define TFUSE_BATCH_NORM_GPU_H_

#include "kernels/core/gpu/channels.h"

/* The kernels of a pass, for the activations that convolutions are most often followed by; `bent` serves relu, relu6
 * and leaky_relu. One more kernel serves all others, and silu and hard_swish after a residual, in double: a kernel for
 * each activation would be more than three times the code. */
#define BATCH_NORM_ACTIVATIONS(X) X(linear) X(bent) X(silu) X(hard_swish)

/* Launches over channels: a block of threads has so many neighbouring channels at most, each with several threads, its
 * lanes, which take what is to be joined in turn. Few, since what takes time is to wait for one's entries. */
#define BATCH_NORM_ACROSS 4

/* What a pass over memory is given. */
typedef struct batch_norm_args {
  tfu_channels_args channels;
  const void *more; /* for formulas that take one: a tensor that is added to x[0], or NULL */
  int64_t inner;    /* neighbouring columns of a channel */
  void *signs; /* for formulas that write them, or NULL, or read them: a byte for each pack of the walk, whose bit k
                  says whether the pack's element k is above 0; words of 8 bytes, filled up with zeros */
} batch_norm_args;

/* What a shift is rounded to: x's type, where that has 16 bits. */
enum { BATCH_NORM_SHIFT_REAL, BATCH_NORM_SHIFT_F16, BATCH_NORM_SHIFT_BF16 };

/* The states of parts, [4][channels / inner][parts][inner], become the statistics of each channel. The numbers of a
 * state are those of TFU_SPREAD_… (kernels/reductions/reduce.h). */
enum { BATCH_NORM_STATE_MEAN, BATCH_NORM_STATE_SQUARES, BATCH_NORM_STATE_COUNT, BATCH_NORM_STATE_REST };
typedef struct batch_norm_settle_args {
  int64_t channels, count;     /* count: values of a channel         */
  float update;                /* of the running statistics          */
  const void *states;          /* NULL where there are no values     */
  int64_t parts, inner;        /* of the states                      */
  const void *mean, *variance; /* running                            */
  const void *shift;           /* of the running mean; NULL is 0     */
  int shift_as;                /* what it is rounded to              */
  void *new_mean, *new_variance, *batch_mean, *batch_variance;
} batch_norm_settle_args;

/* From partial sums over g * (x - mean) and g, with g = dy * act', what is per channel in the gradient. What is NULL is
 * not wanted. */
typedef struct batch_norm_grad_settle_args {
  int64_t channels, count;
  int64_t inner; /* columns of a channel, which are neighbours */
  float epsilon;
  const void *partial; /* [blocks][2][width]: of every column, perhaps in several copies one after the other */
  int64_t blocks, width;
  const void *gamma, *variance;
  void *dgamma, *dbeta, *dmean, *dvariance;
  void *slopes; /* [3][channels]: dx is slopes[0] * g + slopes[1] * (x - mean) + slopes[2] */
} batch_norm_grad_settle_args;

#endif
