/* cuBLASLt knows columns side by side, not rows: it computes d^T = b^T a^T, whose matrices lie in memory as ours do.
 * So its A is our b, its B our a, and its bias, along the rows of D, is ours along the columns. */
#include "kernels/products/gemm_gpu.h"

#include <string.h>

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/trial.h"
#include "kernels/core/gpu/tuned.h"
#include "kernels/core/nvidia/cublaslt.h"
#include "kernels/products/gemm_key.h"
#include "kernels/products/matmul_own.h"
#include "ops/products/linear.h"

_Static_assert(sizeof(tfu_gemm_key) <= TFU_TUNED_KEY, "tuned.h has room for it");

_Static_assert(sizeof(tfu_gemm_choice) <= TFU_TUNED_DATA, "tuned.h has room for it");

enum { WORKSPACE_ALIGN = 256, CANDIDATES = 12 };
_Static_assert(TFU_GEMM_WORKSPACE + 2 * WORKSPACE_ALIGN <= TFU_LINEAR_ROOM, "a captured call has room for one");

static const struct {
  cublasLtEpilogue_t plain, with_bias;
} epilogues[TFU_EPIS] = {
    [TFU_EPI_NONE] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS},
    [TFU_EPI_RELU] = {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS},
    [TFU_EPI_GELU] = {CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS},
    [TFU_EPI_GELU_AUX] = {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
    [TFU_EPI_SUM_B] = {CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADA},
};

static const cudaDataType_t types[TFU_DTYPES] = {
    [TFU_F32] = CUDA_R_32F, [TFU_F16] = CUDA_R_16F, [TFU_BF16] = CUDA_R_16BF,    [TFU_F64] = CUDA_R_64F,
    [TFU_I32] = CUDA_R_32I, [TFU_I8] = CUDA_R_8I,   [TFU_E4M3] = CUDA_R_8F_E4M3, [TFU_E5M2] = CUDA_R_8F_E5M2};

/* What is computed in. */
static tfu_dtype sums_of(const tfu_gemm_gpu *g) { return g->dtype == TFU_I8 ? TFU_I32 : tfu_real(g->dtype); }

/* ---- descriptions ---- */

