/* batched_matmul_gpu_test.c - what products the GPU's batched product is made of, without a GPU: against a product and
 * a sum of our own that compute on the host. Results are compared with the CPU kernel's, and the number and size of the
 * products with what they should be. */
#include <math.h>

#include "kernels/products/gemm_gpu.h"
#include "ops/products/batched_matmul.h"
#include "tests/products/host_kernels.h"

/* ---- the GPU ---- */

static tfu_gemm_gpu last; /* product that was run */
static int runs, sums, adding, tried;

/* Of float32 and float64, in double. */
tfu_code tfu_gemm_gpu_run(tfu_call *call, const tfu_gemm_gpu *g, int *served) {
  void *workspace;
  TFU_TRY(tfu_scratch(call, 1000, &workspace));
  memset(workspace, 1, 1000);
  CHECK((g->dtype == TFU_F64 || g->dtype == TFU_F32) && g->m > 0 && g->n > 0 && g->k > 0 && g->scale && !g->bias);
  CHECK(g->batch >= 1 && (g->batch == 1 || g->d_stride >= g->m * g->n));
  CHECK(!g->c || (g->c == g->d && g->c_stride == g->d_stride));
  for (int64_t z = 0; z < g->batch; z++)
    for (int64_t i = 0; i < g->m; i++)
      for (int64_t j = 0; j < g->n; j++) {
        const int64_t a = z * g->a_stride, b = z * g->b_stride, d = z * g->d_stride + i * g->n + j;
        double v = 0;
        for (int64_t k = 0; k < g->k; k++)
          v += at(g->a, g->dtype, a + (g->a_transposed ? k * g->m + i : i * g->k + k)) *
               at(g->b, g->dtype, b + (g->b_transposed ? j * g->k + k : k * g->n + j));
        put(g->d, g->dtype, d, *g->scale * v + (g->c ? at(g->c, g->dtype, d) : 0));
      }
  runs++;
  adding += g->c != NULL;
  last = *g;
  return *served = 1, TFU_OK;
}

/* Spoils the result, as it may. */
tfu_code tfu_gemm_gpu_time(tfu_call *call, const tfu_gemm_gpu *g, int *served, float *microseconds) {
  CHECK(call && g->c == g->d);
  for (int64_t z = 0; z < g->batch; z++)
    for (int64_t i = 0; i < g->m * g->n; i++) put(g->d, g->dtype, z * g->d_stride + i, 1e9);
  tried++;
  return *served = 1, *microseconds = 1, TFU_OK;
}

static void sum(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const tfu_fold_args *a = args;
  CHECK(a->quantities == 1 && a->count[0] == a->width && last.wide);
  CHECK(a->blocks * a->width * (int64_t)tfu_dtype_size(dtype) <= tfu_batched_parts);
  fold(args, dtype, c);
  sums++;
}

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver own = {STAND_INS, HOST_KERNEL_STAND_INS};
  (void)err;
  *driver = &own;
  return TFU_OK;
}

/* ---- against the CPU ---- */

typedef struct problem {
  tfu_shape a, b, y;
  int transpose_a, transpose_b, like; /* y is like the third input */
  int exact;                          /* float32, else float64 */
  int by_0;                           /* the scale is 0, and each input has an infinity */
  int products, sums;                 /* that it takes */
  int adding, tried;                  /* products that add to earlier ones, and that are tried out */
  int64_t m, k, batch;                /* of the last product */
} problem;

static tfu_tensor filled(tfu_shape shape, const problem *p, uint32_t state) {
  tfu_tensor t = {calloc((size_t)tfu_count(&shape) + 1, sizeof(double)), p->exact ? TFU_F32 : TFU_F64, shape};
  for (int64_t i = 0; i < tfu_count(&shape); i++) {
    state = state * 1664525u + 1013904223u;
    put(t.data, t.dtype, i, (double)(int32_t)state / 2147483648.0);
  }
  return t;
}

