#include "kernels/generation/projections.h"

#include "activations.h"
#include "kernels/core/recycle.h"
#include "ops/generation/quantized_projections.h"
#include "ops/products/quantized_linear.h"
#include "ops/rows/norm.h"

static tfu_code normed(tfu_call *call, tfu_recycled *space, const projection_parts *parts, tfu_tensor *x) {
  const tfu_tensor *gamma = &call->in[TFU_PROJECT_GAMMA];
  *x = call->in[TFU_PROJECT_X];
  if (!tfu_given(&gamma->shape)) return TFU_OK;
  const tfu_tensor from = *x;
  const tfu_shape rows = tfu_leading(&from.shape);
  tfu_tensor stats;
  TFU_TRY(tfu_scratch_like(call, from, x));
  TFU_TRY(tfu_scratch_like(call, (tfu_tensor){.dtype = gamma->dtype, .shape = tfu_append(&rows, 2)}, &stats));
  tfu_call *norm = tfu_part(space, &tfu_norm);
  norm->attr[TFU_NORM_KIND].i = TFU_RMS_NORM;
  norm->attr[TFU_NORM_EPSILON].f = call->attr[TFU_PROJECT_EPSILON].f;
  norm->in[TFU_NORM_X] = from;
  norm->in[TFU_NORM_GAMMA] = *gamma;
  norm->in[TFU_NORM_BETA].dtype = gamma->dtype;
  norm->in[TFU_NORM_SEED].dtype = TFU_I64;
  norm->out[TFU_NORM_Y] = *x;
  norm->out[TFU_NORM_STATS] = stats;
  return parts->norm(norm);
}

/* With a kernel in tiles. */
static tfu_code project_quantized(tfu_call *call, tfu_recycled *space, const projection_parts *parts,
                                  const tfu_tensor *x, int i, int64_t activation, tfu_tensor y) {
  tfu_call *linear = tfu_part(space, &tfu_quantized_linear);
  linear->attr[TFU_QUANT_ACTIVATION].i = activation;
  linear->attr[TFU_QUANT_BITS] = call->attr[TFU_PROJECT_BITS];
  linear->attr[TFU_QUANT_GROUP] = call->attr[TFU_PROJECT_GROUP];
  linear->attr[TFU_QUANT_ORDER].i = TFU_QUANT_TILES;
  linear->attr[TFU_QUANT_ROWS] = call->attr[TFU_PROJECT_ROWS];
  linear->in[TFU_QUANT_X] = *x;
  linear->in[TFU_QUANT_KERNEL] = call->in[TFU_PROJECT_KERNEL + i];
  linear->in[TFU_QUANT_SCALE] = call->in[TFU_PROJECT_SCALE + i];
  linear->in[TFU_QUANT_BIAS] = call->in[TFU_PROJECT_BIAS + i];
  if (i == 0 && !call->attr[TFU_PROJECT_GATED].b) linear->in[TFU_QUANT_RESIDUAL] = call->in[TFU_PROJECT_RESIDUAL];
  linear->out[0] = y;
  return parts->quantized(linear);
}

static tfu_code project(tfu_call *call, tfu_recycled *space, const projection_parts *parts, const tfu_tensor *x, int i,
                        int64_t activation, tfu_tensor y) {
  if (parts->quantized) return project_quantized(call, space, parts, x, i, activation, y);
  tfu_call *linear = tfu_part(space, &tfu_linear);
  linear->attr[TFU_LINEAR_ACTIVATION].i = activation;
  linear->in[TFU_LINEAR_X] = *x;
  linear->in[TFU_LINEAR_KERNEL] = call->in[TFU_PROJECT_KERNEL + i];
  linear->in[TFU_LINEAR_BIAS] = call->in[TFU_PROJECT_BIAS + i];
  if (i == 0 && !call->attr[TFU_PROJECT_GATED].b) linear->in[TFU_LINEAR_RESIDUAL] = call->in[TFU_PROJECT_RESIDUAL];
  linear->out[TFU_LINEAR_Y] = y;
  return parts->linear(linear);
}

tfu_code tfu_projections_by_parts(tfu_call *call, const projection_parts *parts) {
  const int64_t activation = call->attr[TFU_PROJECT_ACTIVATION].i;
  tfu_recycled space;
  tfu_tensor x, factor[2];
  int served = 0;
  tfu_recycled_open(&space, call);
  TFU_TRY(normed(call, &space, parts, &x));
  if (parts->together) TFU_TRY(parts->together(call, &x, &served));
  if (served) return TFU_OK;
  if (!call->attr[TFU_PROJECT_GATED].b) {
    for (int i = 0; i < TFU_PROJECTIONS; i++)
      if (tfu_given(&call->in[TFU_PROJECT_KERNEL + i].shape))
        TFU_TRY(project(call, &space, parts, &x, i, activation, call->out[i]));
    return TFU_OK;
  }
  for (int i = 0; i < 2; i++) {
    TFU_TRY(tfu_scratch_like(call, call->out[0], &factor[i]));
    TFU_TRY(project(call, &space, parts, &x, i, TFU_ACT_linear, factor[i]));
  }
  tfu_call *gated = tfu_part(&space, &tfu_gated);
  gated->attr[0].i = activation;
  gated->in[0] = factor[0];
  gated->in[1] = factor[1];
  gated->out[0] = call->out[0];
  return parts->gated(gated);
}
