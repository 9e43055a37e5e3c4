/* scale_bias_act on the CPU. Rows are joined until they fill a tile (a row of 3 channels would starve the vector unit),
 * and scale and bias are spread out to the length of a joined row, so every loop runs over plain vectors. */
#ifndef REAL
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/fold_cpu.h"

typedef struct job {
  tfu_call *call;
  const tfu_tensor *x;
  tfu_fold fold;            /* how rows are joined; used by the gradient to sum */
  const void *scale, *bias; /* one value per column of a joined row, float or double */
  const tfu_activation *act;
  int64_t task; /* elements of a task of the forward pass */
  int sums;     /* the gradient of scale or bias is wanted */
} job;

#define TFU_SELF "kernels/elementwise/scale_bias_act_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_scale_bias_act_cpu)
TFU_BY_REAL(tfu_scale_bias_act_grad_cpu)

#else

/* v as one value per column of a joined row; `otherwise` if it is not given. */
static tfu_code FN(spread)(tfu_call *call, const tfu_tensor *v, int64_t width, REAL otherwise, const void **out) {
  const int64_t n = tfu_count(&v->shape);
  void *memory;
  TFU_TRY(tfu_scratch(call, (size_t)width * sizeof(REAL), &memory));
  REAL *wide = memory, one;
  for (int64_t i = 0; i < width; i++)
    wide[i] = n == 0 ? otherwise : i < n ? *FN(tfu_load)(v->data, v->dtype, i, 1, &one) : wide[i - n];
  *out = wide;
  return TFU_OK;
}

/* Without a value per channel the tensor is one long column. An absent bias is -0: x + -0 is x, even for x = -0. */
static tfu_code FN(prepare)(tfu_call *call, job *j, const tfu_tensor *x, const tfu_tensor *scale,
                            const tfu_tensor *bias) {
  const int64_t scales = tfu_count(&scale->shape), biases = tfu_count(&bias->shape);
  const tfu_shape column = {.rank = 2, .dim = {tfu_count(&x->shape), 1}};
  *j = (job){.call = call,
             .x = x,
             .fold = tfu_fold_plan(scales > 1 || biases > 1 ? &x->shape : &column),
             .act = &tfu_activations[call->attr[0].i],
             .sums = scales || biases};
  TFU_TRY(FN(spread)(call, scale, j->fold.width, 1, &j->scale));
  return FN(spread)(call, bias, j->fold.width, (REAL)-0.0, &j->bias);
}

static void FN(forward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const tfu_tensor *out = &j->call->out[0];
  const int64_t end = (task + 1) * j->task < j->fold.n ? (task + 1) * j->task : j->fold.n;
  REAL xs[TFU_TILE], vs[TFU_TILE];
  for (int64_t at = task * j->task; at < end;) {
    const int64_t col = at % j->fold.width, left = j->fold.width - col < end - at ? j->fold.width - col : end - at;
    const int n = left < TFU_TILE ? (int)left : TFU_TILE;
    const REAL *x = FN(tfu_load)(j->x->data, j->x->dtype, at, n, xs);
    REAL *v = FN(tfu_room)(out->data, out->dtype, at, vs);
    j->act->FN(value)(v, x, (const REAL *)j->scale + col, (const REAL *)j->bias + col, n);
    FN(tfu_store)(out->data, out->dtype, at, n, v);
    at += n;
  }
}

static tfu_code FN(tfu_scale_bias_act_cpu)(tfu_call *call) {
  job j;
  TFU_TRY(FN(prepare)(call, &j, &call->in[0], &call->in[1], &call->in[2]));
  j.task = tfu_task_size(j.fold.n, TFU_TILE);
  tfu_parallel((j.fold.n + j.task - 1) / j.task, FN(forward_task), &j);
  return TFU_OK;
}

static void FN(backward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const tfu_tensor *dy = &j->call->in[0], *dx = &j->call->out[0];
  REAL xs[TFU_TILE], gs[TFU_TILE], ds[TFU_TILE], v[TFU_TILE];
  for (tfu_fold_tile t = tfu_fold_first(&j->fold, task); tfu_fold_next(&j->fold, &t);) {
    const REAL *x = FN(tfu_load)(j->x->data, j->x->dtype, t.at, t.n, xs);
    const REAL *g = FN(tfu_load)(dy->data, dy->dtype, t.at, t.n, gs);
    const REAL *scale = (const REAL *)j->scale + t.col;
    REAL *d = FN(tfu_room)(dx->data, dx->dtype, t.at, ds);
    j->act->FN(grad)(v, x, scale, (const REAL *)j->bias + t.col, t.n);
    if (j->sums) {
      double *dscale = tfu_fold_sums(&j->fold, t.block, 0) + t.col,
             *dbias = tfu_fold_sums(&j->fold, t.block, 1) + t.col;
      TFU_VECTORISE
      for (int i = 0; i < t.n; i++) {
        const REAL slope = v[i] * g[i];
        dscale[i] += slope * x[i], dbias[i] += slope;
      }
    }
    TFU_VECTORISE
    for (int i = 0; i < t.n; i++) d[i] = v[i] * g[i] * scale[i];
    FN(tfu_store)(dx->data, dx->dtype, t.at, t.n, d);
  }
}

static tfu_code FN(tfu_scale_bias_act_grad_cpu)(tfu_call *call) {
  job j;
  TFU_TRY(FN(prepare)(call, &j, &call->in[1], &call->in[2], &call->in[3]));
  if (j.sums) TFU_TRY(tfu_fold_start(call, &j.fold, 2));
  tfu_parallel(j.fold.tasks, FN(backward_task), &j);
  tfu_fold_finish(&j.fold, 0, &call->out[1]);
  tfu_fold_finish(&j.fold, 1, &call->out[2]);
  return TFU_OK;
}
#endif
