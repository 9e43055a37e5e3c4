/* group_norm on the CPU: y = (x - mean) * rstd * gamma + beta, statistics over a sample's group of channels.
 *
 * A sample is a matrix, positions by channels, and a group some of its columns: all sums are taken down the columns, in
 * double, and then over the channels of a group. Short rows are joined until they fill a tile, so that loops are long;
 * what belongs to a channel is spread out to the length of a joined row. A pass over a sample is a step; after each,
 * its sums are settled into what the next step needs.
 *
 * Small samples are whole tasks, several to one. A large one is cut into blocks of rows, and each step is a loop over
 * all blocks. Neither depends on the number of threads, nor does the order of any sum.
 *
 * Where a sample is one position, groups lie in memory one after the other, and each is taken as a row.
 */
#ifndef REAL
#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/fold_cpu.h"
#include "kernels/core/cpu/rows_cpu.h"

typedef enum step { SUM, SQUARES, NORMALISE, GRAD_SUMS, GRADIENT } step;
static const step forward_steps[] = {SUM, SQUARES, NORMALISE}, backward_steps[] = {GRAD_SUMS, GRADIENT};
/* What a step finds for each column: the result is (x - mean) * SLOPE + OFFSET, and of the gradient + dy * FACTOR. */
enum { MEAN, SLOPE, FACTOR, OFFSET, SPREAD };
enum { SUMS = 2, BLOCK = 64 * 1024, MOST_TASKS = 64 };

typedef struct job {
  tfu_call *call;
  const tfu_tensor *x, *dy, *gamma, *beta, *stats, *result;
  int64_t samples, positions, groups, channels, group_channels;
  int64_t width, rows, block_rows, blocks; /* joined rows of a sample                       */
  int64_t per_task, tasks;                 /* samples of a task, where a sample is one block */
  double epsilon;
  tfu_fold weights; /* sums for gamma and beta: those of a task are a block of the fold */
  double *sums;     /* [task, or sample and block][SUMS][width]  */
  void *spread;     /* [task, or sample][SPREAD][width]          */
  step now;
} job;

static tfu_code plan(job *j, size_t real) {
  const int64_t *dim = j->x->shape.dim;
  j->samples = dim[0], j->positions = dim[1], j->groups = dim[2], j->group_channels = dim[3];
  j->channels = j->groups * j->group_channels;
  const int64_t fit = j->channels ? TFU_TILE / j->channels : 1, join = fit < 1 ? 1 : least(fit, j->positions + 1);
  j->width = join * j->channels;
  j->rows = divide_up(j->positions, join);
  j->block_rows = j->width ? BLOCK / j->width + 1 : 1;
  j->blocks = j->rows > j->block_rows ? divide_up(j->rows, j->block_rows) : 1;
  const int64_t size = j->positions * j->channels, few = size ? BLOCK / size + 1 : BLOCK;
  j->per_task = few * MOST_TASKS > j->samples ? few : divide_up(j->samples, MOST_TASKS);
  j->tasks = divide_up(j->samples, j->per_task);
  const int64_t owners = j->blocks == 1 ? j->tasks : j->samples;
  void *sums;
  TFU_TRY(tfu_scratch(j->call, (size_t)(owners * j->blocks * SUMS * j->width) * sizeof(double), &sums));
  j->sums = sums;
  return tfu_scratch(j->call, (size_t)(owners * SPREAD * j->width) * real, &j->spread);
}

/* Sums over blocks and joined rows, which then stand in the first row. */
static void gather(const job *j, double *sums) {
  for (int64_t q = 0; q < SUMS; q++) {
    double *first = sums + q * j->width;
    for (int64_t block = 1; block < j->blocks; block++)
      for (int64_t c = 0; c < j->width; c++) first[c] += first[block * SUMS * j->width + c];
    for (int64_t c = j->channels; c < j->width; c++) first[c % j->channels] += first[c];
  }
}

#define TFU_SELF "kernels/rows/group_norm_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_group_norm_cpu)
TFU_BY_REAL(tfu_group_norm_grad_cpu)

#else

static void FN(add_squares)(double *sums, const REAL *x, const REAL *mean, int n) {
  TFU_VECTORISED(i, n) sums[i] += (x[i] - mean[i]) * (x[i] - mean[i]);
}
static void FN(add_plain)(double *sums, const REAL *x, int n) {
  TFU_VECTORISED(i, n) sums[i] += x[i];
}
static void FN(add_products)(double *sums, const REAL *dy, const REAL *x, const REAL *mean, int n) {
  TFU_VECTORISED(i, n) sums[i] += dy[i] * (x[i] - mean[i]);
}
static void FN(scale)(REAL *y, const REAL *x, const REAL *columns, int64_t width, int n) {
  const REAL *mean = columns + MEAN * width, *slope = columns + SLOPE * width, *offset = columns + OFFSET * width;
  TFU_VECTORISED(i, n) y[i] = (x[i] - mean[i]) * slope[i] + offset[i];
}
static void FN(add_scaled)(REAL *y, const REAL *dy, const REAL *factor, int n) {
  TFU_VECTORISED(i, n) y[i] += dy[i] * factor[i];
}

