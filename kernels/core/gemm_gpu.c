/* cuBLASLt knows columns side by side, not rows: it computes d^T = b^T a^T, whose matrices lie in memory as ours do.
 * So its A is our b, its B our a, and its bias, along the rows of D, is ours along the columns. */
#include "kernels/core/gemm_gpu.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/cublaslt.h"
#include "kernels/core/cuda.h"
#include "kernels/core/tuned.h"
#include "kernels/matmul_own.h"

/* All that a choice depends on. Compared as bytes, so it has no gaps. */
typedef struct gemm_key {
  int64_t m, n, k, a_row, batch;
  int64_t stride[4]; /* of a, b, c and d; of a single product 0 */
  int32_t ordinal, dtype, tf32, wide, a_turned, b_turned, epilogue, bias, c;
  int32_t align[5]; /* of a, b, c, d and the rest: what addresses are multiples of, see alignment() */
} gemm_key;
_Static_assert(sizeof(gemm_key) == 9 * sizeof(int64_t) + 14 * sizeof(int32_t), "a gap would be compared too");
_Static_assert(sizeof(gemm_key) <= TFU_TUNED_KEY, "tuned.h has room for it");

typedef struct gemm_choice {
  cublasLtMatmulAlgo_t algo;
  uint64_t workspace;
} gemm_choice;
_Static_assert(sizeof(gemm_choice) <= TFU_TUNED_DATA, "tuned.h has room for it");

/* 32 MiB is what NVIDIA recommends for Hopper; where it is not needed it is not taken. */
enum { MOST_WORKSPACE = 32 << 20, WORKSPACE_ALIGN = 256, CANDIDATES = 12 };

static const struct {
  cublasLtEpilogue_t plain, with_bias;
  const char *name;
} epilogues[TFU_EPIS] = {
    [TFU_EPI_NONE] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS, "none"},
    [TFU_EPI_RELU] = {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS, "relu"},
    [TFU_EPI_GELU] = {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS, "gelu_tanh"},
    [TFU_EPI_GELU_AUX] = {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, "gelu_tanh+pre"},
    [TFU_EPI_SUM_B] = {CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADA, "sums"},
};

static const cudaDataType_t types[TFU_FLOATS] = {
    [TFU_F32] = CUDA_R_32F, [TFU_F16] = CUDA_R_16F, [TFU_BF16] = CUDA_R_16BF, [TFU_F64] = CUDA_R_64F};

/* ---- descriptions ---- */

typedef struct problem {
  const tfu_cublaslt *lt;
  tfu_call *call;
  const tfu_gemm_gpu *g;
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c, d; /* as cuBLASLt names them */
  const gemm_choice *choice;         /* of the next run */
  void *workspace;
  int trial; /* d may be spoiled */
} problem;

static cublasStatus_t set(const problem *p, cublasLtMatmulDescAttributes_t which, const void *value, size_t bytes) {
  return p->lt->cublasLtMatmulDescSetAttribute(p->desc, which, value, bytes);
}

static double scale_of(const tfu_gemm_gpu *g) { return g->scale ? *g->scale : 1; }
static int64_t batch_of(const tfu_gemm_gpu *g) { return g->batch > 1 ? g->batch : 1; }

/* As cuBLASLt sees it: columns of `rows` elements, which begin every `apart`. */
static cublasStatus_t describe_matrix(const problem *p, cublasLtMatrixLayout_t *layout, tfu_dtype dtype, int64_t rows,
                                      int64_t cols, int64_t apart, int64_t stride) {
  const tfu_cublaslt *lt = p->lt;
  const int32_t batch = (int32_t)batch_of(p->g);
  cublasStatus_t s =
      lt->cublasLtMatrixLayoutCreate(layout, types[dtype], (uint64_t)rows, (uint64_t)cols, apart ? apart : rows);
  if (s || batch == 1) return s;
  s = lt->cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
  if (s) return s;
  return lt->cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                              sizeof stride);
}

