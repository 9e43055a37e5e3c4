/* Batch normalisation on the CPU: passes over memory with weights and sums per channel (channels_cpu.h). The statistics
 * take two, sums and then squared differences from the mean, both in double; the formulas are those of batch_norm.cu
 * and batch_norm_grad.cu. */
#ifndef REAL
#include "kernels/convolution/batch_norm.h"

#include <math.h>

#include "kernels/convolution/batch_norm_signs.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/channels_cpu.h"
#include "ops/convolution/batch_norm.h"

enum { MOST_TENSORS = TFU_CHANNEL_TENSORS, MOST_WEIGHTS = TFU_CHANNEL_WEIGHTS };

/* What a loop of the gradient needs to know beside its tile. */
typedef struct how {
  const tfu_activation *act;
  int kept, more;       /* which tensors these are; 0: not given          */
  int from_y;           /* the slope is that of y, which was kept         */
  const uint8_t *signs; /* or y's signs are given, a byte for `pack` elements; or NULL */
  int pack;
} how;

/* How y's signs are written. */
typedef struct signs_job {
  const tfu_tensor *y;
  uint8_t *signs;
} signs_job;

static int pack_of(tfu_dtype dtype) { return 16 / (int)tfu_dtype_size(dtype); }

/* A tensor as the matrix whose columns are walked. */
static tfu_tensor matrix(const batch_norm_view *v, const tfu_tensor *t) {
  return (tfu_tensor){t->data, t->dtype, {.rank = 2, .dim = {v->cols ? v->n / v->cols : 0, v->cols}}};
}

#define TFU_SELF "kernels/convolution/batch_norm_cpu.c"
#include "kernels/core/cpu/stamp.h"
TFU_BY_REAL(tfu_batch_norm_cpu)
TFU_BY_REAL(tfu_batch_norm_statistics_cpu)
TFU_BY_REAL(tfu_batch_norm_grad_cpu)
TFU_BY_REAL(tfu_frozen_batch_norm_grad_cpu)
TFU_BY_REAL(tfu_frozen_batch_norm_cpu)

#else

typedef FN(tfu_channel_tile) FN(tile);
typedef FN(tfu_channel_loop) FN(loop);

/* ---- passes ---- */

/* What is per channel as a weight of columns: itself, or each value `inner` times. NULL is not given. */
static tfu_code FN(spread)(tfu_call *call, const batch_norm_view *v, const REAL *channels, tfu_tensor *weight) {
  *weight = (tfu_tensor){(void *)channels, v->real, {.rank = 1, .dim = {channels ? v->cols : 0}}};
  if (!channels || v->inner == 1) return TFU_OK;
  TFU_TRY(tfu_scratch(call, (size_t)v->cols * sizeof(REAL), &weight->data));
  REAL *columns = weight->data;
  for (int64_t c = 0; c < v->channels; c++)
    for (int64_t i = 0; i < v->inner; i++) columns[c * v->inner + i] = channels[c];
  return TFU_OK;
}

/* One pass over the tensors x, with weights per channel; totals, [op->sums][channels], are the sums. */
static tfu_code FN(pass)(tfu_call *call, const batch_norm_view *v, const tfu_channels *op, const tfu_tensor *const *x,
                         const REAL *const *w, const tfu_tensor *y, FN(loop) * loop, const void *with, double *totals) {
  tfu_tensor tensors[MOST_TENSORS], weights[MOST_WEIGHTS], results[1], sums[2];
  void *columns = totals;
  for (int i = 0; i < op->tensors; i++) tensors[i] = matrix(v, x[i]);
  for (int i = 0; i < op->weights; i++) TFU_TRY(FN(spread)(call, v, w[i], &weights[i]));
  if (op->results) results[0] = matrix(v, y);
  if (op->sums && v->inner > 1) TFU_TRY(tfu_scratch(call, (size_t)(op->sums * v->cols) * sizeof(double), &columns));
  for (int q = 0; q < op->sums; q++)
    sums[q] = (tfu_tensor){(double *)columns + q * v->cols, TFU_F64, {.rank = 1, .dim = {v->cols}}};
  const tfu_channels_run run = {
      .op = op, .x = tensors, .w = weights, .y = results, .sums = sums, .FN(loop) = loop, .with = with};
  TFU_TRY(tfu_channels_cpu(call, &run));
  for (int64_t c = 0; v->inner > 1 && c < op->sums * v->channels; c++) {
    totals[c] = 0;
    for (int64_t i = 0; i < v->inner; i++) totals[c] += ((double *)columns)[c * v->inner + i];
  }
  return TFU_OK;
}

