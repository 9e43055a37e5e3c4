/* batch_norm.h - what the launches of batch normalisation share with the device, and with the CPU.
 *
 * The passes over memory are elementwise formulas with weights and sums per channel (kernels/core/channels.h). Between
 * them, what is per channel is settled. */
#ifndef TFUSE_KERNELS_BATCH_NORM_H_
#define TFUSE_KERNELS_BATCH_NORM_H_

#include <stdint.h>

/* The kernels of a pass, for the activations that convolutions are most often followed by; `bent` serves relu, relu6
 * and leaky_relu. One more kernel serves all others, and silu and hard_swish behind a residual, in double: a kernel for
 * each activation would be more than three times the code. */
#define BATCH_NORM_ACTIVATIONS(X) X(linear) X(bent) X(silu) X(hard_swish)

/* Launches over channels: a block of threads has so many neighbouring channels at most, each with several threads, its
 * lanes, which take what is to be joined in turn. Few, since what takes time is to wait for one's entries. */
#define BATCH_NORM_ACROSS 4

/* What a shift is rounded to: x's type, where that has 16 bits. */
enum { BATCH_NORM_SHIFT_REAL, BATCH_NORM_SHIFT_F16, BATCH_NORM_SHIFT_BF16 };

/* The states of parts, [4][channels / inner][parts][inner], become the statistics of each channel. The numbers of a
 * state are its mean, the sum of squared differences from it, the count of its values, and what the mean has no digits
 * for (kernels/reductions/reduce.cuh). */
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
  const void *partial; /* [blocks][2][width]: of every column, perhaps in several copies one behind the other */
  int64_t blocks, width;
  const void *gamma, *variance;
  void *dgamma, *dbeta, *dmean, *dvariance;
  void *slopes; /* [3][channels]: dx is slopes[0] * g + slopes[1] * (x - mean) + slopes[2] */
} batch_norm_grad_settle_args;

#ifndef TFU_DEVICE
#include "kernels/core/arithmetic.h"
#include "tfuse.h"

/* x as a matrix, whose columns are the channels, `inner` neighbours each. */
typedef struct batch_norm_view {
  int64_t n, channels, inner, cols; /* cols: channels * inner   */
  int64_t count;                    /* values of a channel      */
  tfu_dtype dtype, real;
} batch_norm_view;

static inline batch_norm_view tfu_batch_norm_view(const tfu_tensor *x) {
  const int64_t *dim = x->shape.dim, n = tfu_count(&x->shape), inner = n ? dim[2] : 1;
  return (batch_norm_view){.n = n,
                           .channels = dim[1],
                           .inner = inner,
                           .cols = dim[1] * inner,
                           .count = n ? dim[0] * dim[2] : 0,
                           .dtype = x->dtype,
                           .real = tfu_real(x->dtype)};
}

/* Fails unless there is a word of signs for every 128 bytes of y; `signs` may be what says how many are wanted. */
TFU_MUST_USE static inline tfu_code tfu_batch_norm_check_signs(tfu_call *call, const batch_norm_view *v,
                                                               const tfu_tensor *signs) {
  const int64_t words = divide_up(v->n * (int64_t)tfu_dtype_size(v->dtype), 128);
  TFU_REQUIRE(call->err, signs->shape.dim[0] == words, "there must be %lld words of signs, got %lld", (long long)words,
              (long long)signs->shape.dim[0]);
  return TFU_OK;
}
#endif

#endif