static void check_problem(int line, const problem *p) {
  const tfu_shape none = SHAPE(0), yes = SHAPE(0, 0);
  const tfu_tensor in[] = {filled(p->a, p, 1), filled(p->b, p, 2), filled(p->like ? p->y : none, p, 3),
                           filled(p->transpose_a ? yes : none, p, 4), filled(p->transpose_b ? yes : none, p, 5)};
  run *r = start(&tfu_batched_matmul);
  memcpy(r->call.in, in, sizeof in);
  r->call.attr[TFU_BATCHED_SCALE].f = p->by_0 ? 0 : 0.5;
  for (int i = 0; i < 2 && p->by_0; i++) put(in[i].data, in[i].dtype, i, INFINITY);
  const tfu_tensor want = filled(p->y, p, 6), got = filled(p->y, p, 7);
  r->call.out[0] = want;
  CHECK_FOR(finish(r, "test") == TFU_OK, "of line %d: %s", line, r->err.text);
  r->call.out[0] = got;
  runs = sums = adding = tried = 0;
  int64_t nans = 0;
  CHECK_FOR(tfu_batched_matmul_gpu(&r->call) == TFU_OK, "of line %d: %s", line, r->err.text);
  for (int64_t i = 0; i < tfu_count(&p->y); i++) {
    const double g = at(got.data, got.dtype, i), w = at(want.data, want.dtype, i);
    CHECK_FOR(isnan(w) ? isnan(g) : fabs(g - w) < (p->exact ? 1e-4 : 1e-12), "of line %d at %lld: %g, not %g", line,
              (long long)i, g, w);
    nans += isnan(w);
  }
  CHECK_FOR(p->by_0 ? nans > 0 && nans < tfu_count(&p->y) : nans == 0, "of line %d: %lld", line, (long long)nans);
  CHECK_FOR(runs == p->products && sums == p->sums, "of line %d: %d products and %d sums", line, runs, sums);
  CHECK_FOR(adding == p->adding && tried == p->tried, "of line %d: %d added, %d tried", line, adding, tried);
  if (p->m)
    CHECK_FOR(last.m == p->m && last.k == p->k && last.batch == p->batch,
              "of line %d: %lld rows, %lld terms, batch %lld", line, (long long)last.m, (long long)last.k,
              (long long)last.batch);
  for (int i = 0; i < TFU_COUNT(in); i++) free(in[i].data);
  while (r->n > 0) free(r->held[--r->n]);
  free(want.data), free(got.data), free(r);
}
#define IS_MADE_OF(...) check_problem(__LINE__, &(problem){__VA_ARGS__})

static void test_batches(void) {
  /* One batch; all its axes are one. */
  IS_MADE_OF(SHAPE(3, 4), SHAPE(4, 5), SHAPE(3, 5), .products = 1, .m = 3, .k = 4, .batch = 1);
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(2, 6, 4, 5), SHAPE(2, 6, 3, 5), .products = 1, .m = 3, .k = 4, .batch = 12);
  IS_MADE_OF(SHAPE(2, 1, 6, 4, 3), SHAPE(2, 1, 6, 5, 4), SHAPE(2, 1, 6, 3, 5), .transpose_a = 1, .transpose_b = 1,
             .products = 1, .m = 3, .k = 4, .batch = 12);
  /* What has one b is rows, unless a is transposed. */
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(4, 5), SHAPE(2, 6, 3, 5), .products = 1, .m = 36, .k = 4, .batch = 1);
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(2, 1, 5, 4), SHAPE(2, 6, 3, 5), .transpose_b = 1, .products = 1, .m = 18, .k = 4,
             .batch = 2);
  IS_MADE_OF(SHAPE(2, 6, 4, 3), SHAPE(4, 5), SHAPE(2, 6, 3, 5), .transpose_a = 1, .products = 1, .m = 3, .k = 4,
             .batch = 12);
  /* One a for all is a batch. */
  IS_MADE_OF(SHAPE(3, 4), SHAPE(2, 6, 4, 5), SHAPE(2, 6, 3, 5), .products = 1, .m = 3, .k = 4, .batch = 12);
  /* Two strides are two loops: over the shorter axis. */
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(6, 4, 5), SHAPE(2, 6, 3, 5), .products = 2, .m = 3, .k = 4, .batch = 6);
  IS_MADE_OF(SHAPE(6, 1, 2, 3, 4), SHAPE(7, 1, 4, 5), SHAPE(6, 7, 2, 3, 5), .products = 6, .m = 6, .k = 4, .batch = 7);
  /* More products than a call has pieces of scratch. */
  IS_MADE_OF(SHAPE(40, 1, 2, 3, 4), SHAPE(41, 1, 4, 5), SHAPE(40, 41, 2, 3, 5), .products = 40, .m = 6, .k = 4,
             .batch = 41);
}