static void FN(sum_loop)(const FN(tile) * t) {
  TFU_VECTORISED(i, t->n) t->sums[0][i] += t->x[0][i];
}

static void FN(squares_loop)(const FN(tile) * t) {
  const REAL *x = t->x[0], *mean = t->w[0];
  TFU_VECTORISED(i, t->n) t->sums[0][i] += (x[i] - mean[i]) * (x[i] - mean[i]);
}

static void FN(subtract)(REAL *d, const REAL *x, const REAL *mean, int n) {
  TFU_VECTORISED(i, n) d[i] = x[i] - mean[i];
}
static void FN(add)(REAL *sum, const REAL *a, const REAL *b, int n) {
  TFU_VECTORISED(i, n) sum[i] = a[i] + b[i];
}

/* Of x and perhaps residual, with mean, scale and beta. */
static void FN(apply_loop)(const FN(tile) * t) {
  const tfu_activation *act = t->with;
  const REAL *residual = t->x[1], *beta = t->w[2];
  REAL d[TFU_TILE], offset[TFU_TILE];
  FN(subtract)(d, t->x[0], t->w[0], t->n);
  if (residual) FN(add)(offset, beta, residual, t->n);
  act->FN(value)(t->y[0], d, t->w[1], residual ? offset : beta, t->n);
}

/* d = x - mean and g = (dy + dy_more) * act', of dy, x and perhaps what was kept and dy_more, with mean, scale and
 * beta. */
static void FN(slopes)(const FN(tile) * t, REAL *d, REAL *g) {
  const how *h = t->with;
  const REAL *dy = t->x[0], *kept = h->kept ? t->x[h->kept] : NULL, *beta = t->w[2];
  REAL offset[TFU_TILE];
  FN(subtract)(d, t->x[1], t->w[0], t->n);
  if (h->signs) {
    uint8_t flags[TFU_TILE + 2 * BATCH_NORM_PACK];
    const int64_t first = t->at / h->pack;
    const int before = (int)(t->at - first * h->pack); /* elements of the first pack that are not the tile's */
    tfu_split_flags(h->signs + first, (int)divide_up(before + t->n, h->pack), h->pack, flags);
    TFU_VECTORISED(i, t->n) g[i] = flags[before + i] ? (REAL)1 : (REAL)0;
  } else if (h->from_y) {
    TFU_VECTORISED(i, t->n) g[i] = kept[i] > 0 ? (REAL)1 : (REAL)0;
  } else {
    if (kept) FN(add)(offset, beta, kept, t->n);
    h->act->FN(grad)(g, d, t->w[1], kept ? offset : beta, t->n);
  }
  if (h->more) {
    FN(add)(offset, dy, t->x[h->more], t->n);
    dy = offset;
  }
  TFU_VECTORISED(i, t->n) g[i] *= dy[i];
}

/* Sums of g * d and of g, which is also the result where there is one. */
static void FN(grad_loop)(const FN(tile) * t) {
  REAL d[TFU_TILE], g[TFU_TILE];
  FN(slopes)(t, d, g);
  TFU_VECTORISED(i, t->n) {
    t->sums[0][i] += g[i] * d[i];
    t->sums[1][i] += g[i];
  }
  if (t->y[0]) memcpy(t->y[0], g, (size_t)t->n * sizeof *g);
}

