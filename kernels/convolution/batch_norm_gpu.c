#include "kernels/convolution/batch_norm_gpu.h"

#include "kernels/convolution/batch_norm.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/elementwise/scale_bias_act.h"
#include "kernels/reductions/reduce.h"
#include "ops/convolution/batch_norm.h"

TFU_MODULE(batch_norm);
TFU_MODULE_AS(grad_module, batch_norm_grad);

/* Which kernel serves an activation; those without one are served by the last. */
static const char *const variants[TFU_ACTS + 1] = {[TFU_ACT_linear] = "linear", [TFU_ACT_relu] = "bent",
                                                   [TFU_ACT_relu6] = "bent",    [TFU_ACT_leaky_relu] = "bent",
                                                   [TFU_ACT_silu] = "silu",     [TFU_ACT_hard_swish] = "hard_swish",
                                                   [TFU_ACTS] = "any"};
#define KERNEL(label) \
  { .module = &module, .name = label, .variants = variants }
#define GRAD_KERNEL(label) \
  { .module = &grad_module, .name = label, .variants = variants }
static tfu_kernel apply = KERNEL("batch_norm_apply");
static tfu_kernel apply_residual = KERNEL("batch_norm_apply_residual");
static tfu_kernel sums = GRAD_KERNEL("batch_norm_sums");
static tfu_kernel sums_signs = {
    .module = &grad_module, .name = "batch_norm_sums_signs", .variants = tfu_activation_variants};
static tfu_kernel sums_kept = {
    .module = &grad_module, .name = "batch_norm_sums_kept", .variants = tfu_activation_variants};
static tfu_kernel sums_residual = GRAD_KERNEL("batch_norm_sums_residual");
static tfu_kernel second = GRAD_KERNEL("batch_norm_second");
static tfu_kernel frozen_grad = GRAD_KERNEL("frozen_batch_norm_grad");
static tfu_kernel settle = {.module = &module, .name = "batch_norm_settle"};
static tfu_kernel grad_settle = {.module = &grad_module, .name = "batch_norm_grad_settle"};

/* Per multiprocessor, by reasoning, not by measurement. Without sums: fewer than for other formulas, since a block
 * begins with more weights. With sums: what these leave behind grows with the blocks, and two have 72 KiB on their way;
 * with signs, which take the place of a tensor there, three have. */
TFU_TUNABLE(blocks, 32, 1, 256);
TFU_TUNABLE(sums_blocks, 2, 1, 64);
TFU_TUNABLE(signs_blocks, 3, 1, 64);
TFU_TUNABLE(reader_blocks, 3, 1, 64); /* that write nothing but sums: as many as run at once by their 80 registers */

_Static_assert((int)BATCH_NORM_STATE_MEAN == (int)TFU_SPREAD_MEAN &&
                   (int)BATCH_NORM_STATE_SQUARES == (int)TFU_SPREAD_SQUARES &&
                   (int)BATCH_NORM_STATE_COUNT == (int)TFU_SPREAD_COUNT &&
                   (int)BATCH_NORM_STATE_REST == (int)TFU_SPREAD_REST,
               "device code counts the numbers of a state as reductions do");

static size_t vector_bytes(const batch_norm_view *v) { return (size_t)v->channels * tfu_dtype_size(v->real); }

/* Of a launch that has `across` channels in a block. */
static tfu_grid per_channel(const batch_norm_view *v, int across) {
  return (tfu_grid){.x = (unsigned)divide_up(v->channels, across), .threads = TFU_THREADS};
}

/* Whether a kernel in float serves the activation, after a residual or without one. */
static int has_own(int activation, int residual) {
  const int curved = activation == TFU_ACT_silu || activation == TFU_ACT_hard_swish;
  return variants[activation] && !(residual && curved);
}

/* One pass over memory. Weights that are NULL read as `absent`. */
static tfu_code pass(tfu_call *call, tfu_kernel *kernel, int activation, const batch_norm_view *v,
                     const tfu_channels *op, batch_norm_args *args, const tfu_tensor *totals) {
  tfu_channels_args *a = &args->channels;
  args->inner = v->inner;
  a->any = kernel == &sums_residual || !has_own(activation, kernel == &apply_residual);
  a->blocks = !op->sums               ? blocks()
              : !op->results          ? reader_blocks()
              : kernel == &sums_signs ? signs_blocks()
                                      : sums_blocks();
  for (int i = 0; i < op->weights; i++) a->count[i] = a->w[i] ? v->channels : 0;
  return tfu_channels_launch(call, kernel, activation, op, v->dtype, v->n, v->cols, a, totals);
}

/* The formula's numbers; its weights are mean, variance, gamma, beta, and one that is never given and reads as epsilon.
 * An absent beta is -0, which changes nothing. */
static tfu_channels with_statistics(const tfu_call *call, int tensors, int results, int totals) {
  return (tfu_channels){tensors, 5, results, totals, {0, 0, 1, -0.0f, call->attr[TFU_BATCHNORM_EPSILON].f}};
}

/* ---- forward ---- */