static cublasStatus_t describe_matrices(problem *p) {
  const tfu_gemm_gpu *g = p->g;
  const tfu_dtype out = g->wide ? tfu_real(g->dtype) : g->dtype;
  const int64_t a_rows = g->a_turned ? g->m : g->k, b_rows = g->b_turned ? g->k : g->n; /* to cuBLASLt */
  cublasStatus_t s = describe_matrix(p, &p->a, g->dtype, b_rows, g->n + g->k - b_rows, 0, g->b_stride);
  if (!s) s = describe_matrix(p, &p->b, g->dtype, a_rows, g->m + g->k - a_rows, g->a_row, g->a_stride);
  if (!s) s = describe_matrix(p, &p->c, out, g->n, g->m, 0, g->c ? g->c_stride : g->d_stride);
  if (!s) s = describe_matrix(p, &p->d, out, g->n, g->m, 0, g->d_stride);
  return s;
}

static cublasStatus_t set_epilogue(const problem *p) {
  const tfu_gemm_gpu *g = p->g;
  const uint32_t epilogue = g->bias ? epilogues[g->epilogue].with_bias : epilogues[g->epilogue].plain;
  const void *vector = g->epilogue == TFU_EPI_SUM_B ? g->sums : g->bias;
  cublasStatus_t s = set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  if (!s && vector) s = set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector);
  if (!s && g->aux) s = set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->aux, sizeof g->aux);
  if (!s && g->aux) s = set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->n, sizeof g->n);
  return s;
}

static cublasStatus_t open_problem(problem *p) {
  const tfu_gemm_gpu *g = p->g;
  const int32_t turn_a = g->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N, turn_b = g->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasComputeType_t compute = g->dtype == TFU_F64              ? CUBLAS_COMPUTE_64F
                                      : g->dtype == TFU_F32 && g->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                       : CUBLAS_COMPUTE_32F;
  cublasStatus_t s = p->lt->cublasLtMatmulDescCreate(&p->desc, compute, types[tfu_real(g->dtype)]);
  if (!s) s = set(p, CUBLASLT_MATMUL_DESC_TRANSA, &turn_a, sizeof turn_a);
  if (!s) s = set(p, CUBLASLT_MATMUL_DESC_TRANSB, &turn_b, sizeof turn_b);
  if (!s) s = set_epilogue(p);
  return s ? s : describe_matrices(p);
}

static void close_problem(problem *p) {
  if (p->desc) p->lt->cublasLtMatmulDescDestroy(p->desc);
  if (p->a) p->lt->cublasLtMatrixLayoutDestroy(p->a);
  if (p->b) p->lt->cublasLtMatrixLayoutDestroy(p->b);
  if (p->c) p->lt->cublasLtMatrixLayoutDestroy(p->c);
  if (p->d) p->lt->cublasLtMatrixLayoutDestroy(p->d);
}

/* ---- running ---- */

static tfu_code get_workspace(problem *p, uint64_t bytes) {
  void *memory = NULL;
  if (bytes) TFU_TRY(tfu_scratch(p->call, (size_t)bytes + WORKSPACE_ALIGN, &memory));
  p->workspace = (void *)(((uintptr_t)memory + WORKSPACE_ALIGN - 1) & ~(uintptr_t)(WORKSPACE_ALIGN - 1));
  return TFU_OK;
}

/* Runs p->choice. */
static tfu_code run(void *problem_) {
  const problem *p = problem_;
  const tfu_gemm_gpu *g = p->g;
  const double scale = scale_of(g), keep = g->c != NULL;
  const float scale_f = (float)scale, keep_f = (float)keep;
  const int wide = g->dtype == TFU_F64;
  const void *alpha = wide ? (const void *)&scale : &scale_f, *beta = wide ? (const void *)&keep : &keep_f;
  return tfu_cublaslt_code(
      p->lt,
      p->lt->cublasLtMatmul(p->handle, p->desc, alpha, g->b, p->a, g->a, p->b, beta, g->c ? g->c : g->d, p->c, g->d,
                            p->d, &p->choice->algo, p->workspace, (size_t)p->choice->workspace, p->call->stream),
      "cublasLtMatmul", p->call->err);
}

