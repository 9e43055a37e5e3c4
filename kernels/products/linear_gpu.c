/* linear on the GPU: cuBLASLt's product with as much of the rest in its epilogue as it has and as is faster; what is
 * left is one pass over memory.
 *
 * bias is an epilogue, a residual after no activation is cuBLASLt's own C, relu and gelu by tanh (but for exact
 * float32) are epilogues, the latter with pre as a by-product. Any other activation, and a residual after one, is the
 * pass. In the gradient dpre is a pass, which has the sums of bias too: cuBLASLt's DGELU and DRELU want to follow the
 * product that makes dy, which is another layer's. Without an activation dpre is dy, and the sums are the epilogue of
 * the product for dkernel, or a pass that only reads. Where both ways are open, they are timed once. */
#include "kernels/products/linear.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/channels.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/recycle.h"
#include "kernels/elementwise/scale_bias_act.h"
#include "kernels/products/few_rows.h"
#include "kernels/products/float8_linear.h"
#include "kernels/products/gemm_gpu.h"
#include "kernels/products/linear_way.h"
#include "ops/products/linear.h"

TFU_MODULE(linear);

static tfu_kernel finish_kernel = TFU_ACTIVATION_KERNEL("linear_finish");
static tfu_kernel sums_kernel = {.module = &module, .name = "linear_sums"};

typedef struct linear_call {
  tfu_call *call;
  int act, tf32;
  tfu_dtype dtype;
  int64_t rows, inputs, outputs;
  const void *x, *kernel, *bias, *residual; /* NULL: none */
  void *y, *pre;                            /* NULL: not kept */
  const tfu_gemm_float8 *float8;            /* what x and kernel, [outputs, inputs], are; NULL: of dtype */
} linear_call;

static linear_call read_call(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_LINEAR_X], *kernel = &call->in[TFU_LINEAR_KERNEL];
  return (linear_call){.call = call,
                       .act = (int)call->attr[TFU_LINEAR_ACTIVATION].i,
                       .tf32 = call->attr[TFU_LINEAR_TF32].b,
                       .dtype = call->out[TFU_LINEAR_Y].dtype,
                       .rows = tfu_rows(&x->shape),
                       .inputs = tfu_cols(&x->shape),
                       .outputs = tfu_cols(&kernel->shape),
                       .x = x->data,
                       .kernel = kernel->data,
                       .bias = tfu_given_data(&call->in[TFU_LINEAR_BIAS]),
                       .residual = tfu_given_data(&call->in[TFU_LINEAR_RESIDUAL]),
                       .y = call->out[TFU_LINEAR_Y].data,
                       .pre = tfu_given_data(&call->out[TFU_LINEAR_PRE])};
}

static tfu_gemm_gpu product(const linear_call *l, void *d, tfu_epilogue epilogue) {
  return (tfu_gemm_gpu){.a = l->x,
                        .b = l->kernel,
                        .d = d,
                        .m = l->rows,
                        .n = l->outputs,
                        .k = l->inputs,
                        .b_transposed = l->float8 != NULL,
                        .dtype = l->dtype,
                        .float8 = l->float8,
                        .tf32 = l->tf32,
                        .epilogue = epilogue,
                        .bias = l->bias};
}

static tfu_code no_product(tfu_call *call, int64_t m, int64_t n, int64_t k, tfu_dtype dtype) {
  return tfu_fail(call->err, TFU_UNIMPLEMENTED, "cuBLASLt has no product of [%lld, %lld] and [%lld, %lld] in %s",
                  (long long)m, (long long)k, (long long)k, (long long)n, tfu_dtype_name(dtype));
}

/* ---- product, then a pass ---- */

/* What is left to do on `from`, which may be y. */
typedef struct rest {
  const linear_call *l;
  const void *from, *bias;
} rest;

static tfu_code pass(void *rest_) {
  const rest *r = rest_;
  const linear_call *l = r->l;
  const int64_t n = l->rows * l->outputs;
  static const tfu_channels op = {2, 1, 1, 0, {-0.0f}}; /* pre and residual; bias; y */
  tfu_channels_args a = {.x = {r->from, l->residual}, .y = {l->y}, .w = {r->bias}, .count = {r->bias ? l->outputs : 0}};
  if (!l->residual) return tfu_bias_act_launch(l->call, l->act, l->dtype, n, l->outputs, l->y, r->from, r->bias);
  return tfu_channels_launch(l->call, &finish_kernel, l->act, &op, l->dtype, n, r->bias ? l->outputs : 1, &a, NULL);
}

