/* norm on the CPU: h = residual + dropout(x), y = (h - mean) * rstd * gamma + beta, row by row.
 *
 * h is made for a batch of rows at a time, rounded to its type and stored, where it is not x itself; what follows reads
 * it as it was stored. Mean and variance are two passes over a row. The gradient walks fixed blocks of rows: each keeps
 * its own sums for gamma and beta, added up in order at the end, so the threads do not change a bit. */
#ifndef REAL
#include "ops/rows/norm.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/fold_cpu.h"
#include "kernels/core/cpu/rows_cpu.h"

typedef struct job {
  tfu_call *call;
  tfu_rows_cpu plan;
  const void *gamma, *beta; /* a value per column, float or double: 1 and -0 where not given */
  int rms, dropped;
  double epsilon;
  tfu_drop drop;
  int summed;    /* the gradient of gamma or beta is wanted                */
  tfu_fold sums; /* for these; a block is a task of plan                   */
} job;

/* The sums that a block of rows keeps for every column. */
enum { DGAMMA, DBETA, SUMS };
/* A block has so many elements, or more where there would be more blocks than this; rows are summed in float a group at
 * a time, which is then still in the second-level cache for what follows. */
enum { BLOCK = 64 * 1024, MOST_BLOCKS = 64, GROUP = 32 * 1024, GROUP_ROWS = 16 };

#define TFU_SELF "kernels/rows/norm_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_norm_cpu)
TFU_BY_REAL(tfu_norm_grad_cpu)

#else

static tfu_code FN(weights)(tfu_call *call, const tfu_tensor *given, int64_t cols, REAL otherwise, const void **out) {
  REAL *all;
  *out = given->data;
  if (tfu_given(&given->shape)) return TFU_OK;
  TFU_SCRATCH(call, cols, all);
  for (int64_t i = 0; i < cols; i++) all[i] = otherwise;
  *out = all;
  return TFU_OK;
}

/* ---- forward ---- */

/* h of the n elements from `at` on. */
static void FN(make_sum)(const job *j, int64_t at, int64_t n) {
  const tfu_tensor *x = &j->call->in[TFU_NORM_X], *residual = &j->call->in[TFU_NORM_RESIDUAL],
                   *h = &j->call->out[TFU_NORM_SUM];
  const int added = tfu_given(&residual->shape);
  REAL xs[TFU_TILE], rs[TFU_TILE], hs[TFU_TILE];
  for (int64_t end = at + n; at < end; at += TFU_TILE) {
    const int some = end - at < TFU_TILE ? (int)(end - at) : TFU_TILE;
    const REAL *v = FN(tfu_load)(x->data, x->dtype, at, some, xs);
    REAL *sum = FN(tfu_room)(h->data, h->dtype, at, hs);
    if (j->dropped) FN(tfu_drop_tile)(&j->drop, sum, v, at, some), v = sum;
    if (added) {
      const REAL *r = FN(tfu_load)(residual->data, residual->dtype, at, some, rs);
      TFU_VECTORISED(i, some) sum[i] = v[i] + r[i];
    }
    FN(tfu_store)(h->data, h->dtype, at, some, sum);
  }
}

static void FN(normalise)(REAL *y, const REAL *h, REAL mean, REAL rstd, const REAL *gamma, const REAL *beta, int n) {
  TFU_VECTORISED(i, n) y[i] = (h[i] - mean) * rstd * gamma[i] + beta[i];
}

static void FN(forward_row)(const job *j, FN(tfu_reader) * h, FN(tfu_writer) * y, int64_t row) {
  const int64_t cols = j->plan.cols, at = row * cols;
  const REAL *gamma = j->gamma, *beta = j->beta;
  double sum = 0, squares = 0;
  if (!j->rms)
    for (TFU_EACH_CHUNK(col, n, cols)) {
      const REAL *v = FN(tfu_read)(h, at + col, n);
      sum += TFU_SUM((int)n, v[i]);
    }
  const REAL mean = (REAL)(sum / (double)cols);
  for (TFU_EACH_CHUNK(col, n, cols)) {
    const REAL *v = FN(tfu_read)(h, at + col, n);
    squares += TFU_SUM((int)n, (v[i] - mean) * (v[i] - mean));
  }
  const REAL rstd = (REAL)(1 / sqrt(squares / (double)cols + j->epsilon));
  for (TFU_EACH_CHUNK(col, n, cols)) {
    const REAL *v = FN(tfu_read)(h, at + col, n);
    FN(normalise)(FN(tfu_write)(y, at + col, n), v, mean, rstd, gamma + col, beta + col, (int)n);
  }
  REAL *stats = (REAL *)j->call->out[TFU_NORM_STATS].data + 2 * row;
  stats[0] = mean;
  stats[1] = rstd;
}

