/* linear on the CPU: a blocked product whose results pass through the activation while they are in the cache.
 *
 * The gradient first makes dpre = dy * act'(pre), in the arithmetic type, and the sums of bias with it; where the
 * activation is linear that is dy itself. Then follow the two products. */
#ifndef REAL
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/fold_cpu.h"
#include "kernels/products/gemm_cpu.h"
#include "ops/products/linear.h"

static tfu_operand rows_of(const tfu_tensor *t) {
  return (tfu_operand){.data = t->data, .dtype = t->dtype, .row = tfu_cols(&t->shape)};
}
static tfu_operand turned(const tfu_tensor *t) {
  tfu_operand o = rows_of(t);
  o.turned = 1;
  return o;
}

typedef struct forward_job {
  tfu_tensor y, pre, residual; /* without elements: there is none */
  const void *ones, *bias;     /* of the arithmetic type, one value per output */
  const tfu_activation *act;
  int64_t outputs;
} forward_job;

typedef struct backward_job {
  tfu_fold fold;
  tfu_tensor dy, pre, dpre;
  const tfu_activation *act;
  int linear, sums;
} backward_job;

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
  void *memory;
  TFU_TRY(tfu_scratch(call, (size_t)(TFU_GEMM_COLS + j->outputs) * sizeof(REAL), &memory));
  REAL *ones = memory, *wide = ones + TFU_GEMM_COLS, one;
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

static void FN(slope_task)(void *arg, int64_t task) {
  const backward_job *j = arg;
  REAL gs[TFU_TILE], ps[TFU_TILE], ones[TFU_TILE], zeros[TFU_TILE], v[TFU_TILE];
  for (int i = 0; i < TFU_TILE; i++) ones[i] = 1, zeros[i] = (REAL)-0.0;
  for (tfu_fold_tile t = tfu_fold_first(&j->fold, task); tfu_fold_next(&j->fold, &t);) {
    const REAL *g = FN(tfu_load)(j->dy.data, j->dy.dtype, t.at, t.n, gs);
    if (!j->linear) {
      REAL *d = (REAL *)j->dpre.data + t.at;
      const REAL *pre = FN(tfu_load)(j->pre.data, j->pre.dtype, t.at, t.n, ps);
      j->act->FN(grad)(v, pre, ones, zeros, t.n);
      TFU_VECTORISE
      for (int i = 0; i < t.n; i++) d[i] = v[i] * g[i];
      g = d;
    }
    if (!j->sums) continue;
    double *sums = tfu_fold_sums(&j->fold, t.block, 0) + t.col;
    TFU_VECTORISE
    for (int i = 0; i < t.n; i++) sums[i] += g[i];
  }
}

/* dpre, and the gradient of bias where that is wanted. */
static tfu_code FN(slope)(tfu_call *call, tfu_tensor *dpre) {
  const tfu_tensor *dbias = &call->out[TFU_LINGRAD_DBIAS];
  backward_job j = {.dy = call->in[TFU_LINGRAD_DY],
                    .pre = call->in[TFU_LINGRAD_PRE],
                    .act = &tfu_activations[call->attr[TFU_LINEAR_ACTIVATION].i],
                    .linear = call->attr[TFU_LINEAR_ACTIVATION].i == TFU_ACT_linear,
                    .sums = tfu_count(&dbias->shape) > 0};
  j.dpre = j.dy;
  j.fold = tfu_fold_plan(&j.dy.shape);
  if (!j.linear) {
    j.dpre.dtype = tfu_real(j.dy.dtype);
    TFU_TRY(tfu_scratch(call, (size_t)tfu_count(&j.dy.shape) * sizeof(REAL), &j.dpre.data));
  }
  if (j.sums) TFU_TRY(tfu_fold_start(call, &j.fold, 1));
  if (!j.linear || j.sums) tfu_parallel(j.fold.tasks, FN(slope_task), &j);
  if (j.sums) tfu_fold_finish(&j.fold, 0, dbias);
  *dpre = j.dpre;
  return TFU_OK;
}

static void FN(store)(void *arg, int64_t row, int64_t col, int n, REAL *line) {
  const tfu_tensor *out = arg;
  FN(tfu_store)(out->data, out->dtype, row * tfu_cols(&out->shape) + col, n, line);
}

static tfu_code FN(tfu_linear_grad_cpu)(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_LINGRAD_X], *kernel = &call->in[TFU_LINGRAD_KERNEL];
  tfu_tensor dpre, *dx = &call->out[TFU_LINGRAD_DX], *dkernel = &call->out[TFU_LINGRAD_DKERNEL];
  TFU_TRY(FN(slope)(call, &dpre));
  const int64_t rows = tfu_rows(&dpre.shape), outputs = tfu_cols(&dpre.shape);
  if (tfu_count(&dx->shape))
    TFU_TRY(FN(tfu_gemm)(call, rows_of(&dpre), turned(kernel), rows, tfu_cols(&dx->shape), outputs, FN(store), dx));
  if (tfu_count(&dkernel->shape))
    TFU_TRY(FN(tfu_gemm)(call, turned(x), rows_of(&dpre), tfu_cols(&x->shape), outputs, rows, FN(store), dkernel));
  return TFU_OK;
}
#endif