/* ---- choosing ---- */

/* 256, which allocators give, or what vector loads care for: more steps would be more keys, each timed anew. */
static int32_t alignment(const void *data) {
  const uintptr_t low = (uintptr_t)data & -(uintptr_t)data;
  return low == 0 || low >= 256 ? 256 : low > 16 ? 16 : (int32_t)low;
}

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

static gemm_key key_of(const tfu_gemm_gpu *g, int ordinal) {
  const int many = g->batch > 1;
  return (gemm_key){.m = g->m,
                    .n = g->n,
                    .k = g->k,
                    .a_row = g->a_row,
                    .batch = batch_of(g),
                    .stride = {many ? g->a_stride : 0, many ? g->b_stride : 0, many && g->c ? g->c_stride : 0,
                               many ? g->d_stride : 0},
                    .ordinal = ordinal,
                    .dtype = (int32_t)g->dtype,
                    .tf32 = g->dtype == TFU_F32 && g->tf32,
                    .wide = g->wide && tfu_real(g->dtype) != g->dtype,
                    .a_turned = !!g->a_turned,
                    .b_turned = !!g->b_turned,
                    .epilogue = (int32_t)g->epilogue,
                    .bias = g->bias != NULL,
                    .c = g->c != NULL,
                    .align = {alignment(g->a), alignment(g->b), alignment(g->c ? g->c : g->d), alignment(g->d),
                              least(alignment(g->bias), least(alignment(g->aux), alignment(g->sums)))}};
}

static void describe(const void *key_, void *problem_, char *text, size_t size) {
  const gemm_key *k = key_;
  const problem *p = problem_;
  char gpu[64], apart[32] = "", batch[128] = "";
  tfu_device_name(gpu, sizeof gpu);
  if (k->a_row) snprintf(apart, sizeof apart, " rows of %lld", (long long)k->a_row);
  if (k->batch > 1)
    snprintf(batch, sizeof batch, ", batch %lld by %lld %lld %lld %lld", (long long)k->batch, (long long)k->stride[0],
             (long long)k->stride[1], (long long)k->stride[2], (long long)k->stride[3]);
  snprintf(text, size,
           "%s, cuBLASLt %d, product %lldx%lldx%lld %s%s%s %c%c%s, epilogue %s%s%s, aligned %d %d %d %d %d%s", gpu,
           p->lt->version, (long long)k->m, (long long)k->n, (long long)k->k, tfu_dtype_name((tfu_dtype)k->dtype),
           k->tf32                                        ? " as tf32"
           : tfu_gemm_exact((tfu_dtype)k->dtype, k->tf32) ? " exact"
                                                          : "",
           k->wide ? " to float32" : "", k->a_turned ? 'T' : 'N', k->b_turned ? 'T' : 'N', apart,
           epilogues[k->epilogue].name, k->bias ? "+bias" : "", k->c ? "+c" : "", (int)k->align[0], (int)k->align[1],
           (int)k->align[2], (int)k->align[3], (int)k->align[4], batch);
}

/* cuBLASLt itself says whether the algorithm is one of its own, and fits. */
static int usable(const void *key, void *problem_, const tfu_choice *choice) {
  (void)key;
  const problem *p = problem_;
  gemm_choice c;
  cublasLtMatmulHeuristicResult_t result = {.workspaceSize = 0};
  memcpy(&c, choice->data, sizeof c);
  if (p->lt->cublasLtMatmulAlgoCheck(p->handle, p->desc, p->a, p->b, p->c, p->d, &c.algo, &result)) return 0;
  return result.workspaceSize <= c.workspace && c.workspace <= MOST_WORKSPACE;
}

