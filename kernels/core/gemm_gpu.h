/* gemm_gpu.h - one product of matrices on the GPU, by cuBLASLt, with what its epilogues can do to the result.
 *
 *   d = epilogue(a b + c)     a is [m, k], b is [k, n], c and d are [m, n], row-major; turned ones are stored the
 *                             other way round
 *
 * Which of cuBLASLt's algorithms is taken is decided by timing, once (tuned.h). */
#ifndef TFUSE_GEMM_GPU_H_
#define TFUSE_GEMM_GPU_H_

#include "tfuse.h"

/* Where there is a bias, [n], it is added first. */
typedef enum tfu_epilogue {
  TFU_EPI_NONE,
  TFU_EPI_RELU,
  TFU_EPI_GELU,     /* by tanh                                                            */
  TFU_EPI_GELU_AUX, /* and what it is taken of goes to aux, [m, n]; n is a multiple of 8  */
  TFU_EPI_SUM_B,    /* d as it is; the sums of b over its rows go to sums, [n]            */
  TFU_EPIS
} tfu_epilogue;

typedef struct tfu_gemm_gpu {
  const void *a, *b, *c; /* c may be NULL, or d */
  void *d;
  int64_t m, n, k;
  int a_turned, b_turned;
  int64_t a_row; /* elements from one row of a, as it is stored, to the next; 0: it is as wide as that */
  tfu_dtype dtype;
  int wide; /* c and d are float32, where a and b are of 16 bits */
  int tf32; /* float32 may be read with 10 bits after the point */
  tfu_epilogue epilogue;
  const void *bias; /* may be NULL */
  void *aux, *sums;
} tfu_gemm_gpu;

/* Queues it on the call's stream. Where c is d, no algorithm is tried out on them: have the product timed before, while
 * what is there does not matter yet. *served is 0 where cuBLASLt has no such kernel: nothing was queued then. Sizes of
 * 0 are not served. Fails where there is no cuBLASLt at all. */
TFU_MUST_USE tfu_code tfu_gemm_gpu_run(tfu_call *call, const tfu_gemm_gpu *g, int *served);

/* What it takes by the timing that chose its algorithm; 0 where nothing was timed. It may have been run meanwhile. */
TFU_MUST_USE tfu_code tfu_gemm_gpu_time(tfu_call *call, const tfu_gemm_gpu *g, int *served, float *microseconds);

#endif