/* y, and its signs unless these are NULL. */
static tfu_code normalise(tfu_call *call, const batch_norm_view *v, void *signs) {
  const tfu_tensor *in = call->in;
  const int activation = (int)call->attr[TFU_BATCHNORM_ACTIVATION].i;
  const void *residual = tfu_given_data(&in[TFU_BATCHNORM_RESIDUAL]);
  const tfu_channels op = with_statistics(call, residual ? 2 : 1, 1, 0);
  batch_norm_args a = {
      .channels = {.x = {in[TFU_BATCHNORM_X].data, residual},
                   .y = {call->out[TFU_BATCHNORM_Y].data},
                   .w = {in[TFU_BATCHNORM_MEAN].data, in[TFU_BATCHNORM_VARIANCE].data,
                         tfu_given_data(&in[TFU_BATCHNORM_GAMMA]), tfu_given_data(&in[TFU_BATCHNORM_BETA])}},
      .signs = signs};
  return pass(call, residual ? &apply_residual : &apply, activation, v, &op, &a, NULL);
}

tfu_code tfu_batch_norm_gpu(tfu_call *call) {
  const batch_norm_view v = tfu_batch_norm_view(&call->in[TFU_BATCHNORM_X]);
  const tfu_tensor *wanted = &call->in[TFU_BATCHNORM_SIGNS_FOR];
  if (!tfu_given(&wanted->shape)) return normalise(call, &v, NULL);
  TFU_TRY(tfu_batch_norm_check_signs(call, &v, wanted));
  return normalise(call, &v, call->out[TFU_BATCHNORM_SIGNS].data);
}

tfu_code tfu_frozen_batch_norm_gpu(tfu_call *call) {
  const batch_norm_view v = tfu_batch_norm_view(&call->in[TFU_BATCHNORM_X]);
  return normalise(call, &v, NULL);
}

/* The states of a variance are taken without a difference of large numbers (kernels/reductions/reduce.cuh). */
tfu_code tfu_batch_norm_statistics_gpu(tfu_call *call) {
  enum { ALL_BUT_CHANNELS = 1 << 0 | 1 << 2, FEW = 4096 /* parts of a channel that one launch joins */ };
  const tfu_tensor *x = &call->in[TFU_BATCHSTATISTICS_X], *out = call->out;
  static const int rounded[TFU_FLOATS] = {[TFU_F16] = BATCH_NORM_SHIFT_F16, [TFU_BF16] = BATCH_NORM_SHIFT_BF16};
  const batch_norm_view v = tfu_batch_norm_view(x);
  const tfu_groups groups = tfu_groups_of(&x->shape, ALL_BUT_CHANNELS);
  tfu_reduce_parts of = {.inner = 1};
  if (v.n) TFU_TRY(tfu_reduce_to_parts(call, x, &groups, TFU_REDUCE_VARIANCE, FEW, &of));
  batch_norm_settle_args s = {.channels = v.channels,
                              .count = v.count,
                              .update = call->attr[TFU_BATCHSTATISTICS_UPDATE].f,
                              .states = of.states,
                              .parts = of.parts,
                              .inner = of.inner,
                              .mean = call->in[TFU_BATCHSTATISTICS_MEAN].data,
                              .variance = call->in[TFU_BATCHSTATISTICS_VARIANCE].data,
                              .shift = tfu_given_data(&call->in[TFU_BATCHSTATISTICS_SHIFT]),
                              .shift_as = rounded[x->dtype],
                              .new_mean = out[TFU_BATCHSTATISTICS_NEW_MEAN].data,
                              .new_variance = out[TFU_BATCHSTATISTICS_NEW_VARIANCE].data,
                              .batch_mean = out[TFU_BATCHSTATISTICS_BATCH_MEAN].data,
                              .batch_variance = out[TFU_BATCHSTATISTICS_BATCH_VARIANCE].data};
  return tfu_launch(call, &settle, 0, v.real, per_channel(&v, BATCH_NORM_ACROSS), &s);
}

/* ---- backward ---- */

/* What both gradients have. */
typedef struct job {
  tfu_call *call;
  batch_norm_view v;
  int activation;
  const void *dy, *dy_more; /* their sum is what comes from above; dy_more may be NULL */
  const void *x;
  const void *kept;       /* after a residual: y of relu, else the residual; or NULL */
  void *signs;            /* those of y in the place of kept; or NULL */
  void *g;                /* where dy * act' is kept, or NULL: then passes make it of dy */
  const void *weights[4]; /* mean, variance, gamma, beta */
  batch_norm_grad_settle_args settled;
} job;