typedef struct problem {
  const tfu_cublaslt *lt;
  tfu_call *call;
  const tfu_gemm_gpu *g;
  cublasLtHandle_t handle;
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t a, b, c, d; /* as cuBLASLt names them */
  const tfu_gemm_choice *choice;     /* of the next run */
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
  const tfu_dtype out = g->wide || g->dtype == TFU_I8 ? sums_of(g) : g->dtype;
  const int64_t a_rows = g->a_transposed ? g->m : g->k, b_rows = g->b_transposed ? g->k : g->n; /* to cuBLASLt */
  const tfu_dtype a = g->float8 ? g->float8->a : g->dtype, b = g->float8 ? g->float8->b : g->dtype;
  cublasStatus_t s = describe_matrix(p, &p->a, b, b_rows, g->n + g->k - b_rows, 0, g->b_stride);
  if (!s) s = describe_matrix(p, &p->b, a, a_rows, g->m + g->k - a_rows, g->a_row, g->a_stride);
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

static cublasStatus_t set_scales(const problem *p) {
  const tfu_gemm_float8 *f = p->g->float8;
  const int32_t outer = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  cublasStatus_t s = set(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &f->b_scale, sizeof f->b_scale);
  if (!s) s = set(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &f->a_scale, sizeof f->a_scale);
  if (!s && f->outer) s = set(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &outer, sizeof outer);
  if (!s && f->outer) s = set(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &outer, sizeof outer);
  return s;
}

static cublasStatus_t open_problem(problem *p) {
  const tfu_gemm_gpu *g = p->g;
  const int32_t transpose_a = g->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                transpose_b = g->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasComputeType_t compute = g->dtype == TFU_F64              ? CUBLAS_COMPUTE_64F
                                      : g->dtype == TFU_I8             ? CUBLAS_COMPUTE_32I
                                      : g->dtype == TFU_F32 && g->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                       : CUBLAS_COMPUTE_32F;
  cublasStatus_t s = p->lt->cublasLtMatmulDescCreate(&p->desc, compute, types[sums_of(g)]);
  if (!s) s = set(p, CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof transpose_a);
  if (!s) s = set(p, CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof transpose_b);
  if (!s) s = set_epilogue(p);
  if (!s && g->float8) s = set_scales(p);
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

static void set_workspace(problem *p, void *memory) {
  p->workspace = (void *)(((uintptr_t)memory + WORKSPACE_ALIGN - 1) & ~(uintptr_t)(WORKSPACE_ALIGN - 1));
}

/* Runs p->choice. */
static tfu_code run(void *problem_) {
  const problem *p = problem_;
  const tfu_gemm_gpu *g = p->g;
  const double scale = scale_of(g), keep = g->c != NULL;
  const float scale_f = (float)scale, keep_f = (float)keep;
  const int32_t scale_i = (int32_t)scale, keep_i = (int32_t)keep;
  const tfu_dtype sums = sums_of(g);
  const void *alpha = sums == TFU_F64 ? (const void *)&scale : sums == TFU_I32 ? (const void *)&scale_i : &scale_f;
  const void *beta = sums == TFU_F64 ? (const void *)&keep : sums == TFU_I32 ? (const void *)&keep_i : &keep_f;
  return tfu_cublaslt_code(
      p->lt,
      p->lt->cublasLtMatmul(p->handle, p->desc, alpha, g->b, p->a, g->a, p->b, beta, g->c ? g->c : g->d, p->c, g->d,
                            p->d, &p->choice->algo, p->workspace, (size_t)p->choice->workspace, p->call->stream),
      "cublasLtMatmul", p->call->err);
}

/* ---- choosing ---- */

static void describe(const void *key, void *problem_, char *text, size_t size) {
  tfu_gemm_key_text(key, ((const problem *)problem_)->lt->version, text, size);
}

/* cuBLASLt itself says whether the algorithm is one of its own, and what it needs. */
static int fits(const problem *p, const tfu_gemm_choice *c, uint64_t *workspace) {
  cublasLtMatmulHeuristicResult_t result = {.workspaceSize = 0};
  if (p->lt->cublasLtMatmulAlgoCheck(p->handle, p->desc, p->a, p->b, p->c, p->d, &c->algo, &result)) return 0;
  *workspace = result.workspaceSize;
  return *workspace <= TFU_GEMM_WORKSPACE;
}

static int usable(const void *key, void *problem_, const tfu_choice *choice) {
  (void)key;
  tfu_gemm_choice c;
  uint64_t needed;
  memcpy(&c, choice->data, sizeof c);
  return fits(problem_, &c, &needed) && needed <= c.workspace && c.workspace <= TFU_GEMM_WORKSPACE;
}

static int propose(const problem *p, const tfu_gemm_key *key, cublasLtMatmulHeuristicResult_t *found) {
  static const cublasLtMatmulPreferenceAttributes_t aligned[4] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  const tfu_cublaslt *lt = p->lt;
  const uint64_t workspace = TFU_GEMM_WORKSPACE;
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

static void name(const problem *p, const tfu_gemm_key *key, const tfu_gemm_choice *c, tfu_choice *choice) {
  int32_t id = -1;
  size_t written;
  p->lt->cublasLtMatmulAlgoConfigGetAttribute(&c->algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &written);
  tfu_choice_label(choice, "cuBLASLt, epilogue %s%s, algorithm %d", tfu_epilogue_names[key->epilogue],
                   key->bias ? "+bias" : "", (int)id);
}

/* Whether products may be run for nothing: what a sum is added to is needed once, and a graph that captures them would
 * have them all. */
static int may_try(const problem *p) { return (p->trial || p->g->c != p->g->d) && tfu_may_wait(p->call); }

typedef struct proposals {
  problem *p;
  tfu_gemm_choice choice[CANDIDATES];
  int wrong[CANDIDATES]; /* cuBLASLt's own status */
} proposals;

static const char *take(void *proposals_, tfu_tried *tried) {
  proposals *all = proposals_;
  all->p->choice = &all->choice[tried->plan];
  return all->wrong[tried->plan] ? "cuBLASLt does not support it" : NULL;
}

static tfu_code run_one(void *proposals_) { return run(((proposals *)proposals_)->p); }

static tfu_code run_biased(void *proposals_, void *bias) {
  problem *p = ((proposals *)proposals_)->p;
  tfu_gemm_gpu g = *p->g;
  problem probe = *p;
  g.bias = bias;
  probe.g = &g;
  const tfu_code code = set_epilogue(&probe) ? TFU_INTERNAL : run(&probe);
  return set_epilogue(p) ? TFU_INTERNAL : code;
}

/* The fastest of the proposals; where none is to be timed, or `first` is wanted, the first that runs. One workspace is
 * for all; where it is not to be had, the first is taken as it is. */
static int best_of(problem *p, const tfu_gemm_key *key, int timed, int first, tfu_gemm_choice *best,
                   float *microseconds) {
  cublasLtMatmulHeuristicResult_t found[CANDIDATES];
  tfu_tried tried[CANDIDATES];
  proposals all = {.p = p};
  size_t most = 0;
  void *memory = NULL;
  const int n = propose(p, key, found);
  for (int i = 0; i < n; i++) {
    all.choice[i] = (tfu_gemm_choice){.algo = found[i].algo, .workspace = found[i].workspaceSize};
    all.wrong[i] = found[i].state != 0;
    if (!found[i].state && found[i].workspaceSize > most) most = found[i].workspaceSize;
  }
  tfu_trial t = {.call = p->call,
                 .with = &all,
                 .plans = n,
                 .most = first ? 1 : CANDIDATES,
                 .timed = timed,
                 .runs = 1,
                 .dry = !may_try(p) || (most && !tfu_try_scratch(p->call, most + WORKSPACE_ALIGN, &memory)),
                 .take = take,
                 .run = run_one,
                 .run_biased = p->g->epilogue == TFU_EPI_RELU ? run_biased : NULL,
                 .dtype = p->g->dtype,
                 .channels = p->g->n,
                 .result = p->g->d};
  set_workspace(p, memory);
  const int taken = tfu_trial_pick(tried, tfu_trial_run(&t, tried), 0, 1);
  if (taken < 0) return 0;
  *best = all.choice[tried[taken].plan];
  *microseconds = tried[taken].microseconds;
  return 1;
}

static tfu_chosen choose(const void *key_, void *problem_, tfu_choice *choice) {
  const tfu_gemm_key *key = key_;
  problem *p = problem_;
  tfu_gemm_choice best = {.workspace = 0};
  const int first = tfu_gemm_exact((tfu_dtype)key->dtype, key->tf32);
  *choice = (tfu_choice){.none = 0};
  choice->none = !best_of(p, key, tfu_tuning(), first, &best, &choice->microseconds);
  memcpy(choice->data, &best, sizeof best);
  if (!choice->none) name(p, key, &best, choice);
  return may_try(p) || !tfu_tuning() ? TFU_CHOSEN : TFU_CHOSEN_ONCE;
}

/* Its time is then an estimate, by the work. */
static int adopt(const void *key_, const void *other, void *problem_, tfu_choice *choice) {
  const tfu_gemm_key *key = key_;
  problem *p = problem_;
  const int exact = tfu_gemm_exact((tfu_dtype)key->dtype, key->tf32);
  tfu_gemm_choice c;
  float untimed;
  memcpy(&c, choice->data, sizeof c);
  if (!(exact ? best_of(p, key, 0, 1, &c, &untimed) : fits(p, &c, &c.workspace))) return 0;
  memcpy(choice->data, &c, sizeof c);
  choice->microseconds *= (float)(tfu_gemm_work(key) / tfu_gemm_work(other));
  name(p, key, &c, choice);
  return 1;
}

static double apart(const void *key, const void *other) { return tfu_gemm_apart(key, other); }

static const tfu_tuner tuner = {.bytes = sizeof(tfu_gemm_key),
                                .describe = describe,
                                .usable = usable,
                                .choose = choose,
                                .apart = apart,
                                .adopt = adopt};

/* Opens the problem, asks for the choice, and runs it where `microseconds` is NULL. */
static tfu_code solve(problem *p, int *served, float *microseconds) {
  tfu_device device;
  tfu_choice chosen;
  tfu_gemm_choice choice;
  void *memory = NULL;
  TFU_TRY(tfu_device_now(&device, p->call->err));
  TFU_TRY(tfu_cublaslt_handle(p->lt, &p->handle, p->call->err));
  TFU_TRY(tfu_cublaslt_code(p->lt, open_problem(p), "describing a product to cuBLASLt", p->call->err));
  const tfu_gemm_key key = tfu_gemm_key_of(p->g, device.ordinal);
  const char *label = tfu_tuned_get(&tuner, &key, p, &chosen);
  *served = !chosen.none;
  if (microseconds) *microseconds = chosen.microseconds;
  if (chosen.none || microseconds) return TFU_OK;
  memcpy(&choice, chosen.data, sizeof choice);
  p->choice = &choice;
  if (choice.workspace) TFU_TRY(tfu_scratch(p->call, (size_t)choice.workspace + WORKSPACE_ALIGN, &memory));
  set_workspace(p, memory);
  if (!p->call->kernel) p->call->kernel = label ? label : "cuBLASLt, untimed";
  return run(p);
}

/* ---- without cuBLASLt ---- */

static matmul_factor own_factor(const void *data, int64_t stored_cols, int transposed, int64_t batch) {
  return (matmul_factor){
      .data = data, .row = transposed ? 1 : stored_cols, .col = transposed ? stored_cols : 1, .batch = batch};
}

static tfu_code run_own(tfu_call *call, const tfu_gemm_gpu *g) {
  const int64_t a_row = g->a_row ? g->a_row : g->a_transposed ? g->m : g->k;
  const matmul_args a = {.a = own_factor(g->a, a_row, g->a_transposed, g->a_stride),
                         .b = own_factor(g->b, g->b_transposed ? g->k : g->n, g->b_transposed, g->b_stride),
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

static int on_16(const void *p) { return (uintptr_t)p % 16 == 0; }

tfu_code tfu_gemm_gpu_has_float8(tfu_call *call, int outer, int *has) {
  enum { OUTER_SINCE = 120900 };
  const char *why;
  const tfu_cublaslt *lt = tfu_cublaslt_get(&why);
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  *has = lt && !call->invariant && device.capability >= 89;
  if (*has && outer) *has = device.capability == 90 && lt->version >= OUTER_SINCE;
  return TFU_OK;
}

/* Whether cuBLASLt has such factors. What it refuses beside that, it does not propose. */
static tfu_code takes_float8(tfu_call *call, const tfu_gemm_gpu *g, int *takes) {
  TFU_TRY(tfu_gemm_gpu_has_float8(call, g->float8->outer, takes));
  *takes = *takes && g->b_transposed && !g->a_transposed && g->n % 16 == 0 && g->k % 16 == 0 && on_16(g->a) &&
           on_16(g->b) && on_16(g->d) && on_16(g->float8->a_scale) && on_16(g->float8->b_scale) &&
           !(g->dtype == TFU_F32 && (g->bias || g->epilogue != TFU_EPI_NONE)) && g->dtype != TFU_F64;
  return TFU_OK;
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
  if (p.lt && call->invariant) {
    p.lt = NULL;
    why = "rows shall not depend on each other, and cuBLASLt's algorithms go by their number";
  }
  if (p.lt && scale_of(g) == 0) {
    p.lt = NULL;
    why = "cuBLASLt does not read what is scaled by 0, not even infinities";
  }
  if (g->float8) {
    int takes;
    TFU_TRY(takes_float8(call, g, &takes));
    if (!takes || !p.lt) return TFU_OK;
  }
  if (p.lt && g->bias && !on_16(g->bias)) return TFU_OK; /* its kernels read the bias in packs */
  const int gelu = g->epilogue == TFU_EPI_GELU || g->epilogue == TFU_EPI_GELU_AUX;
  if (gelu && tfu_gemm_exact(g->dtype, g->tf32)) return TFU_OK;
  if (!p.lt) {
    call->why = why;
    *served =
        g->dtype != TFU_I8 && g->epilogue == TFU_EPI_NONE && (!g->c || batch_of(g) == 1 || g->c_stride == g->d_stride);
    return *served && !microseconds ? run_own(call, g) : TFU_OK;
  }
  const tfu_code code = solve(&p, served, microseconds);
  close_problem(&p);
  return code;
}

/* Both are weak, for a test may put products of its own in their place. */
__attribute__((weak)) tfu_code tfu_gemm_gpu_run(tfu_call *call, const tfu_gemm_gpu *g, int *served) {
  return attempt(call, g, served, NULL);
}

__attribute__((weak)) tfu_code tfu_gemm_gpu_time(tfu_call *call, const tfu_gemm_gpu *g, int *served,
                                                 float *microseconds) {
  *microseconds = 0;
  return attempt(call, g, served, microseconds);
}