static void test_sums(void) {
  /* Terms go on from one matrix to the next: the gradient of weights that all of a batch share. */
  IS_MADE_OF(SHAPE(2, 6, 4, 3), SHAPE(2, 6, 4, 5), SHAPE(3, 5), .transpose_a = 1, .like = 1, .products = 1, .m = 3,
             .k = 48, .batch = 1);
  IS_MADE_OF(SHAPE(2, 6, 4, 3), SHAPE(2, 6, 4, 5), SHAPE(2, 1, 3, 5), .transpose_a = 1, .like = 1, .products = 1,
             .m = 3, .k = 24, .batch = 2);
  /* They do not: what is summed is written first. */
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(2, 6, 5, 4), SHAPE(3, 5), .transpose_b = 1, .like = 1, .products = 1, .sums = 1,
             .m = 3, .k = 4, .batch = 12);
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(2, 6, 4, 5), SHAPE(6, 3, 5), .like = 1, .products = 2, .sums = 1, .m = 3, .k = 4,
             .batch = 6);
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(2, 6, 4, 5), SHAPE(1, 1, 3, 5), .like = 1, .products = 1, .sums = 1, .m = 3,
             .k = 4, .batch = 12);
  /* Of nothing. */
  IS_MADE_OF(SHAPE(2, 3, 0), SHAPE(2, 0, 5), SHAPE(2, 3, 5), .products = 0);
  IS_MADE_OF(SHAPE(0, 3, 4), SHAPE(0, 4, 5), SHAPE(3, 5), .like = 1, .products = 0);
}

static void test_exact(void) {
  /* Chains of a matrix, or of 16 terms; what is left is added to the first. */
  IS_MADE_OF(SHAPE(2, 3, 150, 3), SHAPE(2, 3, 150, 5), SHAPE(3, 5), .exact = 1, .transpose_a = 1, .like = 1,
             .products = 1, .sums = 1, .m = 3, .k = 150, .batch = 6);
  IS_MADE_OF(SHAPE(6, 64, 3), SHAPE(6, 64, 5), SHAPE(3, 5), .exact = 1, .transpose_a = 1, .like = 1, .products = 1,
             .sums = 1, .m = 3, .k = 64, .batch = 6);
  IS_MADE_OF(SHAPE(2, 3, 11, 3), SHAPE(2, 3, 11, 5), SHAPE(3, 5), .exact = 1, .transpose_a = 1, .like = 1,
             .products = 2, .sums = 1, .adding = 1, .tried = 1, .m = 3, .k = 2, .batch = 1);
  IS_MADE_OF(SHAPE(2, 6, 11, 3), SHAPE(2, 6, 11, 5), SHAPE(2, 1, 3, 5), .exact = 1, .transpose_a = 1, .like = 1,
             .products = 3, .sums = 1, .adding = 1, .tried = 1, .m = 3, .k = 2, .batch = 2);
  /* With an axis that is summed over beside it. */
  IS_MADE_OF(SHAPE(3, 5, 9, 3), SHAPE(1, 5, 9, 5), SHAPE(3, 5), .exact = 1, .transpose_a = 1, .like = 1, .products = 3,
             .sums = 1, .adding = 1, .tried = 1, .m = 3, .k = 13, .batch = 3);
  /* A single chain, and none that goes on. */
  IS_MADE_OF(SHAPE(300, 3), SHAPE(300, 5), SHAPE(3, 5), .exact = 1, .transpose_a = 1, .products = 1, .m = 3, .k = 300,
             .batch = 1);
  IS_MADE_OF(SHAPE(2, 3, 300), SHAPE(300, 5), SHAPE(2, 3, 5), .exact = 1, .products = 1, .m = 6, .k = 300, .batch = 1);
}

