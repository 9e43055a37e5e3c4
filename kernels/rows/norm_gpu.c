#include "kernels/rows/norm_gpu.h"

#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"
#include "ops/rows/norm.h"

TFU_MODULE(norm);
#define KERNEL(label) \
  { .module = &module, .name = #label, .variants = tfu_row_variants }
/* For layer and RMS normalisation, without and with residual and dropout; and for rows of any kind. */
static tfu_kernel forward[2][2] = {{KERNEL(layer_plain), KERNEL(layer_full)}, {KERNEL(rms_plain), KERNEL(rms_full)}};
static tfu_kernel backward[2][2] = {{KERNEL(layer_grad_plain), KERNEL(layer_grad_full)},
                                    {KERNEL(rms_grad_plain), KERNEL(rms_grad_full)}};
static tfu_kernel alone[2] = {KERNEL(layer_alone), KERNEL(rms_alone)}; /* of long rows, without residual and dropout */
static tfu_kernel any_forward = KERNEL(norm), any_backward = KERNEL(norm_grad);

/* By measurement on an H200 at [16384, 8192]. Forward, at 1, 4, 8, 16 waves layer normalisation in bfloat16 reaches 85,
 * 87, 86, 73% of the copy speed (each block loads its weights), RMS 87, 89, 90, 91%. A row shared by a cluster of
 * blocks of 256, 512 threads: 64, 59% at 65,536 columns, split rows 48%. The ring's numbers are KiB of a row, KiB of
 * its share, and groups: with shares of 128, 64, 32 KiB RMS has 76, 84, 84% in float32 and 69, 79, 79 in bfloat16 at
 * 65,536 columns. Backward, a cluster of 2 has 57% at 16,384 columns, of 4 33% at 32,768,
 * split rows 47% at 65,536; every block leaves a row of partial sums: with 512 instead of 1024 threads per
 * multiprocessor it takes 12% less time. */
TFU_TUNABLE(layer_waves, 4, 1, 64);
TFU_TUNABLE(rms_waves, 16, 1, 64);
TFU_TUNABLE(sharing_threads, 256, 128, TFU_NORM_THREADS);
TFU_TUNABLE(forward_cluster, 8, 1, 8);
TFU_TUNABLE(ring_from, 48, 16, 1024); /* a third less with residual or dropout, which no blocks take alone */
TFU_TUNABLE(ring_share, 64, 16, 128);
TFU_TUNABLE(ring_ahead, 1, 1, 12);
TFU_TUNABLE(backward_cluster, 2, 1, 8);
TFU_TUNABLE(grad_resident, 512, 256, 2048);

/* What kernels read in whole packs: rows and weights. */
static int aligned(const tfu_call *call, int64_t elements, const void *gamma, const void *beta) {
  return tfu_aligned(call, elements) && (uintptr_t)gamma % 16 == 0 && (uintptr_t)beta % 16 == 0;
}

/* What a part of a split row gives: two numbers. */
static size_t found_bytes(tfu_dtype dtype) { return 2 * tfu_dtype_size(tfu_real(dtype)); }

/* Whether rows rather have a block each, for them alone. On an H200, in percent of the copy speed, float32 of 8192,
 * 16,384 and 32,768 columns: RMS 91 to 96, 79 to 85, 76 to 61; layer 90 to 87, 55 to 75, 51 to 52. Bfloat16: RMS 91 to
 * 92, 85 to 90, 69 to 77; layer 86 to 79, 80 to 73, 50 to 56. */
static int better_alone(const tfu_row_job *job, int rms) {
  const int64_t bytes = job->cols * (int64_t)tfu_dtype_size(job->dtype);
  return bytes <= 64 * 1024 && (rms || bytes > 32 * 1024);
}

static tfu_code forward_pass(tfu_call *call, const tfu_row_kernel *k, tfu_row_job job, int pass, norm_args *a) {
  const int full = a->residual || a->seed;
  tfu_grid grid;
  int variant = TFU_ANY;
  job.pass = pass;
  job.tensors = a->residual ? 2 : 1;
  tfu_row_kernel own = *k;
  own.has |= TFU_ALONE;
  own.threads = TFU_NORM_ALONE_THREADS;
  int fits = !full && better_alone(&job, a->rms);
  if (fits) TFU_TRY(tfu_plan_rows(call, &own, &job, &a->rows, &grid, &variant));
  fits = fits && variant == TFU_LONG && a->rows.cluster == 1;
  if (!fits) TFU_TRY(tfu_plan_rows(call, k, &job, &a->rows, &grid, &variant));
  tfu_whole_periods(&a->rows, a->period, &grid);
  tfu_kernel *kernel = variant == TFU_ANY ? k->any : fits ? &alone[a->rms] : &forward[a->rms][full];
  return tfu_launch(call, kernel, variant, job.dtype, grid, a);
}

tfu_code tfu_norm_rows(tfu_call *call, tfu_dtype dtype, int64_t rows, int64_t cols, norm_args a) {
  const int full = a.residual || a.seed;
  const tfu_row_kernel kernel = {.any = &any_forward,
                                 .has = TFU_HAS_RING,
                                 .elements = TFU_NORM_ELEMENTS,
                                 .looks = a.rms ? 2 : 3,
                                 .threads = sharing_threads(),
                                 .waves = a.rms ? rms_waves() : layer_waves(),
                                 .cluster = forward_cluster(),
                                 .found = found_bytes(dtype),
                                 .ring = {full ? ring_from() * 2 / 3 : ring_from(), ring_share(), ring_ahead()}};
  tfu_row_job job = {.rows = rows,
                     .cols = cols,
                     .dtype = dtype,
                     .tensors = a.residual ? 2 : 1,
                     .aligned = aligned(call, rows * cols, a.gamma, a.beta)};
  int parts = 1;
  if (rows == 0) return TFU_OK;
  if (a.period == 1) TFU_TRY(tfu_parts_of(call, &kernel, &job, &parts));
  if (parts == 1 || !tfu_has_scratch(call, (size_t)job.rows * (size_t)parts * kernel.found))
    return forward_pass(call, &kernel, job, TFU_WHOLE, &a);
  TFU_TRY(tfu_split(call, &kernel, parts, &job));
  a.period = parts; /* the parts of a row have weights of their own, as the rows of a period have */
  TFU_TRY(forward_pass(call, &kernel, job, TFU_FIND, &a));
  if (full) a.x = a.sum, a.residual = a.seed = NULL; /* h is written by now */
  return forward_pass(call, &kernel, job, TFU_JOIN, &a);
}

/* Plans and launches one pass. *seats: how many rows of partial sums it leaves, one for each seat; in a first pass,
 * TFU_FIND, none are wanted. */
static tfu_code backward_pass(tfu_call *call, const tfu_row_kernel *k, tfu_row_job job, int pass, int sums,
                              norm_grad_args *a, int64_t *seats) {
  const int full = (a->dsum || a->seed) && pass != TFU_FIND;
  tfu_grid grid;
  int variant;
  job.pass = pass;
  job.tensors = full && a->dsum ? 3 : 2;
  TFU_TRY(tfu_plan_rows(call, k, &job, &a->rows, &grid, &variant));
  tfu_whole_periods(&a->rows, a->period, &grid);
  a->joined = variant != TFU_ANY && a->period == 1;
  *seats = a->joined ? grid.y : (int64_t)grid.y * (grid.threads / (unsigned)a->rows.lanes);
  const size_t real = tfu_dtype_size(tfu_real(job.dtype)), quantities = a->rms ? 1 : 2;
  a->partial = NULL;
  if (sums && pass != TFU_FIND)
    TFU_TRY(tfu_scratch(call, (size_t)(*seats * job.cols) * quantities * real, &a->partial));
  tfu_kernel *kernel = variant == TFU_ANY ? k->any : &backward[a->rms][full];
  return tfu_launch(call, kernel, variant, job.dtype, grid, a);
}

tfu_code tfu_norm_rows_grad(tfu_call *call, tfu_dtype dtype, int64_t rows, int64_t cols, norm_grad_args a,
                            const tfu_tensor *dweights) {
  const int sums = tfu_count(&dweights[0].shape) || tfu_count(&dweights[1].shape);
  const tfu_row_kernel kernel = {.any = &any_backward,
                                 .elements = TFU_NORM_GRAD_ELEMENTS,
                                 .looks = 2,
                                 .threads = TFU_NORM_GRAD_THREADS,
                                 .waves = 1,
                                 .cluster = backward_cluster(),
                                 .resident = grad_resident(),
                                 .found = found_bytes(dtype)};
  tfu_row_job job = {.rows = rows,
                     .cols = cols,
                     .dtype = dtype,
                     .tensors = a.dsum ? 3 : 2,
                     .aligned = aligned(call, rows * cols, a.gamma, NULL)};
  int parts = 1;
  int64_t seats;
  if (a.period == 1) TFU_TRY(tfu_parts_of(call, &kernel, &job, &parts));
  if (parts > 1) {
    TFU_TRY(tfu_split(call, &kernel, parts, &job));
    a.period = parts;
    TFU_TRY(backward_pass(call, &kernel, job, TFU_FIND, 0, &a, &seats));
  }
  TFU_TRY(backward_pass(call, &kernel, job, parts > 1 ? TFU_JOIN : TFU_WHOLE, sums, &a, &seats));
  if (!sums) return TFU_OK;
  return tfu_fold_gpu(call, a.partial, seats / a.period, a.period * job.cols, a.rms ? 1 : 2, dweights);
}

tfu_code tfu_norm_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out, *x = &in[TFU_NORM_X];
  return tfu_norm_rows(call, x->dtype, tfu_rows(&x->shape), tfu_cols(&x->shape),
                       (norm_args){.y = out[TFU_NORM_Y].data,
                                   .sum = tfu_given_data(&out[TFU_NORM_SUM]),
                                   .stats = out[TFU_NORM_STATS].data,
                                   .x = x->data,
                                   .residual = tfu_given_data(&in[TFU_NORM_RESIDUAL]),
                                   .gamma = tfu_given_data(&in[TFU_NORM_GAMMA]),
                                   .beta = tfu_given_data(&in[TFU_NORM_BETA]),
                                   .seed = tfu_given_data(&in[TFU_NORM_SEED]),
                                   .period = 1,
                                   .rms = call->attr[TFU_NORM_KIND].i == TFU_RMS_NORM,
                                   .epsilon = call->attr[TFU_NORM_EPSILON].f,
                                   .rate = call->attr[TFU_NORM_RATE].f});
}

tfu_code tfu_norm_grad_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out, *x = &in[TFU_NORMGRAD_X];
  return tfu_norm_rows_grad(call, x->dtype, tfu_rows(&x->shape), tfu_cols(&x->shape),
                            (norm_grad_args){.dx = out[TFU_NORMGRAD_DX].data,
                                             .dresidual = tfu_given_data(&out[TFU_NORMGRAD_DRESIDUAL]),
                                             .dy = in[TFU_NORMGRAD_DY].data,
                                             .dsum = tfu_given_data(&in[TFU_NORMGRAD_DSUM]),
                                             .x = x->data,
                                             .gamma = tfu_given_data(&in[TFU_NORMGRAD_GAMMA]),
                                             .stats = in[TFU_NORMGRAD_STATS].data,
                                             .seed = tfu_given_data(&in[TFU_NORMGRAD_SEED]),
                                             .period = 1,
                                             .rms = call->attr[TFU_NORM_KIND].i == TFU_RMS_NORM,
                                             .rate = call->attr[TFU_NORMGRAD_RATE].f},
                            &out[TFU_NORMGRAD_DGAMMA]);
}
