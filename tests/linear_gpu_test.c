/* linear_gpu_test.c - how linear layers are put to cuBLASLt, without a GPU: the two files are compiled in here, against
 * a cuBLASLt and kernels of our own that compute on the host. Checked are layouts, epilogues, batches, fallbacks and
 * choices, against the CPU kernels. */
#include <math.h>

#include "any_dtype.h"
#include "check.h"
#include "kernels/core/cublaslt.h"
#include "kernels/core/cuda.h"
#include "kernels/core/gemm_gpu.h"
#include "kernels/core/tuned.h"
#include "kernels/linear.h"
#include "kernels/matmul_own.h"
#include "kernels/scale_bias_act.h"
#include "ops/linear.h"

static double activate(int act, double v, int derivative) {
  const double one = 1, zero = -0.0;
  double out;
  (derivative ? tfu_activations[act].grad_f64 : tfu_activations[act].value_f64)(&out, &v, &one, &zero, 1);
  return out;
}

/* ---- a cuBLASLt ---- */

struct tfu_matmul_desc {
  int32_t turn_a, turn_b;
  uint32_t epilogue;
  void *bias, *aux;
  int64_t aux_ld;
};
struct tfu_matrix_layout {
  cudaDataType_t type;
  int64_t rows, cols, ld;
  int32_t batch;
  int64_t stride;
};

static int only_plain;       /* it has no epilogues */
static int open_descriptors; /* not yet destroyed   */
static int products, epilogues_run;

static tfu_dtype dtype_of(cudaDataType_t type) {
  return type == CUDA_R_64F ? TFU_F64 : type == CUDA_R_16F ? TFU_F16 : type == CUDA_R_16BF ? TFU_BF16 : TFU_F32;
}