/* dx, with two more weights. */
static void FN(second_loop)(const FN(tile) * t) {
  REAL d[TFU_TILE], g[TFU_TILE];
  FN(slopes)(t, d, g);
  TFU_VECTORISED(i, t->n) t->y[0][i] = t->w[1][i] * g[i] + (t->w[3][i] * d[i] + t->w[4][i]);
}

/* ---- forward ---- */

static REAL FN(rstd)(const tfu_call *call, REAL variance) {
  return 1 / (REAL)sqrt(variance + (REAL)call->attr[TFU_BATCHNORM_EPSILON].f);
}

/* gamma / deviation. */
static tfu_code FN(scales)(tfu_call *call, const batch_norm_view *v, const REAL *variance, const REAL *gamma,
                           REAL **scale) {
  TFU_SCRATCH(call, v->channels, *scale);
  for (int64_t c = 0; c < v->channels; c++) (*scale)[c] = FN(rstd)(call, variance[c]) * (gamma ? gamma[c] : 1);
  return TFU_OK;
}

static tfu_code FN(normalise)(tfu_call *call) {
  const tfu_tensor *in = call->in, *x[] = {&in[TFU_BATCHNORM_X], &in[TFU_BATCHNORM_RESIDUAL]};
  const batch_norm_view v = tfu_batch_norm_view(x[0]);
  const tfu_channels op = {tfu_given(&x[1]->shape) ? 2 : 1, 3, 1, 0, {0, 1, -0.0f}};
  REAL *scale;
  TFU_TRY(FN(scales)(call, &v, in[TFU_BATCHNORM_VARIANCE].data, tfu_given_data(&in[TFU_BATCHNORM_GAMMA]), &scale));
  const REAL *weights[] = {in[TFU_BATCHNORM_MEAN].data, scale, tfu_given_data(&in[TFU_BATCHNORM_BETA])};
  return FN(pass)(call, &v, &op, x, weights, &call->out[TFU_BATCHNORM_Y], FN(apply_loop),
                  &tfu_activations[call->attr[TFU_BATCHNORM_ACTIVATION].i], NULL);
}

/* From y as it is stored. A tile has whole words of signs, but for the last. */
static void FN(signs_range)(void *arg, int64_t begin, int64_t end) {
  const signs_job *j = arg;
  const int pack = pack_of(j->y->dtype);
  for (TFU_EACH_TILE(at, left, begin, end)) {
    const int n = (int)left;
    REAL buffer[TFU_TILE];
    uint8_t flags[TFU_TILE];
    const REAL *y = FN(tfu_load)(j->y->data, j->y->dtype, at, n, buffer);
    TFU_VECTORISED(i, n) flags[i] = y[i] > 0;
    const int packs = (int)divide_up(n, 8 * pack) * 8; /* those of whole words */
    memset(flags + n, 0, (size_t)(packs * pack - n));
    tfu_join_flags(flags, packs, pack, j->signs + at / pack);
  }
}

static tfu_code FN(tfu_batch_norm_cpu)(tfu_call *call) {
  const tfu_tensor *wanted = &call->in[TFU_BATCHNORM_SIGNS_FOR], *y = &call->out[TFU_BATCHNORM_Y];
  if (!tfu_given(&wanted->shape)) return FN(normalise)(call);
  const batch_norm_view v = tfu_batch_norm_view(y);
  signs_job j = {y, call->out[TFU_BATCHNORM_SIGNS].data};
  TFU_TRY(tfu_batch_norm_check_signs(call, &v, wanted));
  TFU_TRY(FN(normalise)(call));
  tfu_parallel_ranges(v.n, tfu_task_size(v.n, TFU_TILE), FN(signs_range), &j);
  return TFU_OK;
}

static tfu_code FN(tfu_frozen_batch_norm_cpu)(tfu_call *call) { return FN(normalise)(call); }

