/* QuantizedProjections on the GPU: by the kernel for few rows in tiles where that serves them, otherwise by the ops
 * that they are made of. */
#include "ops/generation/quantized_projections.h"

#include <limits.h>

#include "kernels/core/gpu/tunable.h"
#include "kernels/generation/projections.h"
#include "kernels/products/few_rows.h"

/* Rows that the kernel for few rows is used for. */
TFU_TUNABLE(tiled_rows_most, 32, 0, 256);

static tfu_code few_rows(tfu_call *call, int *served) {
  const tfu_tensor *x = &call->in[TFU_PROJECT_X], *scale = &call->in[TFU_PROJECT_SCALE];
  const int64_t group = call->attr[TFU_PROJECT_GROUP].i, inputs = tfu_cols(&x->shape);
  few_rows_args a = {.x = x->data,
                     .residual = tfu_given_data(&call->in[TFU_PROJECT_RESIDUAL]),
                     .gamma = tfu_given_data(&call->in[TFU_PROJECT_GAMMA]),
                     .inputs = inputs,
                     .epsilon = (float)call->attr[TFU_PROJECT_EPSILON].f,
                     .activation = (int)call->attr[TFU_PROJECT_ACTIVATION].i,
                     .gated = call->attr[TFU_PROJECT_GATED].b,
                     .wide = scale->dtype == tfu_real(x->dtype)};
  unsigned read = a.gamma ? 1u << TFU_PROJECT_GAMMA : 0;
  if (!inputs || call->attr[TFU_PROJECT_ROWS].b ||
      tfu_count(&x->shape) / inputs > (call->invariant ? INT_MAX : tiled_rows_most()))
    return TFU_OK;
  a.rows = (int)(tfu_count(&x->shape) / inputs);
  for (int i = 0; i < TFU_PROJECTIONS; i++) {
    const tfu_tensor *kernel = &call->in[TFU_PROJECT_KERNEL + i];
    if (!tfu_given(&kernel->shape)) continue;
    a.of[i] = (few_rows_product){.kernel = kernel->data,
                                 .scale = call->in[TFU_PROJECT_SCALE + i].data,
                                 .bias = tfu_given_data(&call->in[TFU_PROJECT_BIAS + i]),
                                 .y = call->out[i].data,
                                 .outputs = tfu_cols(&call->in[TFU_PROJECT_SCALE + i].shape)};
    read |= 1u << (TFU_PROJECT_KERNEL + i) | 1u << (TFU_PROJECT_SCALE + i);
  }
  return tfu_few_rows_tiled_run(call, a, (int)call->attr[TFU_PROJECT_BITS].i, group ? group : inputs, x->dtype,
                                (call->constant & read) == read, served);
}

tfu_code tfu_quantized_projections_gpu(tfu_call *call) {
  static const projection_parts parts = {
      .norm = tfu_norm_gpu, .quantized = tfu_quantized_linear_gpu, .gated = tfu_gated_gpu};
  int served = 0;
  TFU_TRY(few_rows(call, &served));
  return served ? TFU_OK : tfu_projections_by_parts(call, &parts);
}
