/* scale_bias_act on the CPU: act(x * scale + bias) is a loop of the table of activations. */
#ifndef REAL
#include "kernels/elementwise/scale_bias_act.h"

#include "kernels/core/cpu/channels_cpu.h"

#define TFU_SELF "kernels/elementwise/scale_bias_act_cpu.c"
#include "kernels/core/cpu/stamp.h"

tfu_code tfu_scale_bias_act_cpu(tfu_call *call) {
  const tfu_activation *act = &tfu_activations[call->attr[TFU_SCALE_BIAS_ACT_ACTIVATION].i];
  return tfu_channels_cpu_call(call, &tfu_scale_bias_act_channels, forward_f32, forward_f64, act);
}

tfu_code tfu_scale_bias_act_grad_cpu(tfu_call *call) {
  const tfu_activation *act = &tfu_activations[call->attr[TFU_SCALE_BIAS_ACT_ACTIVATION].i];
  return tfu_channels_cpu_call(call, &tfu_scale_bias_act_grad_channels, backward_f32, backward_f64, act);
}

/* ---- for other ops ---- */

tfu_code tfu_act_grad_cpu(tfu_call *call, int64_t activation, const tfu_tensor *dy, const tfu_tensor *x, tfu_tensor *dx,
                          const tfu_tensor *dbias) {
  static const tfu_tensor unscaled[2] = {{.shape.rank = 1}, {.shape.rank = 1}};
  static const tfu_channels slope = {2, 2, 1, 1, {1, -0.0f}};  /* dy and x; no scale, no bias; dx; dbias */
  static const tfu_channels sum = TFU_CHANNELS_OP(1, 0, 0, 1); /* dy; dbias */
  tfu_channels_run run = {.op = &sum, .x = dy, .sums = dbias, .loop_f32 = sum_f32, .loop_f64 = sum_f64};
  *dx = *dy;
  if (activation == TFU_ACT_linear) return tfu_count(&dbias->shape) ? tfu_channels_cpu(call, &run) : TFU_OK;
  dx->dtype = tfu_real(dy->dtype);
  TFU_TRY(tfu_scratch(call, (size_t)tfu_count(&dy->shape) * tfu_dtype_size(dx->dtype), &dx->data));
  run = (tfu_channels_run){.op = &slope,
                           .x = (const tfu_tensor[]){*dy, *x},
                           .w = unscaled,
                           .y = dx,
                           .sums = dbias,
                           .loop_f32 = slope_f32,
                           .loop_f64 = slope_f64,
                           .with = &tfu_activations[activation]};
  return tfu_channels_cpu(call, &run);
}

#else

static void FN(forward)(const FN(tfu_channel_tile) * t) {
  const tfu_activation *act = t->with;
  act->FN(value)(t->y[0], t->x[0], t->w[0], t->w[1], t->n);
}

static void FN(backward)(const FN(tfu_channel_tile) * t) {
  const tfu_activation *act = t->with;
  const REAL *dy = t->x[0], *x = t->x[1], *scale = t->w[0];
  REAL slope[TFU_TILE], *dx = t->y[0];
  double *dscale = t->sums[0], *dbias = t->sums[1];
  act->FN(grad)(slope, x, scale, t->w[1], t->n);
  if (dscale) {
    TFU_VECTORISED(i, t->n) {
      const REAL g = slope[i] * dy[i];
      dscale[i] += g * x[i], dbias[i] += g;
    }
  }
  TFU_VECTORISED(i, t->n) dx[i] = slope[i] * dy[i] * scale[i];
}

static void FN(slope)(const FN(tfu_channel_tile) * t) {
  const tfu_activation *act = t->with;
  const REAL *dy = t->x[0];
  REAL *dx = t->y[0];
  double *dbias = t->sums[0];
  act->FN(grad)(dx, t->x[1], t->w[0], t->w[1], t->n);
  TFU_VECTORISED(i, t->n) dx[i] *= dy[i];
  if (!dbias) return;
  TFU_VECTORISED(i, t->n) dbias[i] += dx[i];
}

static void FN(sum)(const FN(tfu_channel_tile) * t) {
  TFU_VECTORISED(i, t->n) t->sums[0][i] += t->x[0][i];
}
#endif