/* The product at `to`; *bias is what of the bias is not in it. */
static tfu_code multiply(const linear_call *l, void *to, const void **bias) {
  tfu_gemm_gpu g = product(l, to, TFU_EPI_NONE);
  int served = 0;
  *bias = NULL;
  if (l->inputs > 0) TFU_TRY(tfu_gemm_gpu_run(l->call, &g, &served));
  if (served) return TFU_OK;
  *bias = l->bias;
  g.bias = NULL;
  if (l->inputs == 0) /* an empty sum is 0 */
    return tfu_clear(l->call, to, (size_t)(l->rows * l->outputs) * tfu_dtype_size(l->dtype));
  if (l->bias) TFU_TRY(tfu_gemm_gpu_run(l->call, &g, &served));
  return served ? TFU_OK : no_product(l->call, l->rows, l->outputs, l->inputs, l->dtype);
}

static tfu_code in_two(const linear_call *l) {
  void *to = l->pre ? l->pre : l->y;
  rest r = {.l = l, .from = to};
  TFU_TRY(multiply(l, to, &r.bias));
  if (l->pre && r.bias) { /* pre has the bias in it */
    TFU_TRY(tfu_bias_act_launch(l->call, TFU_ACT_linear, l->dtype, l->rows * l->outputs, l->outputs, to, to, r.bias));
    r.bias = NULL;
  }
  const int done = to == l->y && l->act == TFU_ACT_linear && !r.bias && !l->residual;
  return done ? TFU_OK : pass(&r);
}

/* ---- all in one ---- */

static const struct {
  int served;
  tfu_epilogue alone, with_pre; /* TFU_EPI_NONE: there is none that has pre */
} fused[TFU_ACTS] = {
    [TFU_ACT_linear] = {1, TFU_EPI_NONE, TFU_EPI_NONE},
    [TFU_ACT_relu] = {1, TFU_EPI_RELU, TFU_EPI_NONE},
    [TFU_ACT_gelu_tanh] = {1, TFU_EPI_GELU, TFU_EPI_GELU_AUX},
};

/* The product that is all of the layer; 0 where cuBLASLt cannot have one. */
static int as_one(const linear_call *l, tfu_gemm_gpu *g) {
  const int with_pre = fused[l->act].with_pre != TFU_EPI_NONE && l->outputs % 8 == 0;
  if (!fused[l->act].served || l->inputs == 0) return 0;
  if (l->pre && !with_pre) return 0;
  if (l->residual && l->act != TFU_ACT_linear) return 0;
  *g = product(l, l->y, l->pre ? fused[l->act].with_pre : fused[l->act].alone);
  g->aux = l->pre;
  g->c = l->residual;
  return 1;
}

/* ---- forward ---- */

static tfu_code find_way(const linear_call *l, const tfu_gemm_gpu *one, int *in_one) {
  const tfu_gemm_gpu bare = product(l, l->pre ? l->pre : l->y, TFU_EPI_NONE);
  rest r = {.l = l, .from = bare.d};
  const linear_way_key key = {.rows = l->rows,
                              .inputs = l->inputs,
                              .outputs = l->outputs,
                              .dtype = (int32_t)l->dtype,
                              .tf32 = l->tf32,
                              .act = l->act,
                              .bias = !l->bias                  ? LINEAR_NO_BIAS
                                      : (uintptr_t)l->bias % 16 ? LINEAR_ODD_BIAS
                                                                : LINEAR_BIAS,
                              .kind = (l->pre ? LINEAR_PRE : LINEAR_PLAIN) + (l->float8 ? LINEAR_FLOAT8 : 0)};
  return tfu_linear_way(l->call, key, (linear_ways){.one = one, .bare = &bare, .pass = pass, .with = &r}, in_one);
}

/* Rows that the kernel for few rows is used for, and those up to which that by warpgroups is, where they may read
 * ahead. Elsewhere cuBLASLt took no longer on an H200. */
TFU_TUNABLE(few_rows_most, 16, 0, FEW_ROWS_MOST);
TFU_TUNABLE(wgmma_rows_most, 0, 0, 1 << 20);

static int reads_ahead(const tfu_call *call) { return (call->constant & 1u << TFU_LINEAR_KERNEL) != 0; }

