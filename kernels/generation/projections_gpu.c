/* Projections on the GPU: by the kernel for few rows where that serves them, otherwise by the ops that they are made
 * of. */
#include "kernels/generation/projections.h"

#include <limits.h>

#include "kernels/core/gpu/tunable.h"
#include "kernels/products/few_rows.h"
#include "ops/generation/projections.h"

/* Rows that the kernel for few rows is used for, with the norm on its way; and the rows up to which products of what is
 * normed go by warpgroups. Beyond these, those of cuBLASLt took no longer on an H200. */
TFU_TUNABLE(few_rows_most, 32, 0, FEW_ROWS_MOST);
TFU_TUNABLE(wgmma_rows_most, 0, 0, 1 << 20);

static const void *given(const tfu_tensor *t) { return tfu_given(&t->shape) ? t->data : NULL; }

/* All that the products are, but for the norm. `read`: which inputs are kernels, a bit each. */
static few_rows_args args_of(const tfu_call *call, const tfu_tensor *x, unsigned *read) {
  few_rows_args a = {.x = x->data,
                     .residual = given(&call->in[TFU_PROJECT_RESIDUAL]),
                     .inputs = tfu_cols(&x->shape),
                     .activation = (int)call->attr[TFU_PROJECT_ACTIVATION].i,
                     .gated = call->attr[TFU_PROJECT_GATED].b};
  *read = 0;
  for (int i = 0; i < TFU_PROJECTIONS; i++) {
    const tfu_tensor *kernel = &call->in[TFU_PROJECT_KERNEL + i];
    if (!tfu_given(&kernel->shape)) continue;
    a.of[i] = (few_rows_product){.kernel = kernel->data,
                                 .bias = given(&call->in[TFU_PROJECT_BIAS + i]),
                                 .y = call->out[i].data,
                                 .outputs = kernel->shape.dim[1]};
    *read |= 1u << (TFU_PROJECT_KERNEL + i);
  }
  return a;
}

static int64_t rows_of(const tfu_tensor *x) {
  return tfu_cols(&x->shape) ? tfu_count(&x->shape) / tfu_cols(&x->shape) : 0;
}

/* Where the call is invariant, all rows go by warpgroups if these serve it. */
static tfu_code few_rows(tfu_call *call, int *served) {
  const tfu_tensor *x = &call->in[TFU_PROJECT_X];
  unsigned read;
  int by_warpgroups = 0;
  few_rows_args a = args_of(call, x, &read);
  if (!a.inputs || rows_of(x) > (call->invariant ? INT_MAX : few_rows_most())) return TFU_OK;
  if (call->invariant) TFU_TRY(tfu_few_rows_wgmma_serves(call, &a, x->dtype, &by_warpgroups));
  if (by_warpgroups) return TFU_OK;
  a.rows = (int)rows_of(x);
  a.gamma = given(&call->in[TFU_PROJECT_GAMMA]);
  a.epsilon = (float)call->attr[TFU_PROJECT_EPSILON].f;
  if (a.gamma) read |= 1u << TFU_PROJECT_GAMMA;
  return tfu_few_rows_run(call, a, x->dtype, (call->constant & read) == read, served);
}

static tfu_code together(tfu_call *call, const tfu_tensor *x, int *served) {
  unsigned read;
  few_rows_args a = args_of(call, x, &read);
  if (!a.inputs || rows_of(x) > (call->invariant ? INT_MAX : wgmma_rows_most())) return TFU_OK;
  a.rows = (int)rows_of(x);
  return tfu_few_rows_wgmma_run(call, a, x->dtype, (call->constant & read) == read, served);
}

tfu_code tfu_projections_gpu(tfu_call *call) {
  static const projection_parts parts = {
      .norm = tfu_norm_gpu, .linear = tfu_linear_gpu, .gated = tfu_gated_gpu, .together = together};
  int served = 0;
  TFU_TRY(few_rows(call, &served));
  return served ? TFU_OK : tfu_projections_by_parts(call, &parts);
}
