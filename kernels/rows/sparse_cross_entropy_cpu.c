/* sparse_cross_entropy on the CPU, with lse = max + log(sum of exp(x - max)) of a row:
 *
 *   loss = log(sum) + (1 - smoothing) * (max - x[label]) + smoothing * (max - mean of x) + z_loss * lse^2,
 *
 * the formula of ops/rows/cross_entropy.c such that large logits do not cancel. Numbers of a row are double. */
#ifndef REAL
#include "kernels/rows/sparse_cross_entropy_cpu.h"

static tfu_code prepare(tfu_call *call, tfu_sparse_rows *j) {
  *j = (tfu_sparse_rows){.plan = tfu_plan_rows_cpu(&call->in[0].shape),
                         .x = call->in[0],
                         .labels = call->in[1],
                         .smoothing = call->attr[0].f,
                         .z_loss = call->attr[1].f,
                         .ignored = call->attr[2].i};
  return tfu_check_integers(call, "labels", &call->in[1]);
}

/* Whether the label names a class; INT64_MIN never does, so it can stand for "nothing is ignored". */
static int counts(int64_t label, int64_t classes, int64_t ignored) {
  return label >= 0 && label < classes && label != ignored;
}

tfu_code tfu_check_labels(const tfu_tensor *labels, int64_t classes, int64_t ignored, tfu_error *err) {
  for (int64_t row = 0; row < tfu_count(&labels->shape); row++) {
    const int64_t label = tfu_integer(labels, row);
    const int left_out = label == ignored && label != INT64_MIN;
    TFU_REQUIRE(err, counts(label, classes, ignored) || left_out,
                "labels must be in [0, %lld) to be classes, got %lld at row %lld; set ignore_class for a label that "
                "marks rows to leave out",
                (long long)classes, (long long)label, (long long)row);
  }
  return TFU_OK;
}

#define TFU_SELF "kernels/rows/sparse_cross_entropy_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_sparse_cross_entropy_cpu)
TFU_BY_REAL(tfu_sparse_cross_entropy_grad_cpu)

#else

static void FN(forward_task)(void *arg, int64_t task) {
  const tfu_sparse_rows *j = arg;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task);
  REAL *losses = j->loss, *kept = j->stats, e[TFU_CHUNK], one;
  FN(tfu_reader) x;
  FN(tfu_open)(&x, &j->x, end * cols);
  for (int64_t row = tfu_first_row(&j->plan, task); row < end; row++) {
    const int64_t label = tfu_integer(&j->labels, row);
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
    if (!counts(label, cols, j->ignored)) continue;
    const double hit = (double)*FN(tfu_load)(j->x.data, j->x.dtype, row * cols + label, 1, &one);
    double loss = log_sum + (1 - j->smoothing) * (lse.max - hit);
    if (j->smoothing != 0) loss += j->smoothing * (lse.max - sum / (double)cols); /* 0 times infinity is NaN */
    if (j->z_loss != 0) loss += j->z_loss * total * total;
    losses[row] = (REAL)loss;
  }
}

void FN(tfu_sparse_forward)(const tfu_sparse_rows *rows) {
  tfu_parallel(rows->plan.tasks, FN(forward_task), (void *)rows);
}

static tfu_code FN(tfu_sparse_cross_entropy_cpu)(tfu_call *call) {
  tfu_sparse_rows j;
  TFU_TRY(prepare(call, &j));
  TFU_TRY(tfu_check_labels(&j.labels, j.plan.cols, j.ignored, call->err));
  j.loss = call->out[0].data;
  j.stats = call->out[1].data;
  FN(tfu_sparse_forward)(&j);
  return TFU_OK;
}

static void FN(backward_task)(void *arg, int64_t task) {
  const tfu_sparse_rows *j = arg;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task);
  const REAL *stats = j->stats, *dlosses = j->dloss;
  FN(tfu_reader) x;
  FN(tfu_writer) dx;
  FN(tfu_open)(&x, &j->x, end * cols);
  FN(tfu_create)(&dx, &j->dx);
  for (int64_t row = tfu_first_row(&j->plan, task); row < end; row++) {
    const int64_t label = tfu_integer(&j->labels, row);
    const int kept = counts(label, cols, j->ignored);
    const double max = stats[2 * row], sum = stats[2 * row + 1], dloss = dlosses[row];
    const double push = j->z_loss != 0 ? 2 * j->z_loss * (max + log(sum)) : 0, even = j->smoothing / (double)cols;
    const REAL factor = (REAL)(dloss * (1 + push) / sum);
    for (TFU_EACH_CHUNK(col, n, cols)) {
      const REAL *v = FN(tfu_read)(&x, row * cols + col, n);
      REAL *d = FN(tfu_write)(&dx, row * cols + col, n);
      const int hit = label >= col && label < col + n;
      const double y = hit ? exp(v[label - col] - max) / sum : 0; /* read first: d may be v */
      if (!kept) memset(d, 0, (size_t)n * sizeof *d);
      else FN(tfu_exp_line)(d, v, (REAL)max, factor, (REAL)(dloss * even), (int)n);
      /* A sure class is where terms cancel, so they are taken in this order. */
      if (kept && hit) d[label - col] = (REAL)(dloss * (y - (1 - j->smoothing) - even + push * y));
    }
  }
  FN(tfu_flush)(&dx);
}

void FN(tfu_sparse_backward)(const tfu_sparse_rows *rows) {
  tfu_parallel(rows->plan.tasks, FN(backward_task), (void *)rows);
}

static tfu_code FN(tfu_sparse_cross_entropy_grad_cpu)(tfu_call *call) {
  tfu_sparse_rows j;
  TFU_TRY(prepare(call, &j));
  j.stats = call->in[2].data;
  j.dloss = call->in[3].data;
  j.dx = call->out[0];
  FN(tfu_sparse_backward)(&j);
  return TFU_OK;
}
#endif
