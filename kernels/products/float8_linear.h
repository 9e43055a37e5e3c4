/* float8_linear.h - what the launches hand the device, and what both kinds of kernels share. */
#ifndef TFUSE_KERNELS_FLOAT8_LINEAR_H_
#define TFUSE_KERNELS_FLOAT8_LINEAR_H_

#include "kernels/core/float8.h"
#include "kernels/core/gpu/walk.h"

/* The scale after one whose history had `before` as its largest number. */
FLOAT8_INLINE float float8_next_scale(float before, float scale, float largest) {
  const int finite = before - before == 0;
  return 1 / (before > 0 && finite ? largest / before : 1 / scale);
}

/* Blocks of FLOAT8_SIDE rows and columns. */
enum { FLOAT8_SIDE = 128 };
typedef struct float8_codes_args {
  const void *x;       /* [rows, cols], of floats, or of codes */
  const float *scale;  /* one number; NULL where x has codes */
  uint8_t *straight;   /* [rows, cols], or NULL */
  uint8_t *transposed; /* [cols, apart], or NULL; what is beyond the rows is 0 */
  float *tops;         /* the largest |x| of each block, or NULL */
  int64_t rows, cols, apart;
  int e5m2;
} float8_codes_args;

typedef struct float8_round_args {
  const void *x; /* [rows, cols], of floats, or of codes */
  const float *scale;
  void *y;     /* what is left of x; of its type, or of that which codes shall have; NULL: x is only read */
  float *tops; /* as above */
  int64_t rows, cols;
  int scale_row, scale_col; /* from the scale of one row, or column, to the next */
  int transposed;           /* y is [cols, rows] */
  int codes, e5m2;
} float8_round_args;

typedef struct float8_rows_args {
  const void *x; /* [rows, cols] */
  void *y;       /* codes of e4m3, or what they stand for, in the type of x */
  float *scale;  /* of each row, where y has codes */
  int64_t rows, cols;
  int by_warps; /* where y has codes: a warp has a row, not a block */
} float8_rows_args;

/* One block for each tensor that has a history. */
typedef struct float8_update_args {
  struct {
    const float *tops, *history, *scale;
    float *new_history, *new_scale;
    int64_t tops_count, count;
    float largest;
  } of[3];
} float8_update_args;

/* to[i] = *from */
typedef struct float8_spread_args {
  const float *from;
  float *to;
  int64_t count;
} float8_spread_args;

#ifndef TFU_DEVICE
#include "kernels/core/recycle.h"
#include "kernels/products/gemm_gpu.h"

/* Linear, and its gradient, of rounded factors, as parts of a float8 op, the outer one of `space`. The gradient has
 * neither an activation nor a bias any more. */
tfu_call *tfu_float8_as_linear(tfu_recycled *space, const tfu_tensor *x, const tfu_tensor *kernel);
tfu_call *tfu_float8_as_linear_grad(tfu_recycled *space, const tfu_tensor *dy, const tfu_tensor *x,
                                    const tfu_tensor *kernel);

/* Fails where the gradient is asked for what there is not. */
TFU_MUST_USE tfu_code tfu_float8_check(tfu_call *call);

/* Linear where x and kernel are in float8, the latter as [outputs, inputs]. *served is 0 where cuBLASLt has no such
 * product. */
TFU_MUST_USE tfu_code tfu_linear_of_float8_gpu(tfu_call *call, const tfu_gemm_float8 *float8, int *served);
#endif

#endif
