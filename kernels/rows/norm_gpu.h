/* norm_gpu.h - normalisation of rows on the GPU, host side, for the norms and for group normalisation. */
#ifndef TFUSE_NORM_GPU_H_
#define TFUSE_NORM_GPU_H_

#include "kernels/rows/norm.h"

/* The arguments are all there but for what a launch is planned by; dweights are two: of gamma, of beta. */
TFU_MUST_USE tfu_code tfu_norm_rows(tfu_call *call, tfu_dtype dtype, int64_t rows, int64_t cols, norm_args a);
TFU_MUST_USE tfu_code tfu_norm_rows_grad(tfu_call *call, tfu_dtype dtype, int64_t rows, int64_t cols, norm_grad_args a,
                                         const tfu_tensor *dweights);

#endif
