/* Projections on the GPU: by the kernel for few rows where that serves them, otherwise by the ops that they are made
 * of. */
#include "kernels/generation/projections.h"

#include <limits.h>

#include "kernels/core/gpu/tunable.h"
#include "kernels/products/few_rows.h"
#include "ops/generation/projections.h"

/* Rows that the kernel for few rows is used for: with 32, a step of Llama's 1.1 billion took 12% longer by the products
 * of cuBLASLt, on an H200. */
TFU_TUNABLE(few_rows_most, 32, 0, FEW_ROWS_MOST);

static const void *given(const tfu_tensor *t) { return tfu_given(&t->shape) ? t->data : NULL; }

static tfu_code few_rows(tfu_call *call, int *served) {
  const tfu_tensor *x = &call->in[TFU_PROJECT_X];
  few_rows_args a = {.x = x->data,
                     .residual = given(&call->in[TFU_PROJECT_RESIDUAL]),
                     .gamma = given(&call->in[TFU_PROJECT_GAMMA]),
                     .inputs = tfu_cols(&x->shape),
                     .epsilon = (float)call->attr[TFU_PROJECT_EPSILON].f,
                     .activation = (int)call->attr[TFU_PROJECT_ACTIVATION].i,
                     .gated = call->attr[TFU_PROJECT_GATED].b};
  unsigned read = 1u << TFU_PROJECT_GAMMA;
  if (!a.inputs || tfu_count(&x->shape) / a.inputs > (call->invariant ? INT_MAX : few_rows_most())) return TFU_OK;
  a.rows = (int)(tfu_count(&x->shape) / a.inputs);
  for (int i = 0; i < TFU_PROJECTIONS; i++) {
    const tfu_tensor *kernel = &call->in[TFU_PROJECT_KERNEL + i];
    if (!tfu_given(&kernel->shape)) continue;
    a.of[i] = (few_rows_product){.kernel = kernel->data,
                                 .bias = given(&call->in[TFU_PROJECT_BIAS + i]),
                                 .y = call->out[i].data,
                                 .outputs = kernel->shape.dim[1]};
    read |= 1u << (TFU_PROJECT_KERNEL + i);
  }
  if (!a.gamma) read &= ~(1u << TFU_PROJECT_GAMMA);
  return tfu_few_rows_run(call, a, x->dtype, (call->constant & read) == read, served);
}

tfu_code tfu_projections_gpu(tfu_call *call) {
  static const projection_parts parts = {.norm = tfu_norm_gpu, .linear = tfu_linear_gpu, .gated = tfu_gated_gpu};
  int served = 0;
  TFU_TRY(few_rows(call, &served));
  return served ? TFU_OK : tfu_projections_by_parts(call, &parts);
}
