/* linear on the GPU: cuBLASLt's product with as much of the rest in its epilogue as it has and as is faster; what is
 * left is one pass over memory.
 *
 * bias is an epilogue, a residual behind no activation is cuBLASLt's own C, relu and gelu by tanh (but for exact
 * float32) are epilogues, the latter with pre as a by-product. Any other activation, and a residual behind one, is the
 * pass. In the gradient dpre is a pass, which has the sums of bias too: cuBLASLt's DGELU and DRELU want to follow the
 * product that makes dy, which is another layer's. Without an activation dpre is dy, and the sums are the epilogue of
 * the product for dkernel, or a pass that only reads. Where both ways are open, they are timed once. */
#include "kernels/linear.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/gemm_gpu.h"
#include "kernels/core/recycle.h"
#include "kernels/core/tuned.h"
#include "kernels/scale_bias_act.h"
#include "ops/linear.h"

TFU_MODULE(linear);

#define X(name) [TFU_ACT_##name] = #name,
static const char *const names[TFU_ACTS] = {TFU_ACTIVATIONS(X)};
#undef X
static tfu_kernel finish_kernel = {.module = &module, .name = "linear_finish", .variants = names};

static tfu_kernel sums_kernel = {.module = &module, .name = "linear_sums"};

/* As scale_bias_act's, which is the same pass but for the residual. */
enum { BLOCKS_PER_BYTE = 32 };

typedef struct linear_call {
  tfu_call *call;
  int act, tf32;
  tfu_dtype dtype;
  int64_t rows, inputs, outputs;
  const void *x, *kernel, *bias, *residual; /* NULL: none */
  void *y, *pre;                            /* NULL: not kept */
} linear_call;

static void *data_of(const tfu_tensor *t) { return tfu_count(&t->shape) ? t->data : NULL; }

static linear_call read_call(tfu_call *call) {
  const tfu_tensor *x = &call->in[TFU_LINEAR_X], *kernel = &call->in[TFU_LINEAR_KERNEL];
  return (linear_call){.call = call,
                       .act = (int)call->attr[TFU_LINEAR_ACTIVATION].i,
                       .tf32 = call->attr[TFU_LINEAR_TF32].b,
                       .dtype = x->dtype,
                       .rows = tfu_rows(&x->shape),
                       .inputs = tfu_cols(&x->shape),
                       .outputs = tfu_cols(&kernel->shape),
                       .x = x->data,
                       .kernel = kernel->data,
                       .bias = data_of(&call->in[TFU_LINEAR_BIAS]),
                       .residual = data_of(&call->in[TFU_LINEAR_RESIDUAL]),
                       .y = call->out[TFU_LINEAR_Y].data,
                       .pre = data_of(&call->out[TFU_LINEAR_PRE])};
}

