/* linear on the CPU: a blocked product whose results pass through the activation while they are in the cache.
 *
 * The gradient first makes dpre = dy * act'(pre), in the arithmetic type, and the sums of bias with it; where the
 * activation is linear that is dy itself. Then follow the two products. */
#ifndef REAL
#include "ops/products/linear.h"

#include "kernels/core/cpu/cpu.h"
#include "kernels/elementwise/scale_bias_act.h"
#include "kernels/products/gemm_cpu.h"

static tfu_operand rows_of(const tfu_tensor *t) { return tfu_operand_of(t, 0); }
static tfu_operand transposed(const tfu_tensor *t) { return tfu_operand_of(t, 1); }

typedef struct forward_job {
  tfu_tensor y, pre, residual; /* without elements: there is none */
  const void *ones, *bias;     /* of the arithmetic type, one value per output */
  const tfu_activation *act;
  int64_t outputs;
} forward_job;

#define TFU_SELF "kernels/products/linear_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_linear_cpu)
TFU_BY_REAL(tfu_linear_grad_cpu)

#else

/* ---- forward ---- */

static void FN(finish)(void *arg, int64_t row, int64_t col, int n, REAL *line) {
  const forward_job *j = arg;
  const REAL *bias = (const REAL *)j->bias + col, *ones = j->ones;
  const int64_t at = row * j->outputs + col;
  if (tfu_count(&j->pre.shape)) {
    REAL pre[TFU_GEMM_COLS];
    for (int i = 0; i < n; i++) pre[i] = line[i] + bias[i];
    FN(tfu_store)(j->pre.data, j->pre.dtype, at, n, pre);
  }
  j->act->FN(value)(line, line, ones, bias, n);
  if (tfu_count(&j->residual.shape)) {
    REAL buffer[TFU_GEMM_COLS];
    const REAL *residual = FN(tfu_load)(j->residual.data, j->residual.dtype, at, n, buffer);
    for (int i = 0; i < n; i++) line[i] += residual[i];
  }
  FN(tfu_store)(j->y.data, j->y.dtype, at, n, line);
}

/* Ones, and bias, which is -0 where there is none: x + -0 is x, even for x = -0. */
static tfu_code FN(spread)(tfu_call *call, forward_job *j, const tfu_tensor *bias) {
  REAL *ones, *wide, one;
  TFU_SCRATCH(call, TFU_GEMM_COLS, ones);
  TFU_SCRATCH(call, j->outputs, wide);
  const int given = tfu_count(&bias->shape) > 0;
  for (int i = 0; i < TFU_GEMM_COLS; i++) ones[i] = 1;
  for (int64_t i = 0; i < j->outputs; i++)
    wide[i] = given ? *FN(tfu_load)(bias->data, bias->dtype, i, 1, &one) : (REAL)-0.0;
  j->ones = ones;
  j->bias = wide;
  return TFU_OK;
}

static tfu_code FN(tfu_linear_cpu)(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_LINEAR_X], *kernel = &call->in[TFU_LINEAR_KERNEL];
  forward_job j = {.y = call->out[TFU_LINEAR_Y],
                   .pre = call->out[TFU_LINEAR_PRE],
                   .residual = call->in[TFU_LINEAR_RESIDUAL],
                   .act = &tfu_activations[call->attr[TFU_LINEAR_ACTIVATION].i],
                   .outputs = tfu_cols(&kernel->shape)};
  TFU_TRY(FN(spread)(call, &j, &call->in[TFU_LINEAR_BIAS]));
  return FN(tfu_gemm)(call, rows_of(x), rows_of(kernel), tfu_rows(&x->shape), j.outputs, tfu_cols(&x->shape),
                      FN(finish), &j);
}

/* ---- backward ---- */

static tfu_code FN(tfu_linear_grad_cpu)(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_LINGRAD_X], *kernel = &call->in[TFU_LINGRAD_KERNEL];
  tfu_tensor dpre, *dx = &call->out[TFU_LINGRAD_DX], *dkernel = &call->out[TFU_LINGRAD_DKERNEL];
  TFU_TRY(tfu_act_grad_cpu(call, call->attr[TFU_LINEAR_ACTIVATION].i, &call->in[TFU_LINGRAD_DY],
                           &call->in[TFU_LINGRAD_PRE], &dpre, &call->out[TFU_LINGRAD_DBIAS]));
  const int64_t rows = tfu_rows(&dpre.shape), outputs = tfu_cols(&dpre.shape);
  if (tfu_count(&dx->shape))
    TFU_TRY(FN(tfu_gemm)(call, rows_of(&dpre), transposed(kernel), rows, tfu_cols(&dx->shape), outputs,
                         FN(tfu_gemm_store), dx));
  if (tfu_count(&dkernel->shape))
    TFU_TRY(FN(tfu_gemm)(call, transposed(x), rows_of(&dpre), tfu_cols(&x->shape), outputs, rows, FN(tfu_gemm_store),
                         dkernel));
  return TFU_OK;
}
#endif
