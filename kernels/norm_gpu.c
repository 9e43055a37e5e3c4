#include "kernels/norm_gpu.h"

#include "kernels/core/walk.h"
#include "kernels/norm.h"
#include "ops/norm.h"

TFU_MODULE(norm);
#define KERNEL(label) \
  { .module = &module, .name = #label, .variants = tfu_row_variants }
/* For layer and RMS normalisation, without and with residual, dropout and rows of any kind. */
static tfu_kernel forward[2][2] = {{KERNEL(layer_plain), KERNEL(layer_full)}, {KERNEL(rms_plain), KERNEL(rms_full)}};
static tfu_kernel backward[2][2] = {{KERNEL(layer_grad_plain), KERNEL(layer_grad_full)},
                                    {KERNEL(rms_grad_plain), KERNEL(rms_grad_full)}};

/* By measurement on an H200 at [16384, 8192]. Forward, at 2, 4, 8, 16 waves layer normalisation in
 * bfloat16 reaches 82, 85, 71, 59% of the copy speed (each block loads its weights), RMS 85, 88, 89, 84%. Backward,
 * every block leaves a row of partial sums: with 512 instead of 1024 threads per multiprocessor it takes 12% less time.
 */
enum { LAYER_WAVES = 4, RMS_WAVES = 8, GRAD_RESIDENT = 512 };

static void *given(const tfu_tensor *t) { return t && tfu_given(&t->shape) ? t->data : NULL; }

tfu_code tfu_norm_rows(tfu_call *call, const tfu_norm_tensors *t, int rms, float epsilon, float rate) {
  norm_args a = {.strides = {t->cols, t->cols},
                 .y = t->y->data,
                 .sum = given(t->sum),
                 .stats = t->stats->data,
                 .x = t->x->data,
                 .residual = given(t->residual),
                 .gamma = given(t->gamma),
                 .beta = given(t->beta),
                 .seed = given(t->seed),
                 .period = t->period,
                 .epsilon = epsilon,
                 .rate = rate};
  const int full = a.residual || a.seed;
  const tfu_row_wish wish = {.rows = t->rows,
                             .cols = t->cols,
                             .dtype = t->x->dtype,
                             .tensors = a.residual ? 2 : 1,
                             .elements = TFU_NORM_ELEMENTS,
                             .looks = rms ? 2 : 3,
                             .waves = rms ? RMS_WAVES : LAYER_WAVES,
                             .aligned = tfu_aligned(call, t->rows * t->cols)};
  tfu_grid grid;
  int variant;
  if (t->rows == 0) return TFU_OK;
  TFU_TRY(tfu_plan_rows(call, &wish, &a.rows, &grid, &variant));
  tfu_whole_periods(&a.rows, t->period, &grid);
  return tfu_launch(call, &forward[rms][full || variant == TFU_ANY], variant, t->x->dtype, grid, &a);
}

tfu_code tfu_norm_rows_grad(tfu_call *call, const tfu_norm_grad_tensors *t, int rms, float rate) {
  const int sums = tfu_count(&t->dweights[0].shape) || tfu_count(&t->dweights[1].shape);
  const int quantities = rms ? 1 : 2;
  norm_grad_args a = {.strides = {t->cols, t->cols, t->cols},
                      .dx = t->dx->data,
                      .dresidual = given(t->dresidual),
                      .dy = t->dy->data,
                      .dsum = given(t->dsum),
                      .x = t->x->data,
                      .gamma = given(t->gamma),
                      .stats = t->stats->data,
                      .seed = given(t->seed),
                      .period = t->period,
                      .rate = rate};
  const int full = a.dsum || a.seed;
  const tfu_row_wish wish = {.rows = t->rows,
                             .cols = t->cols,
                             .dtype = t->x->dtype,
                             .tensors = a.dsum ? 3 : 2,
                             .elements = TFU_NORM_GRAD_ELEMENTS,
                             .looks = 2,
                             .waves = 1,
                             .resident = GRAD_RESIDENT,
                             .aligned = tfu_aligned(call, t->rows * t->cols)};
  tfu_grid grid;
  int variant;
  TFU_TRY(tfu_plan_rows(call, &wish, &a.rows, &grid, &variant));
  tfu_whole_periods(&a.rows, t->period, &grid);
  a.joined = variant != TFU_ANY && t->period == 1;
  const int64_t seats = a.joined ? grid.y : (int64_t)grid.y * (grid.threads / (unsigned)a.rows.lanes);
  const size_t real = tfu_dtype_size(tfu_real(t->x->dtype));
  if (sums) TFU_TRY(tfu_scratch(call, (size_t)(seats * quantities * t->cols) * real, &a.partial));
  TFU_TRY(tfu_launch(call, &backward[rms][full || variant == TFU_ANY], variant, t->x->dtype, grid, &a));
  if (!sums) return TFU_OK;
  return tfu_fold_gpu(call, a.partial, seats / t->period, t->period * t->cols, quantities, t->dweights);
}

tfu_code tfu_norm_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out;
  const tfu_norm_tensors t = {.rows = tfu_rows(&in[0].shape),
                              .cols = tfu_cols(&in[0].shape),
                              .period = 1,
                              .x = &in[0],
                              .residual = &in[1],
                              .gamma = &in[2],
                              .beta = &in[3],
                              .seed = &in[4],
                              .y = &out[0],
                              .sum = &out[1],
                              .stats = &out[2]};
  return tfu_norm_rows(call, &t, call->attr[0].i == TFU_RMS_NORM, call->attr[1].f, call->attr[2].f);
}

tfu_code tfu_norm_grad_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out;
  const tfu_norm_grad_tensors t = {.rows = tfu_rows(&in[2].shape),
                                   .cols = tfu_cols(&in[2].shape),
                                   .period = 1,
                                   .dy = &in[0],
                                   .dsum = &in[1],
                                   .x = &in[2],
                                   .gamma = &in[3],
                                   .stats = &in[5],
                                   .seed = &in[6],
                                   .dx = &out[0],
                                   .dresidual = &out[1],
                                   .dweights = &out[2]};
  return tfu_norm_rows_grad(call, &t, call->attr[0].i == TFU_RMS_NORM, call->attr[1].f);
}