static void FN(forward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task), batch = 1 + TFU_CHUNK / (cols + 1);
  const int made = tfu_given(&j->call->out[TFU_NORM_SUM].shape);
  FN(tfu_reader) h;
  FN(tfu_writer) y;
  FN(tfu_create)(&y, &j->call->out[TFU_NORM_Y]);
  for (int64_t row = tfu_first_row(&j->plan, task), next; row < end; row = next) {
    next = row + batch < end ? row + batch : end;
    if (made) FN(make_sum)(j, row * cols, (next - row) * cols);
    FN(tfu_open)(&h, made ? &j->call->out[TFU_NORM_SUM] : &j->call->in[TFU_NORM_X], next * cols);
    for (; row < next; row++) FN(forward_row)(j, &h, &y, row);
  }
  FN(tfu_flush)(&y);
}

static tfu_code FN(tfu_norm_cpu)(tfu_call *call) {
  job j = {.call = call,
           .plan = tfu_plan_rows_cpu(&call->in[TFU_NORM_X].shape),
           .rms = call->attr[TFU_NORM_KIND].i == TFU_RMS_NORM,
           .epsilon = call->attr[TFU_NORM_EPSILON].f,
           .dropped = tfu_given(&call->in[TFU_NORM_SEED].shape)};
  TFU_TRY(FN(weights)(call, &call->in[TFU_NORM_GAMMA], j.plan.cols, 1, &j.gamma));
  TFU_TRY(FN(weights)(call, &call->in[TFU_NORM_BETA], j.plan.cols, (REAL)-0.0, &j.beta));
  if (j.dropped) j.drop = tfu_drop_of(&call->in[TFU_NORM_SEED], call->attr[TFU_NORM_RATE].f);
  tfu_parallel(j.plan.tasks, FN(forward_task), &j);
  return TFU_OK;
}

/* ---- backward ---- */

/* Adds dy * xhat and dy of `rows` rows to the block's sums, a strip of columns at a time. */
static void FN(add_sums)(const job *j, int64_t block, int64_t first, int64_t rows) {
  const tfu_tensor *dy = &j->call->in[TFU_NORMGRAD_DY], *x = &j->call->in[TFU_NORMGRAD_X];
  const REAL *stats = j->call->in[TFU_NORMGRAD_STATS].data;
  const int64_t cols = j->plan.cols;
  REAL gs[TFU_TILE], xs[TFU_TILE], products[TFU_TILE], plain[TFU_TILE];
  for (TFU_EACH_TILE(col, left, 0, cols)) {
    const int n = (int)left;
    double *dgamma = tfu_fold_sums(&j->sums, block, DGAMMA) + col, *dbeta = tfu_fold_sums(&j->sums, block, DBETA) + col;
    for (int i = 0; i < n; i++) products[i] = plain[i] = 0;
    for (int64_t row = first; row < first + rows; row++) {
      const REAL *g = FN(tfu_load)(dy->data, dy->dtype, row * cols + col, n, gs);
      const REAL *v = FN(tfu_load)(x->data, x->dtype, row * cols + col, n, xs);
      const REAL mean = stats[2 * row], rstd = stats[2 * row + 1];
      TFU_VECTORISED(i, n) products[i] += g[i] * ((v[i] - mean) * rstd), plain[i] += g[i];
    }
    TFU_VECTORISED(i, n) dgamma[i] += products[i], dbeta[i] += plain[i];
  }
}

/* A row's numbers: dh = rstd * (dy * gamma - middle - xhat * slope). */
typedef struct FN(line) {
  REAL mean, rstd, middle, slope;
} FN(line);

typedef struct FN(windows) {
  FN(tfu_reader) dy, dsum, x;
  FN(tfu_writer) dx, dresidual;
} FN(windows);

static FN(line) FN(line_of)(const job *j, FN(windows) * w, int64_t row) {
  const int64_t cols = j->plan.cols, at = row * cols;
  const REAL *stats = (const REAL *)j->call->in[TFU_NORMGRAD_STATS].data + 2 * row, mean = stats[0], rstd = stats[1];
  double sum = 0, products = 0;
  for (TFU_EACH_CHUNK(col, n, cols)) {
    const REAL *dy = FN(tfu_read)(&w->dy, at + col, n), *x = FN(tfu_read)(&w->x, at + col, n);
    const REAL *gamma = (const REAL *)j->gamma + col;
    if (!j->rms) sum += TFU_SUM((int)n, dy[i] * gamma[i]);
    products += TFU_SUM((int)n, dy[i] * gamma[i] * (x[i] - mean));
  }
  return (FN(line)){mean, rstd, (REAL)(sum / (double)cols), (REAL)(products * rstd / (double)cols)};
}

