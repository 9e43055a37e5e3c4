/* cublaslt_stand_in.h - a cuBLASLt and a driver, with a product of our own and a clock, all on the host: for tests of
 * products, and of what is put together from them, without a GPU.
 *
 * A test's main begins with open_cache() and ends with close_cache(); tensors are from filled() and go by drop(), a run
 * that calls what is tested goes by end_run(). Kernels that are no product are those of the test (host_kernels.h). */
#ifndef TFUSE_CUBLASLT_STAND_IN_H_
#define TFUSE_CUBLASLT_STAND_IN_H_

#include <math.h>

#include "kernels/core/float8.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tuned.h"
#include "kernels/core/nvidia/cublaslt.h"
#include "kernels/products/gemm_gpu.h"
#include "kernels/products/matmul_own.h"
#include "tests/check.h"
#include "tests/products/host_kernels.h"
#include "tests/stand_in_clock.h"

/* ---- what a test sets ---- */

static int missing;         /* there is no cuBLASLt */
static int only_plain;      /* it has no epilogues */
static float pass_time = 5; /* microseconds that are taken by what is no product */
static int hides_nan;       /* algorithms up to this one make 0 of NaN where they have relu */
static int64_t offset;      /* elements from an aligned address to each tensor: fewer than 256 bytes */

/* ---- what it looks at ---- */

static int products, epilogues_run, proposals; /* of cuBLASLt */
static int float8_products;                    /* of these */
static int own_products, passes;               /* launches of kernels that are products, and of others */
static int last_algo;                          /* that cuBLASLt ran */
static int open_descriptors;                   /* not yet destroyed */
static uint32_t wished[4];                     /* what its A, B, C and D are aligned to, as it was told last */

/* ---- a cuBLASLt ---- */

struct tfu_matmul_desc {
  int32_t transpose_a, transpose_b;
  uint32_t epilogue;
  void *bias, *aux;
  int64_t aux_ld;
  const float *a_scale, *b_scale; /* of factors in float8 */
  int32_t a_mode, b_mode;
};
struct tfu_matrix_layout {
  cudaDataType_t type;
  int64_t rows, cols, ld;
  int32_t batch;
  int64_t stride;
};

static int is_float8(cublasLtMatrixLayout_t l) { return l->type == CUDA_R_8F_E4M3 || l->type == CUDA_R_8F_E5M2; }

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
  } all[] = {
      {CUBLASLT_MATMUL_DESC_TRANSA, &d->transpose_a, 4},       {CUBLASLT_MATMUL_DESC_TRANSB, &d->transpose_b, 4},
      {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue, 4},        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, 8},
      {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &d->aux, 8}, {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &d->aux_ld, 8},
      {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &d->a_scale, 8},  {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &d->b_scale, 8},
      {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &d->a_mode, 4},      {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &d->b_mode, 4}};
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
  (void)w;
  CHECK(n == (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? 8 : 4));
  const int of = (int)which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES; /* B, C and D follow */
  if (of >= 0 && of < TFU_COUNT(wished)) memcpy(&wished[of], v, n);
  return CUBLAS_STATUS_SUCCESS;
}

