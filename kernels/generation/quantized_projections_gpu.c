/* QuantizedProjections on the GPU: by the kernel for few rows in tiles where that serves them, otherwise by the ops
 * that they are made of. */
#include "ops/generation/quantized_projections.h"

#include <limits.h>

#include "kernels/core/gpu/tunable.h"
#include "kernels/generation/projections.h"
#include "kernels/products/few_rows.h"

/* Rows that the kernel for few rows is used for. */
TFU_TUNABLE(tiled_rows_most, 32, 0, 256);

static int has_few(const tfu_call *call) {
  const tfu_shape *x = &call->in[TFU_PROJECT_X].shape;
  return tfu_cols(x) && tfu_count(x) / tfu_cols(x) <= (call->invariant ? INT_MAX : tiled_rows_most());
}

/* All that the products are, but for x and its norm. `read`: which inputs are kernels and scales, a bit each. */
static few_rows_args args_of(const tfu_call *call, unsigned *read) {
  const tfu_tensor *x = &call->in[TFU_PROJECT_X], *scale = &call->in[TFU_PROJECT_SCALE];
  few_rows_args a = {.residual = tfu_given_data(&call->in[TFU_PROJECT_RESIDUAL]),
                     .inputs = tfu_cols(&x->shape),
                     .rows = (int)(tfu_count(&x->shape) / tfu_cols(&x->shape)),
                     .activation = (int)call->attr[TFU_PROJECT_ACTIVATION].i,
                     .gated = call->attr[TFU_PROJECT_GATED].b,
                     .wide = scale->dtype == tfu_real(x->dtype)};
  *read = 0;
  for (int i = 0; i < TFU_PROJECTIONS; i++) {
    const tfu_tensor *kernel = &call->in[TFU_PROJECT_KERNEL + i];
    if (!tfu_given(&kernel->shape)) continue;
    a.of[i] = (few_rows_product){.kernel = kernel->data,
                                 .scale = call->in[TFU_PROJECT_SCALE + i].data,
                                 .bias = tfu_given_data(&call->in[TFU_PROJECT_BIAS + i]),
                                 .y = call->out[i].data,
                                 .outputs = tfu_cols(&call->in[TFU_PROJECT_SCALE + i].shape)};
    *read |= 1u << (TFU_PROJECT_KERNEL + i) | 1u << (TFU_PROJECT_SCALE + i);
  }
  return a;
}

static int64_t group_of(const tfu_call *call) {
  const int64_t group = call->attr[TFU_PROJECT_GROUP].i;
  return group ? group : tfu_cols(&call->in[TFU_PROJECT_X].shape);
}

static tfu_code few_rows(tfu_call *call, int *served) {
  const tfu_tensor *x = &call->in[TFU_PROJECT_X];
  unsigned read;
  if (!has_few(call)) return TFU_OK;
  few_rows_args a = args_of(call, &read);
  a.x = x->data;
  a.gamma = tfu_given_data(&call->in[TFU_PROJECT_GAMMA]);
  a.epsilon = (float)call->attr[TFU_PROJECT_EPSILON].f;
  a.rounds = call->attr[TFU_PROJECT_ROWS].b;
  if (a.gamma) read |= 1u << TFU_PROJECT_GAMMA;
  return tfu_few_rows_tiled_run(call, a, (int)call->attr[TFU_PROJECT_BITS].i, group_of(call), x->dtype,
                                (call->constant & read) == read, served);
}

tfu_code tfu_quantized_projections_gpu(tfu_call *call) {
  static const projection_parts parts = {
      .norm = tfu_norm_gpu, .quantized = tfu_quantized_linear_gpu, .gated = tfu_gated_gpu};
  int served = 0;
  TFU_TRY(few_rows(call, &served));
  return served ? TFU_OK : tfu_projections_by_parts(call, &parts);
}