static tfu_gemm_gpu product(const linear_call *l, void *d, tfu_epilogue epilogue) {
  return (tfu_gemm_gpu){.a = l->x,
                        .b = l->kernel,
                        .d = d,
                        .m = l->rows,
                        .n = l->outputs,
                        .k = l->inputs,
                        .dtype = l->dtype,
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
  linear_finish_args a = {
      .y = l->y, .pre = r->from, .residual = l->residual, .bias = r->bias, .bias_count = r->bias ? l->outputs : 0};
  tfu_grid grid;
  if (!l->residual) return tfu_bias_act_launch(l->call, l->act, l->dtype, n, l->outputs, l->y, r->from, r->bias);
  const int blocks = BLOCKS_PER_BYTE * (int)tfu_dtype_size(l->dtype);
  TFU_TRY(tfu_walk_plan_of(l->call, n, l->dtype, r->bias ? l->outputs : 1, blocks, &a.walk, &grid));
  return tfu_launch(l->call, &finish_kernel, l->act, l->dtype, grid, &a);
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

/* ---- which of the two ---- */

enum { IN_ONE = 1, IN_TWO };

typedef struct way_key {
  int64_t rows, inputs, outputs;
  int32_t ordinal, dtype, tf32, act, bias, kind;
} way_key;
_Static_assert(sizeof(way_key) == 3 * sizeof(int64_t) + 6 * sizeof(int32_t), "a gap would be compared too");

enum { KIND_PLAIN, KIND_PRE, KIND_GRADIENT };
static const char *const kinds[] = {"", "+pre", " gradient"};

/* cuBLASLt takes no bias that is not on 16 bytes (gemm_gpu.c). */
static const char *const biases[] = {"", "+bias", "+bias at an odd place"};

/* One product whose epilogue does everything, or a bare one and a pass. */
typedef struct question {
  tfu_call *call;
  const tfu_gemm_gpu *one, *bare;
  tfu_code (*pass)(void *);
  void *with;
  tfu_code code; /* of what went wrong while choosing */
} question;

static void describe_way(const void *key_, void *with, char *text, size_t size) {
  (void)with;
  const way_key *k = key_;
  char gpu[64];
  tfu_device_name(gpu, sizeof gpu);
  snprintf(text, size, "%s, linear %lldx%lldx%lld %s%s %s%s%s", gpu, (long long)k->rows, (long long)k->outputs,
           (long long)k->inputs, tfu_dtype_name((tfu_dtype)k->dtype), k->tf32 ? " as tf32" : "", names[k->act],
           biases[k->bias], kinds[k->kind]);
}

static int way_usable(const void *key, void *with, const tfu_choice *choice) {
  (void)key, (void)with;
  return choice->data[0] == IN_ONE || choice->data[0] == IN_TWO;
}

static tfu_code compare(const way_key *key, const question *q, tfu_choice *choice) {
  float one = 0, two = 0, after = 0;
  int served_one, served_two;
  choice->data[0] = IN_TWO;
  TFU_TRY(tfu_gemm_gpu_time(q->call, q->one, &served_one, &one));
  if (!served_one) return TFU_OK;
  choice->data[0] = IN_ONE;
  if (one == 0) return TFU_OK;
  TFU_TRY(tfu_gemm_gpu_time(q->call, q->bare, &served_two, &two));
  if (!served_two || two == 0) return TFU_OK;
  TFU_TRY(tfu_time(q->call, q->pass, q->with, &after));
  if (two + after < one) choice->data[0] = IN_TWO;
  choice->microseconds = choice->data[0] == IN_ONE ? one : two + after;
  snprintf(choice->label, sizeof choice->label, "%s by an epilogue %.1f us, by a product and a pass %.1f us",
           key->kind == KIND_GRADIENT ? "sums" : names[key->act], one, two + after);
  return TFU_OK;
}

static tfu_chosen choose_way(const void *key, void *question_, tfu_choice *choice) {
  question *q = question_;
  const char *kernel = q->call->kernel; /* what is timed is not what runs */
  *choice = (tfu_choice){.none = 0};
  q->code = compare(key, q, choice);
  q->call->kernel = kernel;
  return q->code != TFU_OK || (tfu_tuning() && !tfu_may_wait(q->call)) ? TFU_CHOSEN_ONCE : TFU_CHOSEN;
}

static const tfu_tuner way_tuner = {
    .bytes = sizeof(way_key), .describe = describe_way, .usable = way_usable, .choose = choose_way};

static tfu_code find_way(way_key key, question q, int *way) {
  tfu_device device;
  tfu_choice choice;
  TFU_TRY(tfu_device_now(&device, q.call->err));
  key.ordinal = device.ordinal;
  tfu_tuned_get(&way_tuner, &key, &q, &choice);
  *way = choice.data[0];
  return q.code;
}

/* ---- forward ---- */

static tfu_code find_forward_way(const linear_call *l, const tfu_gemm_gpu *one, int *way) {
  const tfu_gemm_gpu bare = product(l, l->pre ? l->pre : l->y, TFU_EPI_NONE);
  rest r = {.l = l, .from = bare.d};
  const way_key key = {.rows = l->rows,
                       .inputs = l->inputs,
                       .outputs = l->outputs,
                       .dtype = (int32_t)l->dtype,
                       .tf32 = l->tf32,
                       .act = l->act,
                       .bias = !l->bias                  ? 0
                               : (uintptr_t)l->bias % 16 ? 2
                                                         : 1,
                       .kind = l->pre ? KIND_PRE : KIND_PLAIN};
  return find_way(key, (question){.call = l->call, .one = one, .bare = &bare, .pass = pass, .with = &r}, way);
}

tfu_code tfu_linear_gpu(tfu_call *call) {
  const linear_call l = read_call(call);
  tfu_gemm_gpu one;
  int served = 0, which = IN_ONE;
  if (!as_one(&l, &one)) return in_two(&l);
  if (l.act != TFU_ACT_linear) TFU_TRY(find_forward_way(&l, &one, &which));
  if (which == IN_ONE) TFU_TRY(tfu_gemm_gpu_run(call, &one, &served));
  return served ? TFU_OK : in_two(&l);
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

/* Blocks enough for every multiprocessor to be full, unless a thread would have less than four rows. */
static tfu_code deal_out(tfu_call *call, const tfu_tensor *dy, linear_sums_args *a, tfu_grid *grid) {
  enum { WARP = 32, BLOCKS = 8, FEWEST = 4 };
  const int64_t pack = 16 / (int64_t)tfu_dtype_size(dy->dtype), packs = (a->cols + pack - 1) / pack;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  for (a->lanes = WARP; a->lanes / 2 >= packs && a->lanes > 1;) a->lanes /= 2;
  a->aligned = a->cols % pack == 0 && tfu_aligned(call, tfu_count(&dy->shape));
  const int64_t columns = (packs + a->lanes - 1) / a->lanes, most = a->rows * a->lanes / (FEWEST * TFU_THREADS);
  int64_t blocks = (int64_t)device.multiprocessors * BLOCKS / columns;
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

static tfu_code run_product(tfu_call *call, const tfu_gemm_gpu *g) {
  int served;
  TFU_TRY(tfu_gemm_gpu_run(call, g, &served));
  return served ? TFU_OK : no_product(call, g->m, g->n, g->k, g->dtype);
}

/* dkernel, and dbias if it is not empty: in one product, or in a product and a pass. */
static tfu_code run_dkernel(tfu_call *call, const tfu_gemm_gpu *bare, const tfu_tensor *dbias) {
  sums s = {.dbias = dbias};
  tfu_gemm_gpu one = *bare;
  int served = 0, which;
  if (tfu_count(&dbias->shape) == 0) return run_product(call, bare);
  one.epilogue = TFU_EPI_SUM_B;
  one.sums = dbias->data;
  tfu_recycled_open(&s.space, call);
  const way_key key = {.rows = bare->k,
                       .inputs = bare->m,
                       .outputs = bare->n,
                       .dtype = (int32_t)bare->dtype,
                       .tf32 = bare->tf32,
                       .act = TFU_ACT_linear,
                       .bias = 1,
                       .kind = KIND_GRADIENT};
  TFU_TRY(find_way(key, (question){.call = call, .one = &one, .bare = bare, .pass = sum_rows, .with = &s}, &which));
  if (which == IN_ONE) TFU_TRY(tfu_gemm_gpu_run(call, &one, &served));
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
                               .b_turned = 1,
                               .dtype = dy->dtype,
                               .tf32 = tf32};
  const tfu_gemm_gpu for_dkernel = {.a = x->data,
                                    .b = dpre,
                                    .d = dkernel->data,
                                    .m = tfu_cols(&x->shape),
                                    .n = outputs,
                                    .k = rows,
                                    .a_turned = 1,
                                    .dtype = dy->dtype,
                                    .tf32 = tf32};
  if (wants_dkernel) TFU_TRY(run_dkernel(call, &for_dkernel, left));
  if (wants_dx) TFU_TRY(run_product(call, &for_dx));
  if (wants_dkernel || tfu_count(&left->shape) == 0) return TFU_OK;
  sums s = {.dbias = left};
  tfu_recycled_open(&s.space, call);
  return sum_rows(&s);
}