/* One step over one block of a sample. sums and spread are the block's own and the sample's. */
static void FN(walk)(const job *j, step now, int64_t sample, int64_t block, double *sums, const REAL *spread) {
  const int64_t size = j->positions * j->channels, end = least((block + 1) * j->block_rows, j->rows);
  REAL xs[TFU_TILE], gs[TFU_TILE], ys[TFU_TILE];
  if (now != NORMALISE && now != GRADIENT && j->width)
    memset(sums, 0, (size_t)(SUMS * j->width) * sizeof *sums); /* without channels there are none */
  for (int64_t col = 0; col < j->width; col += TFU_TILE)
    for (int64_t row = block * j->block_rows; row < end; row++) {
      const int64_t inside = row * j->width + col, at = sample * size + inside;
      const int n = (int)least(least(j->width - col, TFU_TILE), size - inside); /* the last joined row may be short */
      if (n <= 0) continue;
      const REAL *x = FN(tfu_load)(j->x->data, j->x->dtype, at, n, xs), *mean = spread + MEAN * j->width + col;
      const REAL *dy = now < GRAD_SUMS ? NULL : FN(tfu_load)(j->dy->data, j->dy->dtype, at, n, gs);
      if (now == SUM) FN(add_plain)(sums + col, x, n);
      if (now == SQUARES) FN(add_squares)(sums + col, x, mean, n);
      if (now == GRAD_SUMS) FN(add_plain)(sums + col, dy, n), FN(add_products)(sums + j->width + col, dy, x, mean, n);
      if (now != NORMALISE && now != GRADIENT) continue;
      REAL *y = FN(tfu_room)(j->result->data, j->result->dtype, at, ys);
      FN(scale)(y, x, spread + col, j->width, n);
      if (now == GRADIENT) FN(add_scaled)(y, dy, spread + FACTOR * j->width + col, n);
      FN(tfu_store)(j->result->data, j->result->dtype, at, n, y);
    }
}

static REAL FN(weight)(const tfu_tensor *t, int64_t channel, REAL otherwise) {
  return tfu_given(&t->shape) ? ((const REAL *)t->data)[channel] : otherwise;
}

/* What a group of a sample has after a step, put into the columns of its channels. */
static void FN(settle_group)(const job *j, step now, int64_t sample, int64_t group, const double *sums, REAL *spread) {
  const int64_t first = group * j->group_channels, end = first + j->group_channels, width = j->width;
  const double n = (double)(j->positions * j->group_channels);
  REAL *stats = (REAL *)j->stats->data + 2 * (sample * j->groups + group);
  enum { PART = 128 }; /* channels that are added up apart: a group may have as many as there are */
  double total = 0, products = 0;
  for (int64_t part = first; part < end; part += PART) {
    double some = 0, some_products = 0;
    for (int64_t c = part; c < least(part + PART, end); c++) {
      const REAL gamma = now == GRAD_SUMS ? FN(weight)(j->gamma, c, 1) : 1;
      some += sums[c] * gamma;
      some_products += sums[width + c] * gamma;
    }
    total += some;
    products += some_products;
  }
  if (now == SUM) stats[0] = (REAL)(total / n);
  if (now == SQUARES) stats[1] = (REAL)(1 / sqrt(total / n + j->epsilon));
  for (int64_t c = first; c < end; c++) {
    spread[MEAN * width + c] = stats[0];
    if (now == SUM) continue;
    const double rstd = stats[1], gamma = FN(weight)(j->gamma, c, 1);
    const int forward = now == SQUARES;
    spread[SLOPE * width + c] = (REAL)(forward ? rstd * gamma : -rstd * rstd * rstd * products / n);
    spread[OFFSET * width + c] = forward ? FN(weight)(j->beta, c, (REAL)-0.0) : (REAL)(-rstd * total / n);
    spread[FACTOR * width + c] = (REAL)(rstd * gamma);
  }
}

/* The means of a sample, for a gradient's first step. */
static void FN(recall)(const job *j, int64_t sample, REAL *spread) {
  const REAL *stats = (const REAL *)j->stats->data + 2 * sample * j->groups;
  for (int64_t c = 0; c < j->width; c++) spread[c] = stats[2 * (c % j->channels / j->group_channels)];
}

