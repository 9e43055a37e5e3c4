/* softmax on the CPU: y = exp(s - max) / sum, or s - max - log(sum), of the scores s = x * scale + mask of a row.
 *
 * A row that fits in a chunk is read once and its exponentials are kept. A longer one is read twice: first maximum and
 * sum, each chunk relative to its own maximum, then the result. */
#ifndef REAL
#include "kernels/core/cpu/rows_cpu.h"
#include "kernels/core/stretch.h"

typedef struct job {
  tfu_call *call;
  tfu_rows_cpu plan;
  const tfu_tensor *mask; /* NULL: none */
  tfu_stretch stretch;
  float scale;
  int log;
} job;

/* mask: NULL or empty where there is none. */
static tfu_code run(tfu_call *call, const tfu_tensor *mask, void (*task)(void *, int64_t)) {
  const tfu_tensor *x = &call->in[0];
  job j = {.call = call, .plan = tfu_plan_rows_cpu(&x->shape), .scale = call->attr[0].f, .log = call->attr[1].b};
  if (mask && tfu_given(&mask->shape)) {
    TFU_REQUIRE(call->err, mask->dtype == TFU_BOOL || mask->dtype == x->dtype, "mask must be bool or %s like x, got %s",
                tfu_dtype_name(x->dtype), tfu_dtype_name(mask->dtype));
    j.mask = mask;
    j.stretch = tfu_stretch_of(&mask->shape, &x->shape);
  }
  tfu_parallel(j.plan.tasks, task, &j);
  return TFU_OK;
}

/* Whether a boolean mask keeps nothing of a row. */
static int all_masked(const job *j, int64_t mask_at) {
  if (!j->mask || j->mask->dtype != TFU_BOOL) return 0;
  const int64_t n = j->stretch.column ? j->plan.cols : 1;
  const uint8_t *kept = (const uint8_t *)j->mask->data + mask_at;
  for (int64_t i = 0; i < n; i++)
    if (kept[i]) return 0;
  return 1;
}

#define TFU_SELF "kernels/rows/softmax_cpu.c"
#include "kernels/core/cpu/stamp.h"

tfu_code tfu_softmax_cpu(tfu_call *call) { return run(call, &call->in[1], TFU_OF_REAL(call, forward_task)); }
tfu_code tfu_softmax_grad_cpu(tfu_call *call) { return run(call, NULL, TFU_OF_REAL(call, backward_task)); }

#else

/* A task's windows. */
typedef struct FN(view) {
  const job *j;
  FN(tfu_reader) x, mask;
  FN(tfu_writer) y;
  REAL e[TFU_CHUNK];
} FN(view);

/* s = x * scale + added; added may be s. */
static void FN(add)(REAL *s, const REAL *x, REAL scale, const REAL *added, int n) {
  TFU_VECTORISED(i, n) s[i] = x[i] * scale + added[i];
}

/* Scores of n elements from x[at] on: x itself where nothing is done to it, else in v->e. */
static const REAL *FN(scores)(FN(view) * v, int64_t at, int64_t mask_at, int n) {
  const job *j = v->j;
  const REAL *x = FN(tfu_read)(&v->x, at, n), scale = (REAL)j->scale;
  if (!j->mask && j->scale == 1) return x;
  const int boolean = j->mask && j->mask->dtype == TFU_BOOL;
  const uint8_t *kept = boolean ? (const uint8_t *)j->mask->data + mask_at : NULL;
  if (boolean && j->stretch.column) {
    TFU_VECTORISED(i, n) {
      const REAL score = x[i] * scale;
      v->e[i] = kept[i] ? score : -(REAL)INFINITY;
    }
  } else if (j->mask && j->stretch.column) {
    FN(add)(v->e, x, scale, FN(tfu_read)(&v->mask, mask_at, n), n);
  } else { /* one value for the whole row; x + -0 is x, even for x = -0 */
    const REAL all = boolean ? (REAL)(*kept ? -0.0 : -INFINITY) : j->mask ? *FN(tfu_read)(&v->mask, mask_at, 1) : 0;
    for (int i = 0; i < n; i++) v->e[i] = all;
    if (boolean && !*kept) return v->e;
    FN(add)(v->e, x, scale, v->e, n);
  }
  return v->e;
}

