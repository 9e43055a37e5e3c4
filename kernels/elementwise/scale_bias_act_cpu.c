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
    TFU_VECTORISE
    for (int i = 0; i < t->n; i++) {
      const REAL g = slope[i] * dy[i];
      dscale[i] += g * x[i], dbias[i] += g;
    }
  }
  TFU_VECTORISE
  for (int i = 0; i < t->n; i++) dx[i] = slope[i] * dy[i] * scale[i];
}
#endif
