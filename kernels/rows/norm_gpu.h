/* norm_gpu.h - normalisation of rows on the GPU, host side, for the norms and for group normalisation. */
#ifndef TFUSE_NORM_GPU_H_
#define TFUSE_NORM_GPU_H_

#include "tfuse.h"

/* Tensors may be NULL or empty where optional. Row r has the weights r % period. */
typedef struct tfu_norm_tensors {
  int64_t rows, cols, period;
  const tfu_tensor *x, *residual, *gamma, *beta, *seed, *y, *sum, *stats;
} tfu_norm_tensors;
TFU_MUST_USE tfu_code tfu_norm_rows(tfu_call *call, const tfu_norm_tensors *tensors, int rms, float epsilon,
                                    float rate);

typedef struct tfu_norm_grad_tensors {
  int64_t rows, cols, period;
  const tfu_tensor *dy, *dsum, *x, *gamma, *stats, *seed, *dx, *dresidual;
  const tfu_tensor *dweights; /* two: of gamma, of beta */
} tfu_norm_grad_tensors;
TFU_MUST_USE tfu_code tfu_norm_rows_grad(tfu_call *call, const tfu_norm_grad_tensors *tensors, int rms, float rate);

#endif
