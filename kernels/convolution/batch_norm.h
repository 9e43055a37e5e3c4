/* batch_norm.h - what batch normalisation makes of its input's shape, on the CPU and on the GPU. */
#ifndef TFUSE_KERNELS_BATCH_NORM_H_
#define TFUSE_KERNELS_BATCH_NORM_H_

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
