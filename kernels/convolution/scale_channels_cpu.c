/* scale_channels on the CPU: a task has some channels of an image, and goes through its positions. The sums of a
 * gradient are taken in double: an image may have many positions, which are added up one after the other. */
#ifndef REAL
#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/rows_cpu.h"

typedef struct scale_job {
  const tfu_tensor *dy, *x, *scale, *y, *dscale; /* dy and dscale: of the gradient alone, where y is dx */
  int64_t positions, channels, tiles;
  int drop;
} scale_job;

#define TFU_SELF "kernels/convolution/scale_channels_cpu.c"
#include "kernels/core/cpu/stamp.h"

static tfu_code run(const tfu_call *call, scale_job j) {
  const tfu_shape *shape = &j.x->shape;
  j.channels = tfu_cols(shape);
  j.tiles = divide_up(j.channels, TFU_TILE);
  j.positions = 1;
  for (int i = 1; i < shape->rank - 1; i++) j.positions *= shape->dim[i];
  tfu_parallel(shape->dim[0] * j.tiles, TFU_OF_REAL(call, scale_task), &j);
  return TFU_OK;
}

tfu_code tfu_scale_channels_cpu(tfu_call *call) {
  const tfu_tensor *in = call->in;
  return run(call, (scale_job){.x = &in[0], .scale = &in[1], .y = &call->out[0], .drop = call->attr[0].b});
}

tfu_code tfu_scale_channels_grad_cpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out;
  return run(call, (scale_job){.dy = &in[0], .x = &in[1], .scale = &in[2], .y = &out[0], .dscale = &out[1]});
}

#else

static void FN(scale_task)(void *arg, int64_t task) {
  const scale_job *j = arg;
  const int64_t image = task / j->tiles, first = task % j->tiles * TFU_TILE;
  const int n = (int)least(TFU_TILE, j->channels - first);
  REAL scales[TFU_TILE], xs[TFU_TILE], dys[TFU_TILE], room[TFU_TILE];
  double sum[TFU_TILE] = {0};
  const REAL *s = FN(tfu_load)(j->scale->data, j->scale->dtype, image * j->channels + first, n, scales);
  for (int64_t p = 0; p < j->positions; p++) {
    const int64_t at = (image * j->positions + p) * j->channels + first;
    const REAL *x = FN(tfu_load)(j->x->data, j->x->dtype, at, n, xs), *factor = x;
    if (j->dscale) {
      const REAL *dy = factor = FN(tfu_load)(j->dy->data, j->dy->dtype, at, n, dys);
      TFU_VECTORISED(k, n) sum[k] += (double)dy[k] * x[k];
    }
    REAL *y = FN(tfu_room)(j->y->data, j->y->dtype, at, room);
    TFU_VECTORISED(k, n) y[k] = j->drop && s[k] == 0 ? 0 : factor[k] * s[k];
    FN(tfu_store)(j->y->data, j->y->dtype, at, n, y);
  }
  if (!j->dscale) return;
  for (int k = 0; k < n; k++) room[k] = (REAL)sum[k];
  FN(tfu_store)(j->dscale->data, j->dscale->dtype, image * j->channels + first, n, room);
}
#endif