static int propose(const problem *p, const gemm_key *key, cublasLtMatmulHeuristicResult_t *found) {
  static const cublasLtMatmulPreferenceAttributes_t aligned[4] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  const tfu_cublaslt *lt = p->lt;
  const uint64_t workspace = MOST_WORKSPACE;
  /* Parts of a sum that are rounded to 16 bits before they are added up cost digits. */
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  cublasLtMatmulPreference_t wish;
  int n = 0;
  if (lt->cublasLtMatmulPreferenceCreate(&wish)) return 0;
  cublasStatus_t s = lt->cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                              &workspace, sizeof workspace);
  if (!s)
    s = lt->cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
                                                 sizeof schemes);
  for (int i = 0; i < 4 && !s; i++) {
    const uint32_t bytes = (uint32_t)key->align[i];
    s = lt->cublasLtMatmulPreferenceSetAttribute(wish, aligned[i], &bytes, sizeof bytes);
  }
  if (!s)
    s = lt->cublasLtMatmulAlgoGetHeuristic(p->handle, p->desc, p->a, p->b, p->c, p->d, wish, CANDIDATES, found, &n);
  lt->cublasLtMatmulPreferenceDestroy(wish);
  return s ? 0 : n;
}

static void name(const problem *p, const gemm_key *key, const gemm_choice *c, tfu_choice *choice) {
  int32_t id = -1;
  size_t written;
  p->lt->cublasLtMatmulAlgoConfigGetAttribute(&c->algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
  const int n = snprintf(choice->label, sizeof choice->label, "cuBLASLt, epilogue %s%s, algorithm %d",
                         epilogues[key->epilogue].name, key->bias ? "+bias" : "", (int)id);
  if (choice->microseconds > 0)
    snprintf(choice->label + n, sizeof choice->label - (size_t)n, ", %.1f us", choice->microseconds);
}

/* One that fails is passed over: a proposal is no promise. Where none can be timed, or results are to be exact, the
 * first that runs is taken. */
static tfu_chosen choose(const void *key_, void *problem_, tfu_choice *choice) {
  const gemm_key *key = key_;
  problem *p = problem_;
  cublasLtMatmulHeuristicResult_t found[CANDIDATES];
  gemm_choice best = {.workspace = 0}, c;
  tfu_error *err = p->call->err, ignored;
  const int may_spoil = p->trial || p->g->c != p->g->d; /* what a sum is added to is needed once */
  const int first = tfu_gemm_exact((tfu_dtype)key->dtype, key->tf32);
  const int n = propose(p, key, found), may_time = may_spoil && tfu_tuning() && tfu_may_wait(p->call);
  uint64_t most = 0;
  *choice = (tfu_choice){.none = 1};
  for (int i = 0; i < n; i++)
    if (!found[i].state && found[i].workspaceSize > most) most = found[i].workspaceSize;
  p->call->err = &ignored;
  if (may_time && n > 1 && get_workspace(p, most) != TFU_OK) most = UINT64_MAX; /* then the first, untimed */
  for (int i = 0; i < n; i++) {
    float microseconds = 0;
    if (found[i].state) continue;
    c = (gemm_choice){.algo = found[i].algo, .workspace = found[i].workspaceSize};
    p->choice = &c;
    if (may_time && n > 1 && most != UINT64_MAX && tfu_time(p->call, run, p, &microseconds) != TFU_OK) continue;
    if (choice->none || microseconds < choice->microseconds) {
      best = c;
      choice->none = 0;
      choice->microseconds = microseconds;
    }
    if (microseconds == 0 || first) break;
  }
  p->call->err = err;
  memcpy(choice->data, &best, sizeof best);
  if (!choice->none) name(p, key, &best, choice);
  return may_time || !tfu_tuning() ? TFU_CHOSEN : TFU_CHOSEN_ONCE;
}

static const tfu_tuner tuner = {.bytes = sizeof(gemm_key), .describe = describe, .usable = usable, .choose = choose};

/* Opens the problem, asks for the choice, and runs it where `microseconds` is NULL. */
static tfu_code solve(problem *p, int *served, float *microseconds) {
  tfu_device device;
  tfu_choice chosen;
  gemm_choice choice;
  TFU_TRY(tfu_device_now(&device, p->call->err));
  TFU_TRY(tfu_cublaslt_handle(p->lt, &p->handle, p->call->err));
  TFU_TRY(tfu_cublaslt_code(p->lt, open_problem(p), "describing a product to cuBLASLt", p->call->err));
  const gemm_key key = key_of(p->g, device.ordinal);
  const char *label = tfu_tuned_get(&tuner, &key, p, &chosen);
  *served = !chosen.none;
  if (microseconds) *microseconds = chosen.microseconds;
  if (chosen.none || microseconds) return TFU_OK;
  memcpy(&choice, chosen.data, sizeof choice);
  p->choice = &choice;
  TFU_TRY(get_workspace(p, choice.workspace));
  if (!p->call->kernel) p->call->kernel = label ? label : "cuBLASLt, untimed";
  return run(p);
}

/* ---- without cuBLASLt ---- */

static matmul_factor own_factor(const void *data, int64_t stored_cols, int turned, int64_t batch) {
  return (matmul_factor){
      .data = data, .row = turned ? 1 : stored_cols, .col = turned ? stored_cols : 1, .batch = batch};
}

static tfu_code run_own(tfu_call *call, const tfu_gemm_gpu *g) {
  const int64_t a_row = g->a_row ? g->a_row : g->a_turned ? g->m : g->k;
  const matmul_args a = {.a = own_factor(g->a, a_row, g->a_turned, g->a_stride),
                         .b = own_factor(g->b, g->b_turned ? g->k : g->n, g->b_turned, g->b_stride),
                         .c = g->c,
                         .bias = g->bias,
                         .d = g->d,
                         .m = g->m,
                         .n = g->n,
                         .k = g->k,
                         .batch = batch_of(g),
                         .d_batch = g->d_stride,
                         .alpha = scale_of(g),
                         .wide = g->wide};
  return tfu_matmul_own_run(call, TFU_OWN_TENSOR, g->dtype, a);
}

static tfu_code attempt(tfu_call *call, const tfu_gemm_gpu *g, int *served, float *microseconds) {
  const char *why;
  problem p = {.lt = tfu_cublaslt_get(&why), .call = call, .g = g, .trial = microseconds != NULL};
  *served = 0;
  if (g->m == 0 || g->n == 0 || g->k == 0) return TFU_OK;
  if (p.lt && (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX)) {
    p.lt = NULL;
    why = "cuBLASLt takes no sizes beyond 31 bits";
  }
  if (p.lt && scale_of(g) == 0) {
    p.lt = NULL;
    why = "cuBLASLt does not read what is scaled by 0, not even infinities";
  }
  if (p.lt && g->bias && (uintptr_t)g->bias % 16) return TFU_OK; /* its kernels read the bias in packs */
  const int gelu = g->epilogue == TFU_EPI_GELU || g->epilogue == TFU_EPI_GELU_AUX;
  if (gelu && tfu_gemm_exact(g->dtype, g->tf32)) return TFU_OK;
  if (!p.lt) {
    call->why = why;
    *served = g->epilogue == TFU_EPI_NONE && (!g->c || batch_of(g) == 1 || g->c_stride == g->d_stride);
    return *served && !microseconds ? run_own(call, g) : TFU_OK;
  }
  const tfu_code code = solve(&p, served, microseconds);
  close_problem(&p);
  return code;
}

tfu_code tfu_gemm_gpu_run(tfu_call *call, const tfu_gemm_gpu *g, int *served) { return attempt(call, g, served, NULL); }

tfu_code tfu_gemm_gpu_time(tfu_call *call, const tfu_gemm_gpu *g, int *served, float *microseconds) {
  *microseconds = 0;
  return attempt(call, g, served, microseconds);
}
