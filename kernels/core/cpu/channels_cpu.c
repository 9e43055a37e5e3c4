#ifndef REAL
#include "kernels/core/cpu/channels_cpu.h"

#include "kernels/core/cpu/fold_cpu.h"

typedef struct job {
  const tfu_channels_run *run;
  tfu_fold fold;                      /* how rows are joined and dealt out */
  const void *w[TFU_CHANNEL_WEIGHTS]; /* one value per column of a joined row, float or double */
} job;

#define TFU_SELF "kernels/core/cpu/channels_cpu.c"
#include "kernels/core/cpu/stamp.h"

static int any_is_longer(const tfu_tensor *t, int count, int64_t than) {
  for (int i = 0; i < count; i++)
    if (tfu_count(&t[i].shape) > than) return 1;
  return 0;
}

tfu_code tfu_channels_cpu(tfu_call *call, const tfu_channels_run *run) {
  const tfu_channels *op = run->op;
  const tfu_shape *shape = &run->x->shape, column = {.rank = 2, .dim = {tfu_count(shape), 1}};
  const int per_channel = any_is_longer(run->w, op->weights, 1) || any_is_longer(run->sums, op->sums, 1);
  const int real_is_f64 = run->x->dtype == TFU_F64;
  job j = {.run = run, .fold = tfu_fold_plan(per_channel ? shape : &column)};
  for (int i = 0; i < op->weights; i++)
    TFU_TRY((real_is_f64 ? spread_f64 : spread_f32)(call, &run->w[i], j.fold.width, op->absent[i], &j.w[i]));
  if (any_is_longer(run->sums, op->sums, 0)) TFU_TRY(tfu_fold_start(call, &j.fold, op->sums));
  if (j.fold.sums) {
    tfu_parallel(j.fold.tasks, real_is_f64 ? summing_task_f64 : summing_task_f32, &j);
  } else { /* in larger tasks than those of a fold, which take less time */
    tfu_parallel_ranges(j.fold.n, tfu_task_size(j.fold.n, TFU_TILE), real_is_f64 ? range_f64 : range_f32, &j);
  }
  for (int q = 0; q < op->sums; q++) tfu_fold_finish(&j.fold, q, &run->sums[q]);
  return TFU_OK;
}

tfu_code tfu_channels_cpu_call(tfu_call *call, const tfu_channels *op, tfu_channel_loop_f32 *loop_f32,
                               tfu_channel_loop_f64 *loop_f64, const void *with) {
  return tfu_channels_cpu(call, &(tfu_channels_run){.op = op,
                                                    .x = call->in,
                                                    .w = call->in + op->tensors,
                                                    .y = call->out,
                                                    .sums = call->out + op->results,
                                                    .loop_f32 = loop_f32,
                                                    .loop_f64 = loop_f64,
                                                    .with = with});
}

#else

/* w as one value per column of a joined row; `absent` if it is not given. */
static tfu_code FN(spread)(tfu_call *call, const tfu_tensor *w, int64_t width, float absent, const void **out) {
  const int64_t n = tfu_count(&w->shape);
  void *memory;
  TFU_TRY(tfu_scratch(call, (size_t)width * sizeof(REAL), &memory));
  REAL *wide = memory, one;
  for (int64_t i = 0; i < width; i++)
    wide[i] = n == 0 ? (REAL)absent : i < n ? *FN(tfu_load)(w->data, w->dtype, i, 1, &one) : wide[i - n];
  *out = wide;
  return TFU_OK;
}

/* n elements from `at` on, which stand in columns col … of a joined row; block: where their sums grow. */
static inline void FN(compute)(const job *j, int64_t at, int64_t col, int n, int64_t block) {
  const tfu_channels_run *run = j->run;
  const tfu_channels *op = run->op;
  REAL xs[TFU_CHANNEL_TENSORS][TFU_TILE], ys[TFU_CHANNEL_RESULTS][TFU_TILE];
  FN(tfu_channel_tile) tile = {.n = n, .at = at, .with = run->with};
  for (int i = 0; i < op->tensors; i++) tile.x[i] = FN(tfu_load)(run->x[i].data, run->x[i].dtype, at, n, xs[i]);
  for (int i = 0; i < op->weights; i++) tile.w[i] = (const REAL *)j->w[i] + col;
  for (int i = 0; i < op->results; i++) tile.y[i] = FN(tfu_room)(run->y[i].data, run->y[i].dtype, at, ys[i]);
  for (int q = 0; j->fold.sums && q < op->sums; q++) tile.sums[q] = tfu_fold_sums(&j->fold, block, q) + col;
  run->FN(loop)(&tile);
  for (int i = 0; i < op->results; i++) FN(tfu_store)(run->y[i].data, run->y[i].dtype, at, n, tile.y[i]);
}

static void FN(range)(void *arg, int64_t at, int64_t end) {
  const job *j = arg;
  const int64_t width = j->fold.width;
  while (at < end) {
    const int64_t col = at % width, left = width - col < end - at ? width - col : end - at;
    const int n = left < TFU_TILE ? (int)left : TFU_TILE;
    FN(compute)(j, at, col, n, 0);
    at += n;
  }
}

static void FN(summing_task)(void *arg, int64_t task) {
  const job *j = arg;
  for (tfu_fold_tile t = tfu_fold_first(&j->fold, task); tfu_fold_next(&j->fold, &t);)
    FN(compute)(j, t.at, t.col, t.n, t.block);
}
#endif