static void FN(forward_row)(FN(view) * v, int64_t at, int64_t mask_at) {
  const job *j = v->j;
  const int64_t cols = j->plan.cols, step = j->stretch.column;
  tfu_lse lse = TFU_LSE_EMPTY;
  for (TFU_EACH_CHUNK(col, n, cols))
    FN(tfu_lse_add)(&lse, FN(scores)(v, at + col, mask_at + col * step, (int)n), v->e, (int)n);
  const int empty = lse.max == -INFINITY; /* NaN as in TensorFlow, unless the mask is what left nothing */
  const REAL nothing = !empty || !all_masked(j, mask_at) ? (REAL)NAN : j->log ? -(REAL)INFINITY : 0;
  const REAL max = (REAL)lse.max, log_sum = j->log ? (REAL)log(lse.sum) : 0, factor = (REAL)(1 / lse.sum);
  for (TFU_EACH_CHUNK(col, n, cols)) {
    const int kept = n == cols && !j->log; /* the exponentials are still in v->e */
    const REAL *s = kept ? v->e : FN(scores)(v, at + col, mask_at + col * step, (int)n);
    REAL *y = FN(tfu_write)(&v->y, at + col, n);
    if (empty) {
      for (int i = 0; i < n; i++) y[i] = nothing;
    } else if (j->log) {
      TFU_VECTORISED(i, n) y[i] = s[i] - max - log_sum;
    } else if (kept) {
      TFU_VECTORISED(i, n) y[i] = s[i] * factor;
    } else {
      FN(tfu_exp_line)(y, s, max, factor, 0, (int)n);
    }
  }
}

static void FN(forward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t first = tfu_first_row(&j->plan, task), end = tfu_end_row(&j->plan, task);
  FN(view) v;
  v.j = j;
  FN(tfu_open)(&v.x, &j->call->in[0], end * j->plan.cols);
  if (j->mask) FN(tfu_open)(&v.mask, j->mask, tfu_count(&j->mask->shape));
  FN(tfu_create)(&v.y, &j->call->out[0]);
  for (int64_t row = first; row < end; row++)
    FN(forward_row)(&v, row * j->plan.cols, j->mask ? tfu_stretch_row(&j->stretch, row) : 0);
  FN(tfu_flush)(&v.y);
}

static void FN(grad_chunk)(REAL *dx, const REAL *dy, const REAL *y, REAL scale, REAL sum, int n) {
  TFU_VECTORISED(i, n) dx[i] = scale * y[i] * (dy[i] - sum);
}
static void FN(log_grad_chunk)(REAL *dx, const REAL *dy, const REAL *y, REAL scale, REAL sum, int n) {
  TFU_VECTORISED(i, n) {
    const REAL open = scale * (dy[i] - FN(exp_of)(y[i]) * sum);
    dx[i] = y[i] == -(REAL)INFINITY ? 0 : open;
  }
}

static void FN(backward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task);
  const REAL scale = (REAL)j->scale;
  FN(tfu_reader) dy, y;
  FN(tfu_writer) dx;
  FN(tfu_open)(&dy, &j->call->in[0], end * cols);
  FN(tfu_open)(&y, &j->call->in[1], end * cols);
  FN(tfu_create)(&dx, &j->call->out[0]);
  for (int64_t row = tfu_first_row(&j->plan, task); row < end; row++) {
    double total = 0;
    for (TFU_EACH_CHUNK(col, n, cols)) {
      const REAL *g = FN(tfu_read)(&dy, row * cols + col, n), *p = FN(tfu_read)(&y, row * cols + col, n);
      total += j->log ? TFU_SUM((int)n, g[i]) : TFU_SUM((int)n, g[i] * p[i]);
    }
    const REAL sum = (REAL)total;
    for (TFU_EACH_CHUNK(col, n, cols)) {
      const REAL *g = FN(tfu_read)(&dy, row * cols + col, n), *p = FN(tfu_read)(&y, row * cols + col, n);
      REAL *d = FN(tfu_write)(&dx, row * cols + col, n);
      (j->log ? FN(log_grad_chunk) : FN(grad_chunk))(d, g, p, scale, sum, (int)n);
    }
  }
  FN(tfu_flush)(&dx);
}
#endif