static void FN(settle)(const job *j, step now, int64_t sample, int64_t owner, double *sums, REAL *spread) {
  if (now == NORMALISE || now == GRADIENT) return;
  gather(j, sums);
  for (int64_t g = 0; g < j->groups; g++) FN(settle_group)(j, now, sample, g, sums, spread);
  for (int64_t q = 0; q < SPREAD; q++)
    for (int64_t c = j->channels; c < j->width; c++) spread[q * j->width + c] = spread[q * j->width + c - j->channels];
  if (now != GRAD_SUMS || !j->weights.sums) return;
  const REAL *stats = (const REAL *)j->stats->data + 2 * sample * j->groups;
  double *dgamma = tfu_fold_sums(&j->weights, owner, 0), *dbeta = tfu_fold_sums(&j->weights, owner, 1);
  for (int64_t c = 0; c < j->channels; c++) {
    dgamma[c] += sums[j->width + c] * (double)stats[2 * (c / j->group_channels) + 1];
    dbeta[c] += sums[c];
  }
}

static void FN(scale_row)(REAL *y, const REAL *x, const REAL *stats, const REAL *gamma, const REAL *beta, int n) {
  const REAL mean = stats[0], rstd = stats[1];
  TFU_VECTORISED(i, n) y[i] = (x[i] - mean) * (gamma ? rstd * gamma[i] : rstd) + (beta ? beta[i] : (REAL)-0.0);
}

/* All steps of a forward pass over one group of a sample of one position. */
static void FN(normalise_row)(const job *j, int64_t sample, int64_t group) {
  const int64_t cols = j->group_channels, at = (sample * j->groups + group) * cols;
  const REAL *gamma = tfu_given(&j->gamma->shape) ? (const REAL *)j->gamma->data + group * cols : NULL;
  const REAL *beta = tfu_given(&j->beta->shape) ? (const REAL *)j->beta->data + group * cols : NULL;
  REAL *stats = (REAL *)j->stats->data + 2 * (sample * j->groups + group), xs[TFU_TILE], ys[TFU_TILE];
  for (step now = SUM; now <= NORMALISE; now++) {
    double total = 0;
    for (int64_t col = 0; col < cols; col += TFU_TILE) {
      const int n = (int)least(cols - col, TFU_TILE);
      const REAL *x = FN(tfu_load)(j->x->data, j->x->dtype, at + col, n, xs), mean = stats[0];
      if (now == SUM) total += TFU_SUM(n, x[i]);
      if (now == SQUARES) total += TFU_SUM(n, (x[i] - mean) * (x[i] - mean));
      if (now != NORMALISE) continue;
      REAL *y = FN(tfu_room)(j->result->data, j->result->dtype, at + col, ys);
      FN(scale_row)(y, x, stats, gamma ? gamma + col : NULL, beta ? beta + col : NULL, n);
      FN(tfu_store)(j->result->data, j->result->dtype, at + col, n, y);
    }
    if (now == SUM) stats[0] = (REAL)(total / (double)cols);
    if (now == SQUARES) stats[1] = (REAL)(1 / sqrt(total / (double)cols + j->epsilon));
  }
}

static void FN(gradient_row)(REAL *y, const REAL *dy, const REAL *x, const REAL *gamma, REAL mean, REAL slope,
                             REAL offset, REAL rstd, int n) {
  TFU_VECTORISED(i, n) y[i] = (x[i] - mean) * slope + offset + dy[i] * (gamma ? rstd * gamma[i] : rstd);
}
static void FN(add_weight_sums)(double *dgamma, double *dbeta, const REAL *dy, const REAL *x, REAL mean, REAL rstd,
                                int n) {
  TFU_VECTORISED(i, n) {
    dgamma[i] += (double)(dy[i] * (x[i] - mean)) * (double)rstd;
    dbeta[i] += (double)dy[i];
  }
}