static void FN(gradient)(REAL *dh, const REAL *dy, const REAL *x, const REAL *gamma, FN(line) l, int n) {
  TFU_VECTORISED(i, n) dh[i] = l.rstd * (dy[i] * gamma[i] - l.middle - (x[i] - l.mean) * l.rstd * l.slope);
}

static void FN(backward_row)(const job *j, FN(windows) * w, int64_t row) {
  const FN(line) line = FN(line_of)(j, w, row);
  const int64_t cols = j->plan.cols, at = row * cols, piece = j->dropped ? TFU_TILE : TFU_CHUNK;
  for (int64_t col = 0; col < cols; col += piece) {
    const int n = (int)(cols - col < piece ? cols - col : piece);
    const REAL *dy = FN(tfu_read)(&w->dy, at + col, n), *x = FN(tfu_read)(&w->x, at + col, n);
    REAL *dx = FN(tfu_write)(&w->dx, at + col, n), *dh = j->dropped ? FN(tfu_write)(&w->dresidual, at + col, n) : dx;
    FN(gradient)(dh, dy, x, (const REAL *)j->gamma + col, line, n);
    const REAL *dsum = w->dsum.tensor ? FN(tfu_read)(&w->dsum, at + col, n) : NULL;
    for (int i = 0; dsum && i < n; i++) dh[i] += dsum[i];
    if (j->dropped) FN(tfu_drop_tile)(&j->drop, dx, dh, at + col, n);
  }
}

/* dx may be dy's memory: a group's sums come before its rows. */
static void FN(backward_task)(void *arg, int64_t task) {
  const job *j = arg;
  const tfu_tensor *in = j->call->in;
  const int64_t cols = j->plan.cols, end = tfu_end_row(&j->plan, task);
  const int64_t fit = GROUP / cols, group = fit < 1 ? 1 : fit < GROUP_ROWS ? fit : GROUP_ROWS;
  FN(windows) w;
  FN(tfu_open)(&w.dy, &in[TFU_NORMGRAD_DY], end * cols);
  FN(tfu_open)(&w.x, &in[TFU_NORMGRAD_X], end * cols);
  w.dsum.tensor = NULL;
  if (tfu_given(&in[TFU_NORMGRAD_DSUM].shape)) FN(tfu_open)(&w.dsum, &in[TFU_NORMGRAD_DSUM], end * cols);
  FN(tfu_create)(&w.dx, &j->call->out[TFU_NORMGRAD_DX]);
  FN(tfu_create)(&w.dresidual, &j->call->out[TFU_NORMGRAD_DRESIDUAL]);
  for (int64_t row = tfu_first_row(&j->plan, task), next; row < end; row = next) {
    next = row + group < end ? row + group : end;
    if (j->summed) FN(add_sums)(j, task, row, next - row);
    for (; row < next; row++) FN(backward_row)(j, &w, row);
  }
  FN(tfu_flush)(&w.dx);
  FN(tfu_flush)(&w.dresidual);
}

static tfu_code FN(tfu_norm_grad_cpu)(tfu_call *call) {
  job j = {
      .call = call,
      .plan = tfu_plan_rows_cpu(&call->in[TFU_NORMGRAD_X].shape),
      .rms = call->attr[TFU_NORM_KIND].i == TFU_RMS_NORM,
      .dropped = tfu_given(&call->in[TFU_NORMGRAD_SEED].shape),
      .summed = tfu_given(&call->out[TFU_NORMGRAD_DGAMMA].shape) || tfu_given(&call->out[TFU_NORMGRAD_DBETA].shape)};
  TFU_TRY(FN(weights)(call, &call->in[TFU_NORMGRAD_GAMMA], j.plan.cols, 1, &j.gamma));
  if (j.dropped) j.drop = tfu_drop_of(&call->in[TFU_NORMGRAD_SEED], call->attr[TFU_NORMGRAD_RATE].f);
  if (j.summed) {
    const int64_t even = divide_up(j.plan.rows, MOST_BLOCKS), least = BLOCK / j.plan.cols + 1;
    j.plan.per_task = even > least ? even : least;
    j.plan.tasks = divide_up(j.plan.rows, j.plan.per_task);
    j.sums = (tfu_fold){.width = j.plan.cols, .blocks = j.plan.tasks > 0 ? j.plan.tasks : 1};
    TFU_TRY(tfu_fold_start(call, &j.sums, SUMS));
  }
  tfu_parallel(j.plan.tasks, FN(backward_task), &j);
  tfu_fold_finish(&j.sums, DGAMMA, &call->out[TFU_NORMGRAD_DGAMMA]);
  tfu_fold_finish(&j.sums, DBETA, &call->out[TFU_NORMGRAD_DBETA]);
  return TFU_OK;
}
#endif