static cublasStatus_t desc_create(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale) {
  CHECK((compute == CUBLAS_COMPUTE_64F) == (scale == CUDA_R_64F));
  *d = calloc(1, sizeof **d);
  open_descriptors++;
  return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t desc_destroy(cublasLtMatmulDesc_t d) { return free(d), open_descriptors--, 0; }
static cublasStatus_t desc_set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which, const void *v, size_t n) {
  const struct {
    cublasLtMatmulDescAttributes_t which;
    void *to;
    size_t bytes;
  } all[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &d->turn_a, 4},
             {CUBLASLT_MATMUL_DESC_TRANSB, &d->turn_b, 4},
             {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue, 4},
             {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, 8},
             {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &d->aux, 8},
             {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &d->aux_ld, 8}};
  for (int i = 0; i < TFU_COUNT(all); i++)
    if (all[i].which == which && all[i].bytes == n) return memcpy(all[i].to, v, n), CUBLAS_STATUS_SUCCESS;
  return 7;
}
static cublasStatus_t layout_create(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows, uint64_t cols,
                                    int64_t ld) {
  *l = malloc(sizeof **l);
  **l = (struct tfu_matrix_layout){type, (int64_t)rows, (int64_t)cols, ld, 1, 0};
  open_descriptors++;
  return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t layout_set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t which, const void *v,
                                 size_t n) {
  const int count = which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  CHECK(n == (count ? 4 : 8) && (count || which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET));
  return memcpy(count ? (void *)&l->batch : &l->stride, v, n), CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t layout_destroy(cublasLtMatrixLayout_t l) { return free(l), open_descriptors--, 0; }
static cublasStatus_t wish_create(cublasLtMatmulPreference_t *w) { return open_descriptors++, *w = NULL, 0; }
static cublasStatus_t wish_destroy(cublasLtMatmulPreference_t w) { return (void)w, open_descriptors--, 0; }
static cublasStatus_t wish_set(cublasLtMatmulPreference_t w, cublasLtMatmulPreferenceAttributes_t which, const void *v,
                               size_t n) {
  (void)w, (void)v;
  CHECK(n == (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4));
  return CUBLAS_STATUS_SUCCESS;
}

/* Three proposals: one that does not run, one that does, and a faster one that wants workspace. */
static cublasStatus_t propose_some(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                   cublasLtMatmulPreference_t w, int most, cublasLtMatmulHeuristicResult_t *found,
                                   int *n) {
  (void)h, (void)a, (void)b, (void)c, (void)out, (void)w;
  CHECK(most >= 3);
  *n = 0;
  if (only_plain && d->epilogue != CUBLASLT_EPILOGUE_DEFAULT) return 15;
  for (int i = 0; i < 3; i++)
    found[i] = (cublasLtMatmulHeuristicResult_t){.algo.data = {(uint64_t)i + 1}, .workspaceSize = i == 2 ? 4096 : 0};
  *n = 3;
  return CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t check_algo(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                 const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *r) {
  (void)h, (void)d, (void)a, (void)b, (void)c, (void)out;
  r->workspaceSize = algo->data[0] == 3 ? 4096 : 0;
  return algo->data[0] - 1 > 2 ? 7 : CUBLAS_STATUS_SUCCESS;
}
static cublasStatus_t config(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t which, void *value,
                             size_t n, size_t *written) {
  (void)which;
  return memcpy(value, algo->data, n), *written = n, CUBLAS_STATUS_SUCCESS;
}

static double element(const void *data, cublasLtMatrixLayout_t l, int turned, int64_t z, int64_t i, int64_t j) {
  return at(data, dtype_of(l->type), z * l->stride + (turned ? j + i * l->ld : i + j * l->ld));
}

static int last_algo;

/* D = epilogue(alpha op(A) op(B) + beta C), columns side by side. */
static cublasStatus_t matmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                             cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl, const void *beta,
                             const void *c, cublasLtMatrixLayout_t cl, void *out, cublasLtMatrixLayout_t dl,
                             const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream) {
  (void)h, (void)stream;
  last_algo = (int)algo->data[0];
  if (last_algo == 1) return 15; /* CUBLAS_STATUS_NOT_SUPPORTED */
  if (last_algo == 3) CHECK(bytes == 4096 && (uintptr_t)workspace % 256 == 0), memset(workspace, 1, bytes);
  const tfu_dtype dtype = dtype_of(dl->type); /* of the vectors too: where D is wider there are none */
  const int64_t depth = d->turn_a ? al->rows : al->cols;
  const double scale = dtype == TFU_F64 ? *(const double *)alpha : *(const float *)alpha;
  const double keep = dtype == TFU_F64 ? *(const double *)beta : *(const float *)beta;
  CHECK(depth == (d->turn_b ? bl->cols : bl->rows) && dl->rows == (d->turn_a ? al->cols : al->rows) &&
        dl->cols == (d->turn_b ? bl->rows : bl->cols));
  CHECK(al->batch == dl->batch && bl->batch == dl->batch && cl->batch == dl->batch);
  CHECK(dl->batch == 1 || d->epilogue == CUBLASLT_EPILOGUE_DEFAULT);
  const int sums = d->epilogue == CUBLASLT_EPILOGUE_BGRADA, bias = !sums && d->epilogue & CUBLASLT_EPILOGUE_BIAS;
  products++;
  epilogues_run += d->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  for (int64_t all = 0; all < dl->batch * dl->rows; all++) {
    const int64_t z = all / dl->rows, i = all % dl->rows;
    double row = 0;
    for (int64_t k = 0; k < depth && sums; k++) row += element(a, al, d->turn_a, z, i, k);
    if (sums) put(d->bias, dtype, i, row);
    for (int64_t j = 0; j < dl->cols; j++) {
      double v = 0;
      for (int64_t k = 0; k < depth; k++) v += element(a, al, d->turn_a, z, i, k) * element(b, bl, d->turn_b, z, k, j);
      v = v * scale + (keep != 0 ? keep * element(c, cl, 0, z, i, j) : 0) + (bias ? at(d->bias, dtype, i) : 0);
      if (d->epilogue & 128) put(d->aux, dtype, i + j * d->aux_ld, v);
      if (d->epilogue & CUBLASLT_EPILOGUE_RELU) v = activate(TFU_ACT_relu, v, 0);
      if (d->epilogue & CUBLASLT_EPILOGUE_GELU) v = activate(TFU_ACT_gelu_tanh, v, 0);
      put(out, dtype, z * dl->stride + i + j * dl->ld, v);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
static const char *status_name(cublasStatus_t s) { return s == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "another"; }

static const tfu_cublaslt lt = {.cublasLtMatmulDescCreate = desc_create,
                                .cublasLtMatmulDescDestroy = desc_destroy,
                                .cublasLtMatmulDescSetAttribute = desc_set,
                                .cublasLtMatrixLayoutCreate = layout_create,
                                .cublasLtMatrixLayoutDestroy = layout_destroy,
                                .cublasLtMatrixLayoutSetAttribute = layout_set,
                                .cublasLtMatmulPreferenceCreate = wish_create,
                                .cublasLtMatmulPreferenceDestroy = wish_destroy,
                                .cublasLtMatmulPreferenceSetAttribute = wish_set,
                                .cublasLtMatmulAlgoGetHeuristic = propose_some,
                                .cublasLtMatmulAlgoCheck = check_algo,
                                .cublasLtMatmulAlgoConfigGetAttribute = config,
                                .cublasLtMatmul = matmul,
                                .cublasLtGetStatusName = status_name,
                                .version = 1};
static int missing; /* there is no cuBLASLt */
static const tfu_cublaslt *get_lt(const char **why) {
  *why = missing ? "no cuBLASLt" : NULL;
  return missing ? NULL : &lt;
}
static tfu_code get_handle(const tfu_cublaslt *l, cublasLtHandle_t *handle, tfu_error *err) {
  return (void)l, (void)err, *handle = NULL, TFU_OK;
}

/* ---- our own product ---- */

static int own_products;
static tfu_code own_run(tfu_call *call, tfu_own_kind kind, tfu_dtype dtype, matmul_args a) {
  const tfu_dtype out = a.wide ? tfu_real(dtype) : dtype;
  CHECK(missing && kind == TFU_OWN_TENSOR && a.batch == 1 && a.m && a.n && a.k);
  own_products++;
  if (!call->kernel) call->kernel = "own";
  for (int64_t i = 0; i < a.m; i++)
    for (int64_t j = 0; j < a.n; j++) {
      double v = 0;
      for (int64_t k = 0; k < a.k; k++)
        v += at(a.a.data, dtype, i * a.a.row + k * a.a.col) * at(a.b.data, dtype, k * a.b.row + j * a.b.col);
      v = v * a.alpha + (a.c ? at(a.c, out, i * a.n + j) : 0) + (a.bias ? at(a.bias, dtype, j) : 0);
      put(a.d, out, i * a.n + j, v);
    }
  return TFU_OK;
}

/* ---- a GPU ---- */

static float pass_time = 5; /* microseconds */
static tfu_code device_now(tfu_device *device, tfu_error *err) { return (void)err, *device = (tfu_device){0}, TFU_OK; }
static void device_name(char *name, int size) { snprintf(name, (size_t)size, "no GPU"); }
static int may_wait(const tfu_call *call) { return (void)call, 1; }
/* Algorithm 3 is faster than 2, and an epilogue takes 4 us more. */
static tfu_code time_of(tfu_call *call, tfu_code (*work)(void *), void *with, float *microseconds) {
  const int before = products, fused_before = epilogues_run;
  (void)call;
  TFU_TRY(work(with));
  *microseconds =
      products == before ? pass_time : (last_algo == 3 ? 10.0f : 20.0f) + 4 * (float)(epilogues_run - fused_before);
  return TFU_OK;
}
static tfu_code clear_memory(tfu_call *call, void *memory, size_t bytes) {
  if (bytes) memset(memory, 0, bytes);
  return (void)call, TFU_OK;
}
static int passes;
static tfu_code bias_act(tfu_call *call, int act, tfu_dtype dtype, int64_t n, int64_t cols, void *y, const void *x,
                         const void *bias) {
  (void)call;
  passes++;
  for (int64_t i = 0; i < n; i++)
    put(y, dtype, i, activate(act, at(x, dtype, i) + (bias ? at(bias, dtype, i % cols) : 0), 0));
  return TFU_OK;
}
static tfu_code act_grad(tfu_call *call, int act, tfu_dtype dtype, int64_t n, int64_t cols, void *dx, const void *dy,
                         const void *x, const tfu_tensor *dbias) {
  (void)call;
  passes++;
  const int64_t wanted = tfu_count(&dbias->shape);
  double *sums = calloc((size_t)cols + 1, sizeof *sums);
  for (int64_t i = 0; i < n; i++) {
    const double g = at(dy, dtype, i) * activate(act, at(x, dtype, i), 1);
    sums[i % cols] += g;
    put(dx, dtype, i, g);
  }
  for (int64_t i = 0; i < wanted; i++) put(dbias->data, dtype, i, sums[i]);
  free(sums);
  return TFU_OK;
}
static tfu_code walk_plan(tfu_call *call, int64_t n, tfu_dtype dtype, int64_t cols, int blocks, tfu_walk *walk,
                          tfu_grid *g) {
  (void)call, (void)dtype, (void)cols, (void)blocks;
  return walk->n = n, g->x = 1, TFU_OK;
}
/* The only kernel is linear_finish. */
static tfu_code launch(tfu_call *call, tfu_kernel *kernel, int act, tfu_dtype dtype, tfu_grid grid, void *args) {
  const linear_finish_args *a = args;
  (void)call, (void)grid;
  CHECK_TEXT(kernel->name, "linear_finish");
  passes++;
  for (int64_t i = 0; i < a->walk.n; i++) {
    const double bias = a->bias_count ? at(a->bias, dtype, i % a->bias_count) : 0;
    put(a->y, dtype, i, activate(act, at(a->pre, dtype, i) + bias, 0) + at(a->residual, dtype, i));
  }
  return TFU_OK;
}

/* ---- the two files, with all that taking the place of the real ---- */

#define tfu_cublaslt_get get_lt
#define tfu_cublaslt_handle get_handle
#define tfu_device_now device_now
#define tfu_device_name device_name
#define tfu_may_wait may_wait
#define tfu_time time_of
#define tfu_clear clear_memory
#define tfu_bias_act_launch bias_act
#define tfu_act_grad_launch act_grad
#define tfu_walk_plan_of walk_plan
#define tfu_launch launch
#define tfu_matmul_own_run own_run
#define tfu_gemm_gpu_run tested_gemm_run
#define tfu_gemm_gpu_time tested_gemm_time
#define run gemm_run
#define name gemm_name
#define set gemm_set
#include "kernels/core/gemm_gpu.c"
#undef run
#undef name
#undef set
#define tfu_linear_gpu tested_linear
#define tfu_linear_grad_gpu tested_linear_grad
#include "kernels/linear_gpu.c"

/* ---- against the CPU ---- */

typedef struct layer {
  int64_t rows, inputs, outputs;
  int act, bias, residual, keep;
} layer;

static double number(uint32_t *state) { /* from -1 to 1 */
  *state = *state * 1664525u + 1013904223u;
  return (double)(int32_t)*state / 2147483648.0;
}

static tfu_tensor filled(tfu_dtype dtype, tfu_shape shape, uint32_t seed) {
  const size_t bytes = tfu_dtype_size(dtype) * (size_t)tfu_count(&shape);
  tfu_tensor t = {aligned_alloc(256, (bytes / 256 + 1) * 256), dtype, shape}; /* as a GPU's memory comes */
  for (int64_t i = 0; i < tfu_count(&shape); i++) put(t.data, dtype, i, rint(number(&seed) * 64) / 32);
  return t;
}

static void compare_all(const run *r, tfu_code (*on_gpu)(tfu_call *), const char *what, const layer *l,
                        tfu_dtype dtype) {
  const tfu_op *op = r->call.op;
  run *s = start(op);
  s->call = r->call;
  s->call.binding = s;
  s->call.err = &s->err;
  s->most = TFU_COUNT(s->held);
  for (int i = 0; op->out[i]; i++) s->call.out[i] = filled(dtype, r->call.out[i].shape, 99);
  CHECK_FOR(on_gpu(&s->call) == TFU_OK, "%s", s->err.text);
  const double epsilon = dtype == TFU_BF16 ? 0.02 : dtype == TFU_F16 ? 0.003 : dtype == TFU_F32 ? 1e-5 : 1e-12;
  for (int i = 0; op->out[i]; i++)
    for (int64_t e = 0; e < tfu_count(&r->call.out[i].shape); e++) {
      const double got = at(s->call.out[i].data, dtype, e), want = at(r->call.out[i].data, dtype, e);
      if (fabs(got - want) <= epsilon * (4 + fabs(want) + (double)l->inputs / 8)) continue;
      CHECK_FOR(0, "%s of %s %s %lldx%lldx%lld act %d bias %d residual %d keep %d at %lld: %g, not %g", op->out[i],
                what, tfu_dtype_name(dtype), (long long)l->rows, (long long)l->inputs, (long long)l->outputs, l->act,
                l->bias, l->residual, l->keep, (long long)e, got, want);
      break;
    }
  CHECK(open_descriptors == 0);
  for (int i = 0; op->out[i]; i++) free(s->call.out[i].data);
  while (s->n > 0) free(s->held[--s->n]);
  free(s);
}

static void release(run *r) {
  for (int i = 0; i < TFU_MAX_ARGS; i++) free(r->call.in[i].data), free(r->call.out[i].data);
  free(r);
}

static void check_forward(const layer *l, tfu_dtype dtype) {
  const tfu_shape none = SHAPE(0), y = SHAPE(1, l->rows, l->outputs);
  run *r = start(&tfu_linear);
  const tfu_tensor in[] = {filled(dtype, (tfu_shape)SHAPE(1, l->rows, l->inputs), 1),
                           filled(dtype, (tfu_shape)SHAPE(l->inputs, l->outputs), 2),
                           filled(dtype, l->bias ? (tfu_shape)SHAPE(l->outputs) : none, 3),
                           filled(dtype, l->residual ? y : none, 4),
                           filled(dtype, l->keep ? (tfu_shape)SHAPE(0, 0) : none, 5)};
  memcpy(r->call.in, in, sizeof in);
  r->call.attr[TFU_LINEAR_ACTIVATION].i = l->act;
  r->call.out[0] = filled(dtype, y, 6);
  r->call.out[1] = filled(dtype, l->keep ? y : none, 7);
  CHECK_FOR(finish(r, "test") == TFU_OK, "%s", r->err.text);
  compare_all(r, tested_linear, "forward", l, dtype);
  release(r);
}

static void check_gradient(const layer *l, tfu_dtype dtype, int dx, int dkernel) {
  const tfu_shape none = SHAPE(0), y = SHAPE(l->rows, l->outputs), x = SHAPE(l->rows, l->inputs);
  const tfu_shape kernel = SHAPE(l->inputs, l->outputs), bias = SHAPE(l->outputs);
  run *r = start(&tfu_linear_grad);
  const tfu_tensor in[] = {filled(dtype, y, 1), filled(dtype, dkernel ? x : none, 2),
                           filled(dtype, dx ? kernel : none, 3), filled(dtype, l->bias ? bias : none, 4),
                           filled(dtype, l->act != TFU_ACT_linear ? y : none, 5)};
  memcpy(r->call.in, in, sizeof in);
  r->call.attr[TFU_LINEAR_ACTIVATION].i = l->act;
  r->call.out[0] = filled(dtype, dx ? x : none, 6);
  r->call.out[1] = filled(dtype, dkernel ? kernel : none, 7);
  r->call.out[2] = filled(dtype, l->bias ? bias : none, 8);
  CHECK_FOR(finish(r, "test") == TFU_OK, "%s", r->err.text);
  compare_all(r, tested_linear_grad, "gradient", l, dtype);
  release(r);
}

static char base[] = "/tmp/linear_gpu_test.XXXXXX";

/* As in a new process of a new user. */
static void forget_choices(void) {
  char path[64];
  snprintf(path, sizeof path, "%s/tuned", base);
  unlink(path);
  tfu_tuned_forget();
}

static void check_everything(void) {
  static const int64_t sizes[][3] = {{1, 1, 1}, {5, 7, 3}, {3, 4, 16}, {3, 0, 5}, {2, 35, 8}};
  static const int acts[] = {TFU_ACT_linear, TFU_ACT_relu, TFU_ACT_gelu_tanh, TFU_ACT_silu};
  for (int dtype = 0; dtype < TFU_FLOATS; dtype++)
    for (int s = 0; s < TFU_COUNT(sizes); s++) {
      forget_choices();
      for (int i = 0; i < TFU_COUNT(acts) * 8; i++) {
        const layer l = {sizes[s][0], sizes[s][1], sizes[s][2], acts[i / 8], i & 1, i >> 1 & 1, i >> 2 & 1};
        check_forward(&l, (tfu_dtype)dtype);
        if (i & 2) check_gradient(&l, (tfu_dtype)dtype, i >> 2 & 1 || !(i & 1), i & 1);
        else check_gradient(&l, (tfu_dtype)dtype, 1, 1);
      }
    }
}

/* How many products and passes a layer takes, once it is decided on. */
static void check_cost(const layer *l, tfu_dtype dtype, int want_products, int want_passes) {
  check_forward(l, dtype);
  products = passes = 0;
  check_forward(l, dtype);
  CHECK_FOR(products == want_products && passes == want_passes, "%d and %d, for activation %d", products, passes,
            l->act);
}

static void test_costs(void) {
  check_cost(&(layer){6, 5, 8, TFU_ACT_linear, 1, 1, 0}, TFU_BF16, 1, 0);
  check_cost(&(layer){6, 5, 8, TFU_ACT_relu, 1, 0, 0}, TFU_BF16, 1, 0);
  check_cost(&(layer){6, 5, 8, TFU_ACT_gelu_tanh, 1, 0, 1}, TFU_BF16, 1, 0);
  check_cost(&(layer){6, 5, 7, TFU_ACT_gelu_tanh, 1, 0, 1}, TFU_BF16, 1, 1); /* no aux of 7 columns */
  check_cost(&(layer){6, 5, 8, TFU_ACT_gelu_tanh, 1, 0, 1}, TFU_F32, 1, 1);  /* exact, without TF32 */
  check_cost(&(layer){6, 5, 8, TFU_ACT_silu, 1, 1, 1}, TFU_BF16, 1, 1);
  pass_time = 1; /* then a pass beats an epilogue of relu and no bias, whose plain product has none */
  check_cost(&(layer){6, 9, 8, TFU_ACT_relu, 0, 0, 0}, TFU_BF16, 1, 1);
}

/* The fastest, or, where float32 must be exact, the first that runs. */
static void test_choice(void) {
  tfu_gemm_gpu g = {.m = 2,
                    .n = 2,
                    .k = 2,
                    .dtype = TFU_F32,
                    .a = (float[4]){1, 2, 3, 4},
                    .b = (float[4]){1, 0, 0, 1},
                    .d = (float[4]){0}};
  run *r = start(&tfu_linear);
  int served;
  CHECK(tested_gemm_run(&r->call, &g, &served) == TFU_OK && served);
  CHECK_TEXT(r->call.kernel, "cuBLASLt, epilogue none, algorithm 2, 20.0 us");
  g.tf32 = 1;
  r->call.kernel = NULL;
  CHECK(tested_gemm_run(&r->call, &g, &served) == TFU_OK && served);
  CHECK_TEXT(r->call.kernel, "cuBLASLt, epilogue none, algorithm 3, 10.0 us");
  while (r->n > 0) free(r->held[--r->n]);
  free(r);
}

/* Three products with one b, -2 times that plus c, into float32 that is apart by more than a matrix. */
static void test_batch(void) {
  enum { M = 2, N = 3, K = 4, BATCH = 3, C_APART = 7, D_APART = 10 };
  const tfu_tensor a = filled(TFU_BF16, (tfu_shape)SHAPE(BATCH, M, K), 1),
                   b = filled(TFU_BF16, (tfu_shape)SHAPE(N, K), 2);
  const tfu_tensor c = filled(TFU_F32, (tfu_shape)SHAPE(BATCH, C_APART), 3);
  float d[BATCH * D_APART];
  const tfu_gemm_gpu g = {.a = a.data,
                          .b = b.data,
                          .c = c.data,
                          .d = d,
                          .m = M,
                          .n = N,
                          .k = K,
                          .b_turned = 1,
                          .dtype = TFU_BF16,
                          .wide = 1,
                          .scale = -2,
                          .batch = BATCH,
                          .a_stride = M * K,
                          .c_stride = C_APART,
                          .d_stride = D_APART};
  run *r = start(&tfu_linear);
  int served;
  for (int i = 0; i < TFU_COUNT(d); i++) d[i] = 77;
  CHECK_FOR(tested_gemm_run(&r->call, &g, &served) == TFU_OK && served, "%s", r->err.text);
  for (int z = 0; z < BATCH; z++) {
    for (int i = 0; i < M; i++)
      for (int j = 0; j < N; j++) {
        double want = at(c.data, TFU_F32, z * C_APART + i * N + j);
        for (int k = 0; k < K; k++)
          want -= 2 * at(a.data, TFU_BF16, (z * M + i) * K + k) * at(b.data, TFU_BF16, j * K + k);
        CHECK_FOR(d[z * D_APART + i * N + j] == (float)want, "%d %d %d: %g, not %g", z, i, j,
                  d[z * D_APART + i * N + j], want);
      }
    for (int i = M * N; i < D_APART; i++) CHECK(d[z * D_APART + i] == 77);
  }
  while (r->n > 0) free(r->held[--r->n]);
  free(r), free(a.data), free(b.data), free(c.data);
}

/* d = d + a^T b in float32, of columns 2 and 3 of a; nothing is tried out on what is to be added to,
 * unless that is asked for. */
static void test_sums_in_place(void) {
  run *r = start(&tfu_linear);
  tfu_tensor a = filled(TFU_BF16, (tfu_shape)SHAPE(3, 4), 1), b = filled(TFU_BF16, (tfu_shape)SHAPE(3, 2), 2);
  float d[4], microseconds;
  const tfu_gemm_gpu g = {.a = (char *)a.data + 4,
                          .b = b.data,
                          .c = d,
                          .d = d,
                          .m = 2,
                          .n = 2,
                          .k = 3,
                          .a_turned = 1,
                          .a_row = 4,
                          .dtype = TFU_BF16,
                          .wide = 1};
  int served;
  CHECK(tested_gemm_time(&r->call, &g, &served, &microseconds) == TFU_OK && served && microseconds == 10);
  const int before = products;
  for (int i = 0; i < 4; i++) d[i] = (float)i + 1;
  CHECK(tested_gemm_run(&r->call, &g, &served) == TFU_OK && served && products == before + 1);
  for (int i = 0; i < 4; i++) {
    double want = i + 1;
    for (int k = 0; k < 3; k++) want += at(a.data, TFU_BF16, k * 4 + 2 + i / 2) * at(b.data, TFU_BF16, k * 2 + i % 2);
    CHECK_FOR(fabs(d[i] - want) < 1e-5, "%g, not %g", d[i], want);
  }
  forget_choices();
  CHECK(tested_gemm_run(&r->call, &g, &served) != TFU_OK && products == before + 1); /* the first proposal, untried */
  while (r->n > 0) free(r->held[--r->n]);
  free(r), free(a.data), free(b.data);
}

/* Without cuBLASLt our own product serves, beside the same passes; explain() says why. What has an epilogue is not
 * timed, nor run: passes do that. */
static void test_without_cublaslt(void) {
  missing = 1;
  products = own_products = 0;
  check_everything();
  CHECK(products == 0 && own_products > 0);
  own_products = passes = 0;
  check_forward(&(layer){6, 5, 8, TFU_ACT_gelu_tanh, 1, 0, 1}, TFU_F32);
  CHECK_FOR(own_products == 1 && passes == 1, "%d and %d", own_products, passes);

  run *r = start(&tfu_linear);
  float d[4] = {1, 2, 3, 4}, microseconds;
  tfu_gemm_gpu g = {.m = 2,
                    .n = 2,
                    .k = 3,
                    .dtype = TFU_F32,
                    .scale = 2,
                    .a_turned = 1,
                    .a_row = 4,
                    .a = (float[12]){1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0},
                    .b = (float[6]){1, 0, 0, 1, 1, 1},
                    .c = d,
                    .d = d};
  int served;
  CHECK(tested_gemm_time(&r->call, &g, &served, &microseconds) == TFU_OK && served && microseconds == 0 && d[0] == 1);
  CHECK(tested_gemm_run(&r->call, &g, &served) == TFU_OK && served);
  CHECK_FOR(d[0] == 13 && d[1] == 18 && d[2] == 19 && d[3] == 24, "%g %g %g %g", d[0], d[1], d[2], d[3]);
  CHECK_TEXT(r->call.kernel, "own");
  CHECK_TEXT(r->call.why, "no cuBLASLt");
  g.epilogue = TFU_EPI_RELU;
  CHECK(tested_gemm_run(&r->call, &g, &served) == TFU_OK && !served && d[0] == 13);
  free(r);
  missing = 0;
}

int main(void) {
  if (!mkdtemp(base)) return 1;
  setenv("TFUSE_CACHE", base, 1);
  check_everything();
  test_costs();
  test_choice();
  test_batch();
  test_sums_in_place();
  test_without_cublaslt();
  only_plain = 1;
  check_everything();
  forget_choices();
  rmdir(base);
  return verdict();
}
