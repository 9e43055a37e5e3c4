/* add_constant on the CPU; the gradient of the constant is the sum of dy, taken as column sums and folded to one. */
#ifndef REAL
#include "kernels/core/cpu/fold_cpu.h"
#include "kernels/core/cpu/map_cpu.h"
/* Lines of its macros: */
#include "kernels/elementwise/add_constant.h"

typedef struct job {
  const tfu_tensor *dy;
  tfu_fold fold;
} job;

#define TFU_SELF "kernels/elementwise/add_constant_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_add_constant_grad_cpu)

#else
static void FN(sum_task)(void *arg, int64_t task) {
  const job *j = arg;
  REAL buffer[TFU_TILE];
  for (tfu_fold_tile t = tfu_fold_first(&j->fold, task); tfu_fold_next(&j->fold, &t);) {
    const REAL *dy = FN(tfu_load)(j->dy->data, j->dy->dtype, t.at, t.n, buffer);
    double *sums = tfu_fold_sums(&j->fold, t.block, 0) + t.col;
    for (int i = 0; i < t.n; i++) sums[i] += dy[i];
  }
}

static tfu_code FN(tfu_add_constant_grad_cpu)(tfu_call *call) {
  /* One column: the plan joins as many rows as make a tile. */
  const tfu_shape column = {.rank = 2, .dim = {tfu_count(&call->in[0].shape), 1}};
  job j = {.dy = &call->in[0], .fold = tfu_fold_plan(&column)};
  TFU_TRY(tfu_fold_start(call, &j.fold, 1));
  tfu_parallel(j.fold.tasks, FN(sum_task), &j);
  tfu_fold_finish(&j.fold, 0, &call->out[0]);
  return TFU_OK;
}
#endif
