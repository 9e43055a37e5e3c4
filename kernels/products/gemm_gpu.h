/* gemm_gpu.h - one product of matrices on the GPU, by cuBLASLt, with what its epilogues can do to the result; or a
 * batch of such products.
 *
 *   d = epilogue(scale * a b + c)     a is [m, k], b is [k, n], c and d are [m, n], row-major; transposed ones are
 * stored the other way round
 *
 * Which of cuBLASLt's algorithms is taken is decided by timing, once (tuned.h); in exact float32 (tfu_gemm_exact)
 * it is the first that cuBLASLt proposes, and no epilogue has gelu.
 *
 * a and b may be of 8 bits beside results of 16 or 32 (tfu_gemm_float8). cuBLASLt has it from compute capability 8.9
 * on, where b is transposed and a is not, n and k are multiples of 16, and matrices and scales begin on 16 bytes;
 * nobody has it otherwise. Where results are float32 there is neither an epilogue nor a bias, which it would read as
 * bfloat16.
 *
 * Of TFU_I8, sums are int32. cuBLASLt has it where b is transposed and a is not, n and k are multiples of 4, and there
 * is neither an epilogue nor a bias; nobody has it otherwise. */
#ifndef TFUSE_GEMM_GPU_H_
#define TFUSE_GEMM_GPU_H_

#include "tfuse.h"

/* Where there is a bias, [n], it is added first. */
typedef enum tfu_epilogue {
  TFU_EPI_NONE,
  TFU_EPI_RELU,     /* NaN stays NaN                                                      */
  TFU_EPI_GELU,     /* by tanh                                                            */
  TFU_EPI_GELU_AUX, /* and what it is taken of goes to aux, [m, n]; n is a multiple of 8  */
  TFU_EPI_SUM_B,    /* d as it is; the sums of b over its rows go to sums, [n]            */
  TFU_EPIS
} tfu_epilogue;

/* Factors in float8: the numbers that they stand for are what is stored times a scale, which is read from the GPU's
 * memory. */
typedef struct tfu_gemm_float8 {
  tfu_dtype a, b;                 /* TFU_E4M3 or TFU_E5M2, the latter once at most */
  const float *a_scale, *b_scale; /* one number each */
  int outer; /* one for each row of a, and one for each column of b: 9.0 has it, from cuBLASLt 12.9 on */
} tfu_gemm_float8;

typedef struct tfu_gemm_gpu {
  const void *a, *b, *c; /* c may be NULL, or d */
  void *d;
  int64_t m, n, k;
  int a_transposed, b_transposed;
  int64_t a_row; /* elements from one row of a, as it is stored, to the next; 0: it is as wide as that */
  tfu_dtype dtype;
  const tfu_gemm_float8 *float8; /* what a and b are, where they are not of dtype, as all else is; NULL: they are */
  int wide; /* c and d are of the type that is computed in, tfu_real(dtype); those of TFU_I8 are int32 in any case */
  int tf32; /* float32 may be read with 10 bits after the point */
  tfu_epilogue epilogue;
  const void *bias; /* may be NULL */
  void *aux, *sums;
  const double *scale; /* NULL is 1, which most products have */
  /* Products of one kind, none with an epilogue or a bias; 0 is 1. From one to the next it is so many elements; 0 where
   * all have the same matrix, which d must not be. */
  int64_t batch, a_stride, b_stride, c_stride, d_stride;
} tfu_gemm_gpu;

/* The most products of a batch: some of cuBLASLt's kernels count them in 16 bits. */
#define TFU_GEMM_BATCH 65535

/* Whether digits count more than time: float32 where TF32 is switched off. Long chains of sums, as the fastest
 * algorithms have them, and the gelu of epilogues were then off by more than twice what TensorFlow's own ops are. */
static inline int tfu_gemm_exact(tfu_dtype dtype, int tf32) { return dtype == TFU_F32 && !tf32; }

/* Queues it on the call's stream. Where c is d, no algorithm is tried out on them: have the product timed before, while
 * what is there does not matter yet. *served is 0 where cuBLASLt has no such kernel: nothing was queued then. Sizes of
 * 0 are not served. Where there is no cuBLASLt at all, sizes are beyond 31 bits, the call is invariant, or the scale is
 * 0 (cuBLASLt then does not read a and b, and infinity times 0 is NaN), our own kernels serve what has no epilogue but
 * a bias. */
TFU_MUST_USE tfu_code tfu_gemm_gpu_run(tfu_call *call, const tfu_gemm_gpu *g, int *served);

/* Whether there may be products of float8 at all, with outer scales or without, for some sizes. */
TFU_MUST_USE tfu_code tfu_gemm_gpu_has_float8(tfu_call *call, int outer, int *has);

/* What it takes by the timing that chose its algorithm; 0 where nothing was timed. It may have been run meanwhile. */
TFU_MUST_USE tfu_code tfu_gemm_gpu_time(tfu_call *call, const tfu_gemm_gpu *g, int *served, float *microseconds);

#endif