/* All steps of a backward pass over one group of a sample of one position; sums for gamma and beta are the owner's. */
static void FN(differentiate_row)(const job *j, int64_t sample, int64_t group, int64_t owner) {
  const int64_t cols = j->group_channels, channel = group * cols, at = (sample * j->groups + group) * cols;
  const REAL *weights = tfu_given(&j->gamma->shape) ? (const REAL *)j->gamma->data + channel : NULL;
  const REAL *stats = (const REAL *)j->stats->data + 2 * (sample * j->groups + group), mean = stats[0], rstd = stats[1];
  double *dgamma = j->weights.sums ? tfu_fold_sums(&j->weights, owner, 0) + channel : NULL;
  double *dbeta = j->weights.sums ? tfu_fold_sums(&j->weights, owner, 1) + channel : NULL;
  double total = 0, products = 0;
  REAL xs[TFU_TILE], gs[TFU_TILE], ys[TFU_TILE];
  for (step now = GRAD_SUMS; now <= GRADIENT; now++)
    for (int64_t col = 0; col < cols; col += TFU_TILE) {
      const int n = (int)least(cols - col, TFU_TILE);
      const REAL *x = FN(tfu_load)(j->x->data, j->x->dtype, at + col, n, xs), *gamma = weights ? weights + col : NULL;
      const REAL *dy = FN(tfu_load)(j->dy->data, j->dy->dtype, at + col, n, gs);
      if (now == GRAD_SUMS) {
        total += gamma ? TFU_SUM(n, dy[i] * gamma[i]) : TFU_SUM(n, dy[i]);
        products += gamma ? TFU_SUM(n, dy[i] * (x[i] - mean) * gamma[i]) : TFU_SUM(n, dy[i] * (x[i] - mean));
        if (dgamma) FN(add_weight_sums)(dgamma + col, dbeta + col, dy, x, mean, rstd, n);
        continue;
      }
      const double slope = -(double)rstd * rstd * rstd * products / (double)cols, offset = -rstd * total / (double)cols;
      REAL *y = FN(tfu_room)(j->result->data, j->result->dtype, at + col, ys);
      FN(gradient_row)(y, dy, x, gamma, mean, (REAL)slope, (REAL)offset, rstd, n);
      FN(tfu_store)(j->result->data, j->result->dtype, at + col, n, y);
    }
}

static void FN(samples_task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t end = least((task + 1) * j->per_task, j->samples);
  double *sums = j->sums + task * SUMS * j->width;
  REAL *spread = (REAL *)j->spread + task * SPREAD * j->width;
  const step *steps = j->dy ? backward_steps : forward_steps;
  for (int64_t sample = task * j->per_task; sample < end; sample++) {
    for (int64_t g = 0; j->positions == 1 && g < j->groups; g++) {
      if (j->dy) FN(differentiate_row)(j, sample, g, task);
      else FN(normalise_row)(j, sample, g);
    }
    if (j->positions == 1) continue;
    if (j->dy) FN(recall)(j, sample, spread);
    for (int i = 0; i < (j->dy ? TFU_COUNT(backward_steps) : TFU_COUNT(forward_steps)); i++) {
      FN(walk)(j, steps[i], sample, 0, sums, spread);
      FN(settle)(j, steps[i], sample, task, sums, spread);
    }
  }
}

static void FN(block_task)(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t sample = task / j->blocks;
  FN(walk)
  (j, j->now, sample, task % j->blocks, j->sums + task * SUMS * j->width,
   (const REAL *)j->spread + sample * SPREAD * j->width);
}

static void FN(run)(job *j) {
  if (j->blocks == 1) {
    tfu_parallel(j->tasks, FN(samples_task), j);
    return;
  }
  const step *steps = j->dy ? backward_steps : forward_steps;
  const int64_t area = SPREAD * j->width;
  for (int64_t s = 0; j->dy && s < j->samples; s++) FN(recall)(j, s, (REAL *)j->spread + s * area);
  for (int i = 0; i < (j->dy ? TFU_COUNT(backward_steps) : TFU_COUNT(forward_steps)); i++) {
    j->now = steps[i];
    tfu_parallel(j->samples * j->blocks, FN(block_task), j);
    for (int64_t s = 0; s < j->samples; s++)
      FN(settle)(j, j->now, s, 0, j->sums + s * j->blocks * SUMS * j->width, (REAL *)j->spread + s * area);
  }
}

static tfu_code FN(tfu_group_norm_cpu)(tfu_call *call) {
  job j = {.call = call,
           .x = &call->in[0],
           .gamma = &call->in[1],
           .beta = &call->in[2],
           .stats = &call->out[1],
           .result = &call->out[0],
           .epsilon = call->attr[0].f};
  TFU_TRY(plan(&j, sizeof(REAL)));
  FN(run)(&j);
  return TFU_OK;
}

static tfu_code FN(tfu_group_norm_grad_cpu)(tfu_call *call) {
  job j = {.call = call,
           .dy = &call->in[0],
           .x = &call->in[1],
           .gamma = &call->in[2],
           .beta = &call->in[3],
           .stats = &call->in[4],
           .result = &call->out[0]};
  TFU_TRY(plan(&j, sizeof(REAL)));
  j.weights = (tfu_fold){.width = j.channels, .blocks = j.blocks == 1 && j.tasks > 0 ? j.tasks : 1};
  if (tfu_given(&call->out[1].shape) || tfu_given(&call->out[2].shape)) TFU_TRY(tfu_fold_start(call, &j.weights, 2));
  if (tfu_count(&j.x->shape) > 0) FN(run)(&j); /* else statistics are NaN, and sums over nothing are still zero */
  tfu_fold_finish(&j.weights, 0, &call->out[1]);
  tfu_fold_finish(&j.weights, 1, &call->out[2]);
  return TFU_OK;
}
#endif