/* Of what is written out, 4 KiB have room. */
static void test_parts(void) {
  /* Two results at a time, and the last alone. */
  IS_MADE_OF(SHAPE(5, 16, 1), SHAPE(5, 1, 16), SHAPE(16, 16), .like = 1, .products = 3, .sums = 1, .adding = 2,
             .tried = 2, .m = 16, .k = 1, .batch = 1);
  /* With an axis that stays. */
  IS_MADE_OF(SHAPE(3, 5, 8, 1), SHAPE(3, 5, 1, 8), SHAPE(3, 1, 8, 8), .like = 1, .products = 5, .sums = 1, .adding = 3,
             .tried = 3, .m = 8, .k = 1, .batch = 3);
  /* Of two axes that are summed over, the first goes one at a time. */
  IS_MADE_OF(SHAPE(3, 4, 2, 8, 1), SHAPE(3, 4, 2, 1, 8), SHAPE(4, 1, 8, 8), .like = 1, .products = 3 * 2, .sums = 1,
             .adding = 2 * 2, .tried = 2 * 2, .m = 8, .k = 1, .batch = 4);
  /* A chain in parts, with what is left of it. */
  IS_MADE_OF(SHAPE(5, 15, 32), SHAPE(5, 15, 16), SHAPE(32, 16), .exact = 1, .transpose_a = 1, .like = 1, .products = 3,
             .sums = 1, .adding = 2, .tried = 2, .m = 32, .k = 11, .batch = 1);
  /* A single result at a time needs no other place than its own. */
  IS_MADE_OF(SHAPE(5, 15, 64), SHAPE(5, 15, 16), SHAPE(64, 16), .exact = 1, .transpose_a = 1, .like = 1, .products = 5,
             .adding = 4, .tried = 4, .m = 64, .k = 11, .batch = 1);
}

/* Factors that are scaled by 0 are multiplied all the same: infinity gives NaN, as on the CPU. */
static void test_by_0(void) {
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(2, 6, 4, 5), SHAPE(2, 6, 3, 5), .by_0 = 1, .products = 1, .m = 3, .k = 4,
             .batch = 12);
  IS_MADE_OF(SHAPE(2, 6, 3, 4), SHAPE(2, 6, 5, 4), SHAPE(3, 5), .by_0 = 1, .transpose_b = 1, .like = 1, .products = 1,
             .sums = 1, .m = 3, .k = 4, .batch = 12);
  IS_MADE_OF(SHAPE(2, 3, 11, 3), SHAPE(2, 3, 11, 5), SHAPE(3, 5), .by_0 = 1, .exact = 1, .transpose_a = 1, .like = 1,
             .products = 2, .sums = 1, .adding = 1, .tried = 1, .m = 3, .k = 2, .batch = 1);
}

int main(void) {
  static const host_kernel kernels[] = {{"fold", sum}, {NULL, NULL}};
  host_kernels = kernels;
  tfu_batched_parts = 4096;
  test_batches();
  test_sums();
  test_exact();
  test_parts();
  test_by_0();
  return verdict();
}