static REAL FN(rounded)(REAL v, tfu_dtype dtype) {
  _Alignas(double) char stored[sizeof(double)];
  REAL buffer;
  FN(tfu_store)(stored, dtype, 0, 1, &v);
  return *FN(tfu_load)(stored, dtype, 0, 1, &buffer);
}

static tfu_code FN(tfu_batch_norm_statistics_cpu)(tfu_call *call) {
  static const tfu_channels sum = {1, 0, 0, 1, {0}}, squares = {1, 1, 0, 1, {0}};
  const tfu_tensor *in = call->in, *out = call->out, *x = &in[TFU_BATCHSTATISTICS_X];
  const batch_norm_view v = tfu_batch_norm_view(x);
  const REAL *old_mean = in[TFU_BATCHSTATISTICS_MEAN].data, *old_variance = in[TFU_BATCHSTATISTICS_VARIANCE].data;
  REAL *mean = out[TFU_BATCHSTATISTICS_BATCH_MEAN].data, *variance = out[TFU_BATCHSTATISTICS_BATCH_VARIANCE].data;
  REAL *new_mean = out[TFU_BATCHSTATISTICS_NEW_MEAN].data, *new_variance = out[TFU_BATCHSTATISTICS_NEW_VARIANCE].data;
  const double count = v.n ? (double)v.count : 1, update = v.n ? (double)call->attr[TFU_BATCHSTATISTICS_UPDATE].f : 0;
  double *totals;
  TFU_SCRATCH(call, v.channels, totals);
  TFU_TRY(FN(pass)(call, &v, &sum, &x, NULL, NULL, FN(sum_loop), NULL, totals));
  for (int64_t c = 0; c < v.channels; c++) mean[c] = (REAL)(totals[c] / count);
  TFU_TRY(FN(pass)(call, &v, &squares, &x, (const REAL *const[]){mean}, NULL, FN(squares_loop), NULL, totals));
  const tfu_tensor *shift = &in[TFU_BATCHSTATISTICS_SHIFT];
  for (int64_t c = 0; c < v.channels; c++) {
    const REAL off = tfu_given(&shift->shape) ? FN(rounded)(((const REAL *)shift->data)[c], v.dtype) : 0;
    variance[c] = (REAL)(totals[c] / count);
    new_mean[c] = (REAL)(old_mean[c] * (1 - update) + ((double)mean[c] + off) * update);
    new_variance[c] = (REAL)(old_variance[c] * (1 - update) + variance[c] * update);
  }
  return TFU_OK;
}

/* ---- backward ---- */

/* What is per channel, from the sums of g * d and of g: gradients, and unless statistics are frozen the two slopes of
 * dx that come from them. */
static void FN(settle)(tfu_call *call, const batch_norm_view *v, int frozen, const REAL *scale, const double *totals,
                       REAL *slopes) {
  const tfu_tensor *out = call->out;
  const REAL *variance = call->in[TFU_BATCHNORMGRAD_VARIANCE].data;
  REAL *to_gamma = tfu_given_data(&out[TFU_BATCHNORMGRAD_DGAMMA]),
       *to_beta = tfu_given_data(&out[TFU_BATCHNORMGRAD_DBETA]);
  REAL *dmean = out[TFU_BATCHNORMGRAD_DMEAN].data, *dvariance = out[TFU_BATCHNORMGRAD_DVARIANCE].data;
  const double count = v->n ? (double)v->count : 1;
  for (int64_t c = 0; c < v->channels; c++) {
    const double rstd = FN(rstd)(call, variance[c]), dgamma = rstd * totals[c], dbeta = totals[v->channels + c];
    if (to_gamma) to_gamma[c] = (REAL)dgamma;
    if (to_beta) to_beta[c] = (REAL)dbeta;
    if (frozen) {
      dmean[c] = (REAL)(0 - scale[c] * dbeta); /* of nothing 0, not -0 */
      dvariance[c] = (REAL)(0 - 0.5 * rstd * scale[c] * dgamma);
    } else {
      slopes[c] = (REAL)(-scale[c] * rstd * dgamma / count);
      slopes[v->channels + c] = (REAL)(-scale[c] * dbeta / count);
    }
  }
}