static void begin(tfu_call *call, job *j, void *signs) {
  const tfu_tensor *in = call->in, *out = call->out;
  const void *kept = tfu_given_data(&in[TFU_BATCHNORMGRAD_KEPT]);
  *j = (job){.call = call,
             .v = tfu_batch_norm_view(&in[TFU_BATCHNORMGRAD_X]),
             .activation = (int)call->attr[TFU_BATCHNORM_ACTIVATION].i,
             .dy = in[TFU_BATCHNORMGRAD_DY].data,
             .dy_more = tfu_given_data(&in[TFU_BATCHNORMGRAD_DY_MORE]),
             .x = in[TFU_BATCHNORMGRAD_X].data,
             .kept = kept,
             .signs = signs,
             .g = kept || signs ? out[TFU_BATCHNORMGRAD_DRESIDUAL].data : NULL,
             .weights = {in[TFU_BATCHNORMGRAD_MEAN].data, in[TFU_BATCHNORMGRAD_VARIANCE].data,
                         tfu_given_data(&in[TFU_BATCHNORMGRAD_GAMMA]), tfu_given_data(&in[TFU_BATCHNORMGRAD_BETA])}};
  j->settled = (batch_norm_grad_settle_args){.channels = j->v.channels,
                                             .count = j->v.count,
                                             .inner = j->v.inner,
                                             .epsilon = call->attr[TFU_BATCHNORM_EPSILON].f,
                                             .gamma = j->weights[2],
                                             .variance = j->weights[1],
                                             .dgamma = tfu_given_data(&out[TFU_BATCHNORMGRAD_DGAMMA]),
                                             .dbeta = tfu_given_data(&out[TFU_BATCHNORMGRAD_DBETA])};
}

/* The kernel that makes g of what was kept. */
static tfu_kernel *from_kept(const job *j) {
  return j->signs ? &sums_signs : j->activation == TFU_ACT_relu ? &sums_kept : &sums_residual;
}

/* A pass that begins at statistics, of dy, x and perhaps what was kept; unless `unwanted`, with its sums. */
static tfu_code grad_pass(job *j, tfu_kernel *kernel, void *result, const tfu_tensor *unwanted) {
  tfu_channels op = with_statistics(j->call, j->kept ? 3 : 2, result != NULL, 2);
  batch_norm_args a = {.channels = {.x = {j->dy, j->x, j->kept}, .y = {result}}, .more = j->dy_more, .signs = j->signs};
  if (kernel == &sums_kept || kernel == &sums_signs) op.weights = 1; /* the mean alone */
  for (int i = 0; i < op.weights && i < 4; i++) a.channels.w[i] = j->weights[i];
  TFU_TRY(pass(j->call, kernel, j->activation, &j->v, &op, &a, unwanted));
  j->settled.partial = a.channels.partial;
  j->settled.blocks = a.channels.sum_blocks;
  j->settled.width = a.channels.sum_width;
  return TFU_OK;
}

/* Folds the sums of such a pass, and makes of them what is per channel. */
static tfu_code settle_sums(job *j) {
  const int across = j->v.inner == 1 ? BATCH_NORM_ACROSS : 1;
  return tfu_launch(j->call, &grad_settle, 0, j->v.real, per_channel(&j->v, across), &j->settled);
}

/* From here on g is there: what follows reads that. */
static void read_g(job *j) {
  if (!j->g) return;
  j->dy = j->g;
  j->dy_more = NULL;
  j->activation = TFU_ACT_linear;
  j->kept = NULL;
  j->signs = NULL;
}

tfu_code tfu_batch_norm_grad_gpu(tfu_call *call) {
  const tfu_tensor *signs = &call->in[TFU_BATCHNORMGRAD_SIGNS];
  job j;
  begin(call, &j, tfu_given_data(signs));
  if (tfu_given(&signs->shape)) TFU_TRY(tfu_batch_norm_check_signs(call, &j.v, signs));
  TFU_TRY(grad_pass(&j, j.g ? from_kept(&j) : &sums, j.g, NULL));
  TFU_TRY(tfu_scratch(call, 3 * vector_bytes(&j.v), &j.settled.slopes));
  TFU_TRY(settle_sums(&j));
  if (!j.v.n) return TFU_OK;
  read_g(&j);
  const tfu_channels op = {2, 5, 1, 0, {0, -0.0f}}; /* weights are mean, beta and the slopes */
  const size_t one = vector_bytes(&j.v);
  char *const slopes = j.settled.slopes;
  batch_norm_args a = {.channels = {.x = {j.dy, j.x},
                                    .y = {call->out[TFU_BATCHNORMGRAD_DX].data},
                                    .w = {j.weights[0], j.weights[3], slopes, slopes + one, slopes + 2 * one}},
                       .more = j.dy_more};
  return pass(call, &second, j.activation, &j.v, &op, &a, NULL);
}

tfu_code tfu_frozen_batch_norm_grad_gpu(tfu_call *call) {
  job j;
  begin(call, &j, NULL);
  const tfu_tensor unwanted[2] = {{.dtype = j.v.real, .shape = {.rank = 1}}, {.dtype = j.v.real, .shape = {.rank = 1}}};
  if (j.kept) TFU_TRY(grad_pass(&j, from_kept(&j), j.g, unwanted));
  read_g(&j);
  TFU_TRY(grad_pass(&j, &frozen_grad, call->out[TFU_BATCHNORMGRAD_DX].data, NULL));
  j.settled.dmean = call->out[TFU_BATCHNORMGRAD_DMEAN].data;
  j.settled.dvariance = call->out[TFU_BATCHNORMGRAD_DVARIANCE].data;
  return settle_sums(&j);
}