/* Three proposals: one that does not run, one that does, and a faster one that wants workspace. */
static cublasStatus_t propose_some(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                   cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                   cublasLtMatmulPreference_t w, int most, cublasLtMatmulHeuristicResult_t *found,
                                   int *n) {
  (void)h, (void)a, (void)b, (void)c, (void)out, (void)w;
  CHECK(most >= 3);
  proposals++;
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

static double element(const void *data, cublasLtMatrixLayout_t l, int transposed, int64_t z, int64_t i, int64_t j) {
  const int64_t place = z * l->stride + (transposed ? j + i * l->ld : i + j * l->ld);
  if (is_float8(l)) return float8_value(((const uint8_t *)data)[place], l->type == CUDA_R_8F_E5M2);
  return at(data, dtype_of(l->type), place);
}

/* What a Hopper takes: else an H200 refused it. */
static void check_float8(cublasLtMatmulDesc_t d, const void *a, cublasLtMatrixLayout_t al, const void *b,
                         cublasLtMatrixLayout_t bl, const void *out, cublasLtMatrixLayout_t dl) {
  const void *const pointers[] = {a, b, out, d->a_scale, d->b_scale};
  CHECK(is_float8(al) && is_float8(bl) && !(al->type == CUDA_R_8F_E5M2 && bl->type == CUDA_R_8F_E5M2));
  CHECK(d->transpose_a && !d->transpose_b && al->rows % 16 == 0 && al->cols % 16 == 0 && d->a_mode == d->b_mode);
  CHECK(dl->type != CUDA_R_64F && !(dl->type == CUDA_R_32F && d->epilogue & CUBLASLT_EPILOGUE_BIAS));
  for (int i = 0; i < TFU_COUNT(pointers); i++) CHECK(pointers[i] && (uintptr_t)pointers[i] % 16 == 0);
}

/* D = epilogue(alpha op(A) op(B) + beta C), columns side by side; what is multiplied by 0 does not count. */
static cublasStatus_t matmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                             cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl, const void *beta,
                             const void *c, cublasLtMatrixLayout_t cl, void *out, cublasLtMatrixLayout_t dl,
                             const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream) {
  (void)h, (void)stream;
  last_algo = (int)algo->data[0];
  CHECK_FOR(last_algo >= 1 && last_algo <= 3, "%d is not one of ours", last_algo);
  if (last_algo == 1) return 15; /* CUBLAS_STATUS_NOT_SUPPORTED */
  if (last_algo == 3) CHECK(bytes >= 4096 && (uintptr_t)workspace % 256 == 0), memset(workspace, 1, bytes);
  const tfu_dtype dtype = dtype_of(dl->type); /* of the vectors too: where D is wider there are none */
  const int64_t depth = d->transpose_a ? al->rows : al->cols;
  const double scale = dtype == TFU_F64 ? *(const double *)alpha : *(const float *)alpha;
  const double keep = dtype == TFU_F64 ? *(const double *)beta : *(const float *)beta;
  CHECK(depth == (d->transpose_b ? bl->cols : bl->rows) && dl->rows == (d->transpose_a ? al->cols : al->rows) &&
        dl->cols == (d->transpose_b ? bl->rows : bl->cols));
  CHECK(al->batch == dl->batch && bl->batch == dl->batch && cl->batch == dl->batch);
  CHECK(dl->batch == 1 || d->epilogue == CUBLASLT_EPILOGUE_DEFAULT);
  const int sums = d->epilogue == CUBLASLT_EPILOGUE_BGRADA, bias = !sums && d->epilogue & CUBLASLT_EPILOGUE_BIAS;
  CHECK(!bias || (uintptr_t)d->bias % 16 == 0); /* it is read in packs */
  if (is_float8(al) || is_float8(bl)) check_float8(d, a, al, b, bl, out, dl), float8_products++;
  products++;
  epilogues_run += d->epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  now += (last_algo == 3 ? 10 : 20) + (d->epilogue != CUBLASLT_EPILOGUE_DEFAULT ? 4 : 0); /* 3 is the faster one */
  for (int64_t all = 0; all < dl->batch * dl->rows; all++) {
    const int64_t z = all / dl->rows, i = all % dl->rows;
    double row = 0;
    for (int64_t k = 0; k < depth && sums; k++) row += element(a, al, d->transpose_a, z, i, k);
    if (sums) put(d->bias, dtype, i, row);
    for (int64_t j = 0; j < dl->cols; j++) {
      double v = 0;
      for (int64_t k = 0; k < depth; k++)
        v += element(a, al, d->transpose_a, z, i, k) * element(b, bl, d->transpose_b, z, k, j);
      if (d->a_scale) v *= (double)d->a_scale[d->a_mode ? i : 0] * d->b_scale[d->b_mode ? j : 0];
      v = (scale != 0 ? v * scale : 0) + (keep != 0 ? keep * element(c, cl, 0, z, i, j) : 0) +
          (bias ? at(d->bias, dtype, i) : 0);
      if (d->epilogue & 128) put(d->aux, dtype, i + j * d->aux_ld, v);
      if (d->epilogue & CUBLASLT_EPILOGUE_RELU) v = last_algo <= hides_nan ? fmax(v, 0) : activate(TFU_ACT_relu, v, 0);
      if (d->epilogue & CUBLASLT_EPILOGUE_GELU) v = activate(TFU_ACT_gelu_tanh, v, 0);
      put(out, dtype, z * dl->stride + i + j * dl->ld, v);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
static const char *status_name(cublasStatus_t s) { return s == 15 ? "CUBLAS_STATUS_NOT_SUPPORTED" : "another"; }

static cublasStatus_t create_handle(cublasLtHandle_t *h) { return *h = (cublasLtHandle_t)&now, CUBLAS_STATUS_SUCCESS; }

static const tfu_cublaslt lt = {.cublasLtCreate = create_handle,
                                .cublasLtMatmulDescCreate = desc_create,
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
                                .version = 130000};
const tfu_cublaslt *tfu_cublaslt_get(const char **why) {
  *why = missing ? "no cuBLASLt" : NULL;
  return missing ? NULL : &lt;
}

/* ---- a driver ---- */

static void multiply(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const matmul_args a = *(const matmul_args *)args;
  const tfu_dtype out = a.wide ? tfu_real(dtype) : dtype;
  (void)c;
  CHECK((missing || a.alpha == 0) && a.batch == 1 && a.slices == 1 && a.m && a.n && a.k);
  for (int64_t i = 0; i < a.m; i++)
    for (int64_t j = 0; j < a.n; j++) {
      double v = 0;
      for (int64_t k = 0; k < a.k; k++)
        v += at(a.a.data, dtype, i * a.a.row + k * a.a.col) * at(a.b.data, dtype, k * a.b.row + j * a.b.col);
      v = v * a.alpha + (a.c ? at(a.c, out, i * a.n + j) : 0) + (a.bias ? at(a.bias, dtype, j) : 0);
      put(a.d, out, i * a.n + j, v);
    }
}

/* Our own product takes no time here: it is not timed against others. */
static CUresult launch_any(const CUlaunchConfig *c, CUfunction f, void **args, void **extra) {
  static const host_kernel own[] = {{"matmul", multiply}, {NULL, NULL}};
  const host_kernel *const others = host_kernels;
  const int before = launches, is_own = !strncmp((const char *)f, "matmul_", 7);
  CHECK_FOR(strncmp((const char *)f, "matmul_naive", 12), "%s", (const char *)f);
  if (is_own) host_kernels = own;
  const CUresult r = launch_on_host(c, f, args, extra);
  host_kernels = others;
  *(is_own ? &own_products : &passes) += launches - before;
  now += is_own ? 0 : pass_time * (float)(launches - before);
  return r;
}

static CUresult device_name(char *name, int size, CUdevice device) {
  (void)device;
  snprintf(name, (size_t)size, "no GPU");
  return CUDA_SUCCESS;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver own = {STAND_INS,
                                 CLOCK_STAND_INS,
                                 .cuDeviceGetName = device_name,
                                 .cuLibraryGetKernel = get_named_kernel,
                                 .cuLaunchKernelEx = launch_any,
                                 .cuMemsetD8Async = fill_bytes};
  (void)err;
  *driver = &own;
  return TFU_OK;
}

/* ---- tensors and runs ---- */

static double number(uint32_t *state) { /* from -1 to 1 */
  *state = *state * 1664525u + 1013904223u;
  return (double)(int32_t)*state / 2147483648.0;
}

static tfu_tensor filled(tfu_dtype dtype, tfu_shape shape, uint32_t seed) {
  const size_t size = tfu_dtype_size(dtype), bytes = size * (size_t)(tfu_count(&shape) + offset);
  char *block = aligned_alloc(256, (bytes / 256 + 1) * 256); /* as a GPU's memory comes */
  tfu_tensor t = {block + size * (size_t)offset, dtype, shape};
  for (int64_t i = 0; i < tfu_count(&shape); i++) put(t.data, dtype, i, rint(number(&seed) * 64) / 32);
  return t;
}

static void drop(void *data) { free((void *)((uintptr_t)data & ~(uintptr_t)255)); }

/* Of what was tested: cuBLASLt has all its descriptors back. */
static void end_run(run *r) {
  CHECK(open_descriptors == 0);
  while (r->n > 0) free(r->held[--r->n]);
  free(r);
}

/* ---- choices ---- */

static char cache[] = "/tmp/cublaslt_stand_in.XXXXXX";

static int open_cache(void) { return mkdtemp(cache) && !setenv("TFUSE_CACHE", cache, 1); }

/* As in a new process of a new user. */
static void forget_choices(void) {
  char path[64];
  snprintf(path, sizeof path, "%s/tuned", cache);
  unlink(path);
  tfu_tuned_forget();
}

static void close_cache(void) {
  forget_choices();
  rmdir(cache);
}

#endif
