/* linear_way.h - one product whose epilogue does all that a linear layer has around it, or a bare one and a pass over
 * its result: which is faster is timed once, and kept (tuned.h). */
#ifndef TFUSE_KERNELS_LINEAR_WAY_H_
#define TFUSE_KERNELS_LINEAR_WAY_H_

#include "kernels/products/gemm_gpu.h"

enum { LINEAR_NO_BIAS, LINEAR_BIAS, LINEAR_ODD_BIAS /* not on 16 bytes: cuBLASLt takes none (gemm_gpu.c) */ };
enum {
  LINEAR_PLAIN,
  LINEAR_PRE,      /* which is kept */
  LINEAR_GRADIENT, /* dkernel and dbias */
  LINEAR_FLOAT8    /* factors in float8, beside one of the first two */
};

/* All that the choice depends on. Compared as bytes, so it has no gaps. */
typedef struct linear_way_key {
  int64_t rows, inputs, outputs;
  int32_t ordinal /* is filled in */, dtype, tf32, act, bias, kind;
} linear_way_key;

typedef struct linear_ways {
  const tfu_gemm_gpu *one, *bare;
  tfu_code (*pass)(void *with); /* may run many times */
  void *with;
} linear_ways;

/* Both may have been run meanwhile. */
TFU_MUST_USE tfu_code tfu_linear_way(tfu_call *call, linear_way_key key, linear_ways ways, int *in_one);

#endif