/* signs: those of y, or NULL. */
static tfu_code FN(gradient)(tfu_call *call, int frozen, const void *signs) {
  const tfu_tensor *in = call->in, *out = call->out, *x = &in[TFU_BATCHNORMGRAD_X], *dy = &in[TFU_BATCHNORMGRAD_DY];
  const int64_t activation = call->attr[TFU_BATCHNORM_ACTIVATION].i;
  const tfu_tensor *tensor[MOST_TENSORS] = {dy, x};
  int tensors = 2, kept = 0, more = 0;
  if (tfu_given(&in[TFU_BATCHNORMGRAD_KEPT].shape)) tensor[kept = tensors++] = &in[TFU_BATCHNORMGRAD_KEPT];
  if (tfu_given(&in[TFU_BATCHNORMGRAD_DY_MORE].shape)) tensor[more = tensors++] = &in[TFU_BATCHNORMGRAD_DY_MORE];
  const batch_norm_view v = tfu_batch_norm_view(x);
  double *totals;
  REAL *scale, *slopes;
  TFU_SCRATCH(call, 2 * v.channels, totals);
  TFU_SCRATCH(call, 2 * v.channels, slopes);
  TFU_TRY(
      FN(scales)(call, &v, in[TFU_BATCHNORMGRAD_VARIANCE].data, tfu_given_data(&in[TFU_BATCHNORMGRAD_GAMMA]), &scale));

  const REAL *weights[] = {in[TFU_BATCHNORMGRAD_MEAN].data, scale, tfu_given_data(&in[TFU_BATCHNORMGRAD_BETA]),
                           frozen ? NULL : slopes, frozen ? NULL : slopes + v.channels};
  const int bent = kept || signs; /* after a residual: then g is written */
  const tfu_channels first = {tensors, 3, bent, 2, {0, 1, -0.0f}};
  const how as_was = {.act = &tfu_activations[activation],
                      .kept = kept,
                      .more = more,
                      .from_y = kept && activation == TFU_ACT_relu,
                      .signs = signs,
                      .pack = pack_of(v.dtype)};
  TFU_TRY(
      FN(pass)(call, &v, &first, tensor, weights, &out[TFU_BATCHNORMGRAD_DRESIDUAL], FN(grad_loop), &as_was, totals));
  FN(settle)(call, &v, frozen, scale, totals, slopes);
  if (!v.n) return TFU_OK;

  const how linear = {.act = &tfu_activations[TFU_ACT_linear]};
  const tfu_channels second = {bent ? 2 : tensors, 5, 1, 0, {0, 1, -0.0f}};
  if (bent) tensor[0] = &out[TFU_BATCHNORMGRAD_DRESIDUAL];
  return FN(pass)(call, &v, &second, tensor, weights, &out[TFU_BATCHNORMGRAD_DX], FN(second_loop),
                  bent ? &linear : &as_was, NULL);
}

static tfu_code FN(tfu_batch_norm_grad_cpu)(tfu_call *call) {
  const tfu_tensor *signs = &call->in[TFU_BATCHNORMGRAD_SIGNS];
  const batch_norm_view v = tfu_batch_norm_view(&call->in[TFU_BATCHNORMGRAD_X]);
  if (tfu_given(&signs->shape)) TFU_TRY(tfu_batch_norm_check_signs(call, &v, signs));
  return FN(gradient)(call, 0, tfu_given_data(signs));
}

static tfu_code FN(tfu_frozen_batch_norm_grad_cpu)(tfu_call *call) { return FN(gradient)(call, 1, NULL); }
#endif