static tfu_code few_rows(const linear_call *l, int *served) {
  const few_rows_args a = {.of[0] = {.kernel = l->kernel, .bias = l->bias, .y = l->y, .outputs = l->outputs},
                           .x = l->x,
                           .residual = l->residual,
                           .inputs = l->inputs,
                           .rows = (int)l->rows,
                           .activation = l->act};
  const int invariant = l->call->invariant, few = invariant || (reads_ahead(l->call) && l->rows <= few_rows_most()),
            wide = invariant || (reads_ahead(l->call) && l->rows <= wgmma_rows_most());
  if (l->pre || !(few || wide)) return TFU_OK;
  if (wide && (invariant || !few)) TFU_TRY(tfu_few_rows_wgmma_run(l->call, a, l->dtype, reads_ahead(l->call), served));
  if (few && !*served) TFU_TRY(tfu_few_rows_run(l->call, a, l->dtype, reads_ahead(l->call), served));
  return TFU_OK;
}

static tfu_code by_products(const linear_call *l) {
  tfu_gemm_gpu one;
  int served = 0, in_one = 1;
  if (!as_one(l, &one)) return in_two(l);
  if (l->act != TFU_ACT_linear && !l->call->invariant) TFU_TRY(find_way(l, &one, &in_one));
  if (in_one) TFU_TRY(tfu_gemm_gpu_run(l->call, &one, &served));
  return served ? TFU_OK : in_two(l);
}

tfu_code tfu_linear_gpu(tfu_call *call) {
  const linear_call l = read_call(call);
  int served = 0;
  TFU_TRY(few_rows(&l, &served));
  return served ? TFU_OK : by_products(&l);
}

tfu_code tfu_linear_of_float8_gpu(tfu_call *call, const tfu_gemm_float8 *float8, int *served) {
  linear_call l = read_call(call);
  float microseconds;
  l.float8 = float8;
  tfu_gemm_gpu bare = product(&l, l.pre ? l.pre : l.y, TFU_EPI_NONE);
  bare.bias = NULL; /* which a pass can add */
  TFU_TRY(tfu_gemm_gpu_time(call, &bare, served, &microseconds));
  return *served ? by_products(&l) : TFU_OK;
}

/* ---- gradient ---- */

static tfu_code clear(tfu_call *call, const tfu_tensor *t) {
  return tfu_clear(call, t->data, (size_t)tfu_count(&t->shape) * tfu_dtype_size(t->dtype));
}

/* dpre, and the sums of bias where there is an activation. */
static tfu_code slope(tfu_call *call, int act, const tfu_tensor *dbias, void **dpre) {
  const tfu_tensor *dy = &call->in[TFU_LINGRAD_DY];
  const int64_t n = tfu_count(&dy->shape);
  *dpre = dy->data;
  if (act == TFU_ACT_linear) return TFU_OK;
  TFU_TRY(tfu_scratch(call, (size_t)n * tfu_dtype_size(dy->dtype), dpre));
  return tfu_act_grad_launch(call, act, dy->dtype, n, tfu_cols(&dy->shape), *dpre, dy->data,
                             call->in[TFU_LINGRAD_PRE].data, dbias);
}

/* Only sums: the pass reads, and writes next to nothing. */
typedef struct sums {
  tfu_recycled space; /* it may run many times */
  const tfu_tensor *dbias;
} sums;

/* Blocks per multiprocessor, unless a thread would have less than four rows: enough for every one to be full. */
TFU_TUNABLE(sums_blocks, 8, 1, 64);

static tfu_code deal_out(tfu_call *call, const tfu_tensor *dy, linear_sums_args *a, tfu_grid *grid) {
  enum { WARP = 32, FEWEST = 4 };
  const int64_t pack = 16 / (int64_t)tfu_dtype_size(dy->dtype), packs = divide_up(a->cols, pack);
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  for (a->lanes = WARP; a->lanes / 2 >= packs && a->lanes > 1;) a->lanes /= 2;
  a->aligned = a->cols % pack == 0 && tfu_aligned(call, tfu_count(&dy->shape));
  const int64_t columns = divide_up(packs, a->lanes), most = a->rows * a->lanes / (FEWEST * TFU_THREADS);
  int64_t blocks = (int64_t)device.multiprocessors * sums_blocks() / columns;
  if (blocks > most) blocks = most;
  if (blocks < 1) blocks = 1;
  *grid = (tfu_grid){.x = (unsigned)columns, .y = (unsigned)blocks, .threads = TFU_THREADS};
  return TFU_OK;
}

static tfu_code sum_rows(void *sums_) {
  sums *s = sums_;
  tfu_call *call = tfu_recycle(&s->space);
  const tfu_tensor *dy = &call->in[TFU_LINGRAD_DY];
  linear_sums_args a = {.dy = dy->data, .rows = tfu_rows(&dy->shape), .cols = tfu_cols(&dy->shape)};
  tfu_grid grid;
  TFU_TRY(deal_out(call, dy, &a, &grid));
  TFU_TRY(tfu_scratch(call, (size_t)(grid.y * a.cols) * tfu_dtype_size(tfu_real(dy->dtype)), &a.partial));
  TFU_TRY(tfu_launch(call, &sums_kernel, 0, dy->dtype, grid, &a));
  return tfu_fold_gpu(call, a.partial, grid.y, a.cols, 1, s->dbias);
}

