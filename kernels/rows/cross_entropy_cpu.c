/* cross_entropy on the CPU, with lse = max + log(sum of exp(x - max)) of a row and targets t' = (1 - smoothing) * t +
 * smoothing / classes:
 *
 *   loss = (sum of t') * log(sum) + sum of t' * (max - x) + z_loss * lse^2,
 *
 * the formula of ops/rows/cross_entropy.c such that large logits do not cancel. A row that fits in a chunk is in the
 * cache for its second look. Numbers of a row are double. */
#ifndef REAL
#include "kernels/core/cpu/rows_cpu.h"

typedef struct job {
  tfu_call *call;
  tfu_rows_cpu plan;
  double smoothing, z_loss;
} job;

static tfu_code run(tfu_call *call, void (*task)(void *, int64_t)) {
  job j = {.call = call,
           .plan = tfu_plan_rows_cpu(&call->in[0].shape),
           .smoothing = call->attr[0].f,
           .z_loss = call->attr[1].f};
  tfu_parallel(j.plan.tasks, task, &j);
  return TFU_OK;
}

#define TFU_SELF "kernels/rows/cross_entropy_cpu.c"
#include "kernels/core/cpu/stamp.h"

tfu_code tfu_cross_entropy_cpu(tfu_call *call) { return run(call, TFU_OF_REAL(call, forward_task)); }
tfu_code tfu_cross_entropy_grad_cpu(tfu_call *call) { return run(call, TFU_OF_REAL(call, backward_task)); }

#else

/* A class without a target costs nothing, even one whose logit is minus infinity. */
static inline REAL FN(cost)(REAL target, REAL distance) { return target == 0 ? 0 : target * distance; }

static void FN(forward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task);
  const double share = 1 - j->smoothing, even = j->smoothing / (double)cols;
  REAL *losses = j->call->out[0].data, *stats = j->call->out[1].data, e[TFU_CHUNK];
  FN(tfu_reader) x, targets;
  FN(tfu_open)(&x, &j->call->in[0], end * cols);
  FN(tfu_open)(&targets, &j->call->in[1], end * cols);
  for (int64_t row = tfu_first_row(&j->plan, task); row < end; row++) {
    tfu_lse lse = TFU_LSE_EMPTY;
    double weight = 0, costs = 0, evenly = 0; /* of the targets as they came, and of an even share for all classes */
    for (TFU_EACH_CHUNK(col, n, cols)) FN(tfu_lse_add)(&lse, FN(tfu_read)(&x, row * cols + col, n), e, (int)n);
    const REAL max = (REAL)lse.max;
    for (TFU_EACH_CHUNK(col, n, cols)) {
      const REAL *v = FN(tfu_read)(&x, row * cols + col, n), *t = FN(tfu_read)(&targets, row * cols + col, n);
      weight += TFU_SUM((int)n, t[i]);
      TFU_VECTORISED(i, n) e[i] = FN(cost)(t[i], max - v[i]);
      costs += TFU_SUM((int)n, e[i]);
      if (even != 0) evenly += TFU_SUM((int)n, max - v[i]);
    }
    const double log_sum = log(lse.sum), total = lse.max + log_sum;
    weight = share * weight + j->smoothing;
    costs = share * costs + (even != 0 ? even * evenly : 0);
    losses[row] = (REAL)(weight * log_sum + costs + (j->z_loss != 0 ? j->z_loss * total * total : 0));
    stats[3 * row] = (REAL)lse.max;
    stats[3 * row + 1] = (REAL)lse.sum;
    stats[3 * row + 2] = (REAL)weight;
  }
}

static void FN(backward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task);
  const REAL *stats = j->call->in[2].data, *dlosses = j->call->in[3].data;
  REAL e[TFU_CHUNK];
  FN(tfu_reader) x, targets;
  FN(tfu_writer) dx, dtargets;
  const int wanted = tfu_given(&j->call->out[1].shape);
  FN(tfu_open)(&x, &j->call->in[0], end * cols);
  FN(tfu_open)(&targets, &j->call->in[1], end * cols);
  FN(tfu_create)(&dx, &j->call->out[0]);
  FN(tfu_create)(&dtargets, &j->call->out[1]);
  for (int64_t row = tfu_first_row(&j->plan, task); row < end; row++) {
    const double max = stats[3 * row], sum = stats[3 * row + 1], dloss = dlosses[row];
    const double push = j->z_loss != 0 ? 2 * j->z_loss * (max + log(sum)) : 0;
    const REAL factor = (REAL)(dloss * (stats[3 * row + 2] + push) / sum);
    const REAL share = (REAL)(dloss * (1 - j->smoothing)), even = (REAL)(dloss * j->smoothing / (double)cols);
    const REAL top = (REAL)max, log_sum = wanted ? (REAL)log(sum) : 0;
    for (TFU_EACH_CHUNK(col, n, cols)) {
      const REAL *v = FN(tfu_read)(&x, row * cols + col, n), *t = FN(tfu_read)(&targets, row * cols + col, n);
      if (wanted) {
        REAL *d = FN(tfu_write)(&dtargets, row * cols + col, n);
        TFU_VECTORISED(i, n) d[i] = share * (log_sum - (v[i] - top));
      }
      REAL *d = FN(tfu_write)(&dx, row * cols + col, n);
      FN(tfu_exp_line)(e, v, (REAL)max, factor, even, (int)n);
      TFU_VECTORISED(i, n) d[i] = e[i] - share * t[i];
    }
  }
  FN(tfu_flush)(&dx);
  if (wanted) FN(tfu_flush)(&dtargets);
}
#endif
