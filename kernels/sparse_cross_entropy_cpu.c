/* sparse_cross_entropy on the CPU, with lse = max + log(sum of exp(x - max)) of a row:
 *
 *   loss = log(sum) + (1 - smoothing) * (max - x[label]) + smoothing * (max - mean of x) + z_loss * lse^2,
 *
 * the formula of ops/sparse_cross_entropy.c such that large logits do not cancel. Numbers of a row are double. */
#ifndef REAL
#include "kernels/core/rows_cpu.h"

typedef struct job {
  tfu_call *call;
  tfu_rows_cpu plan;
  double smoothing, z_loss;
  int64_t ignored;
} job;

static tfu_code prepare(tfu_call *call, job *j) {
  *j = (job){.call = call,
             .plan = tfu_plan_rows_cpu(&call->in[0].shape),
             .smoothing = call->attr[0].f,
             .z_loss = call->attr[1].f,
             .ignored = call->attr[2].i};
  TFU_TRY(tfu_check_reals(call));
  return tfu_check_integers(call, "labels", &call->in[1]);
}

/* Whether the label names a class; INT64_MIN never does, so it can stand for "nothing is ignored". */
static int counts(const job *j, int64_t label) { return label >= 0 && label < j->plan.cols && label != j->ignored; }

static tfu_code check_labels(const job *j) {
  for (int64_t row = 0; row < j->plan.rows; row++) {
    const int64_t label = tfu_integer(&j->call->in[1], row);
    const int ignored = label == j->ignored && label != INT64_MIN;
    TFU_REQUIRE(j->call->err, counts(j, label) || ignored,
                "labels must be in [0, %lld) to be classes of x, got %lld at row %lld; set ignore_class for a label "
                "that marks rows to leave out",
                (long long)j->plan.cols, (long long)label, (long long)row);
  }
  return TFU_OK;
}

#define TFU_SELF "kernels/sparse_cross_entropy_cpu.c"
#include "kernels/core/stamp.h"
TFU_BY_REAL(tfu_sparse_cross_entropy_cpu)
TFU_BY_REAL(tfu_sparse_cross_entropy_grad_cpu)

#else

static void FN(forward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const tfu_tensor *in = j->call->in;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task);
  REAL *losses = j->call->out[0].data, *kept = j->call->out[1].data, e[TFU_CHUNK], one;
  FN(tfu_reader) x;
  FN(tfu_open)(&x, &in[0], end * cols);
  for (int64_t row = tfu_first_row(&j->plan, task); row < end; row++) {
    const int64_t label = tfu_integer(&in[1], row);
    tfu_lse lse = TFU_LSE_EMPTY;
    double sum = 0;
    for (TFU_EACH_CHUNK(col, n, cols)) {
      const REAL *v = FN(tfu_read)(&x, row * cols + col, n);
      FN(tfu_lse_add)(&lse, v, e, (int)n);
      if (j->smoothing != 0) sum += TFU_SUM((int)n, v[i]);
    }
    const double log_sum = log(lse.sum), total = lse.max + log_sum;
    kept[2 * row] = (REAL)lse.max;
    kept[2 * row + 1] = (REAL)lse.sum;
    losses[row] = 0;
    if (!counts(j, label)) continue;
    const double hit = (double)*FN(tfu_load)(in[0].data, in[0].dtype, row * cols + label, 1, &one);
    double loss = log_sum + (1 - j->smoothing) * (lse.max - hit);
    if (j->smoothing != 0) loss += j->smoothing * (lse.max - sum / (double)cols); /* 0 times infinity is NaN */
    if (j->z_loss != 0) loss += j->z_loss * total * total;
    losses[row] = (REAL)loss;
  }
}

static tfu_code FN(tfu_sparse_cross_entropy_cpu)(tfu_call *call) {
  job j;
  TFU_TRY(prepare(call, &j));
  TFU_TRY(check_labels(&j));
  tfu_parallel(j.plan.tasks, FN(forward_task), &j);
  return TFU_OK;
}

static void FN(backward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task);
  const REAL *stats = j->call->in[2].data, *dlosses = j->call->in[3].data;
  FN(tfu_reader) x;
  FN(tfu_writer) dx;
  FN(tfu_open)(&x, &j->call->in[0], end * cols);
  FN(tfu_create)(&dx, &j->call->out[0]);
  for (int64_t row = tfu_first_row(&j->plan, task); row < end; row++) {
    const int64_t label = tfu_integer(&j->call->in[1], row);
    const double max = stats[2 * row], sum = stats[2 * row + 1], dloss = dlosses[row];
    const double push = j->z_loss != 0 ? 2 * j->z_loss * (max + log(sum)) : 0, even = j->smoothing / (double)cols;
    const REAL factor = (REAL)(dloss * (1 + push) / sum);
    for (TFU_EACH_CHUNK(col, n, cols)) {
      const REAL *v = FN(tfu_read)(&x, row * cols + col, n);
      REAL *d = FN(tfu_write)(&dx, row * cols + col, n);
      const int hit = label >= col && label < col + n;
      const double y = hit ? exp(v[label - col] - max) / sum : 0; /* read first: d may be v */
      if (!counts(j, label)) memset(d, 0, (size_t)n * sizeof *d);
      else FN(tfu_exp_line)(d, v, (REAL)max, factor, (REAL)(dloss * even), (int)n);
      /* A sure class is where terms cancel, so they are taken in this order. */
      if (counts(j, label) && hit) d[label - col] = (REAL)(dloss * (y - (1 - j->smoothing) - even + push * y));
    }
  }
  FN(tfu_flush)(&dx);
}

static tfu_code FN(tfu_sparse_cross_entropy_grad_cpu)(tfu_call *call) {
  job j;
  TFU_TRY(prepare(call, &j));
  tfu_parallel(j.plan.tasks, FN(backward_task), &j);
  return TFU_OK;
}
#endif