static tfu_code run_sums(tfu_call *call, const tfu_tensor *dbias) {
  sums s = {.dbias = dbias};
  tfu_recycled_open(&s.space, call);
  TFU_TRY(sum_rows(&s));
  if (!call->kernel) call->kernel = s.space.call.kernel;
  return TFU_OK;
}

static tfu_code run_product(tfu_call *call, const tfu_gemm_gpu *g) {
  int served;
  TFU_TRY(tfu_gemm_gpu_run(call, g, &served));
  return served ? TFU_OK : no_product(call, g->m, g->n, g->k, g->dtype);
}

/* dkernel, and dbias if it is not empty: in one product, or in a product and a pass. */
static tfu_code run_dkernel(tfu_call *call, const tfu_gemm_gpu *bare, const tfu_tensor *dbias) {
  sums s = {.dbias = dbias};
  tfu_gemm_gpu one = *bare;
  int served = 0, in_one;
  if (tfu_count(&dbias->shape) == 0) return run_product(call, bare);
  one.epilogue = TFU_EPI_SUM_B;
  one.sums = dbias->data;
  tfu_recycled_open(&s.space, call);
  const linear_way_key key = {.rows = bare->k,
                              .inputs = bare->m,
                              .outputs = bare->n,
                              .dtype = (int32_t)bare->dtype,
                              .tf32 = bare->tf32,
                              .act = TFU_ACT_linear,
                              .bias = LINEAR_BIAS,
                              .kind = LINEAR_GRADIENT};
  TFU_TRY(tfu_linear_way(call, key, (linear_ways){.one = &one, .bare = bare, .pass = sum_rows, .with = &s}, &in_one));
  if (in_one) TFU_TRY(tfu_gemm_gpu_run(call, &one, &served));
  if (served) return TFU_OK;
  TFU_TRY(run_product(call, bare));
  return sum_rows(&s);
}

tfu_code tfu_linear_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[TFU_LINGRAD_DY], *x = &call->in[TFU_LINGRAD_X];
  const tfu_tensor *dx = &call->out[TFU_LINGRAD_DX], *dkernel = &call->out[TFU_LINGRAD_DKERNEL];
  const tfu_tensor *dbias = &call->out[TFU_LINGRAD_DBIAS];
  const int64_t rows = tfu_rows(&dy->shape), outputs = tfu_cols(&dy->shape);
  const int act = (int)call->attr[TFU_LINEAR_ACTIVATION].i, tf32 = call->attr[TFU_LINEAR_TF32].b;
  const int wants_dx = tfu_count(&dx->shape) > 0, wants_dkernel = tfu_count(&dkernel->shape) > 0;
  const tfu_tensor none = {.dtype = dbias->dtype, .shape = {.rank = 1}}; /* dim[0] is 0 */
  const tfu_tensor *left = act == TFU_ACT_linear ? dbias : &none;        /* of the sums, once there is dpre */
  void *dpre;
  if (rows * outputs == 0) { /* sums of nothing */
    TFU_TRY(clear(call, dx));
    TFU_TRY(clear(call, dkernel));
    return clear(call, dbias);
  }
  TFU_TRY(slope(call, act, dbias, &dpre));
  const tfu_gemm_gpu for_dx = {.a = dpre,
                               .b = call->in[TFU_LINGRAD_KERNEL].data,
                               .d = dx->data,
                               .m = rows,
                               .n = tfu_cols(&dx->shape),
                               .k = outputs,
                               .b_transposed = 1,
                               .dtype = dy->dtype,
                               .tf32 = tf32};
  const tfu_gemm_gpu for_dkernel = {.a = x->data,
                                    .b = dpre,
                                    .d = dkernel->data,
                                    .m = tfu_cols(&x->shape),
                                    .n = outputs,
                                    .k = rows,
                                    .a_transposed = 1,
                                    .dtype = dy->dtype,
                                    .tf32 = tf32};
  if (wants_dkernel) TFU_TRY(run_dkernel(call, &for_dkernel, left));
  if (wants_dx) TFU_TRY(run_product(call, &for_dx));
  return wants_dkernel || tfu_count(&left->shape) == 0 ? TFU_OK : run_sums(call, left);
}
