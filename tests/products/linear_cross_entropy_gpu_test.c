/* linear_cross_entropy_gpu_test.c - how linear_cross_entropy goes through its chunks on a GPU, without one: against
 * products and kernels of our own that compute on the host. Checked are layouts, sums that grow from chunk to chunk,
 * their way into the output in place, and memory, against the CPU kernels. */
#include <math.h>

#include "kernels/products/gemm_gpu.h"
#include "kernels/products/linear_cross_entropy.h"
#include "kernels/rows/cross_entropy.h"
#include "kernels/rows/sparse_cross_entropy_cpu.h"
#include "ops/products/linear_cross_entropy.h"
#include "tests/products/host_kernels.h"

/* ---- what takes the GPU's place ---- */

static int no_bias;     /* products have no epilogue for it */
static int trials;      /* products that were timed         */
static int64_t largest; /* rows of logits                   */

static double element(const void *data, tfu_dtype dtype, int transposed, int64_t rows, int64_t cols, int64_t apart,
                      int64_t i, int64_t k) {
  if (!apart) apart = transposed ? rows : cols;
  return at(data, dtype, transposed ? k * apart + i : i * apart + k);
}

tfu_code tfu_gemm_gpu_run(tfu_call *call, const tfu_gemm_gpu *g, int *served) {
  const tfu_dtype out = g->wide ? TFU_F32 : g->dtype;
  void *workspace;
  *served = !(no_bias && g->bias);
  if (!*served || dry) return TFU_OK;
  TFU_TRY(tfu_scratch(call, (size_t)(1000 + g->k), &workspace)); /* more for some than for others */
  memset(workspace, 1, (size_t)(1000 + g->k));
  for (int64_t i = 0; i < g->m; i++)
    for (int64_t j = 0; j < g->n; j++) {
      double v = g->c ? at(g->c, out, i * g->n + j) : 0;
      for (int64_t k = 0; k < g->k; k++)
        v += element(g->a, g->dtype, g->a_transposed, g->m, g->k, g->a_row, i, k) *
             element(g->b, g->dtype, g->b_transposed, g->k, g->n, 0, k, j);
      put(g->d, out, i * g->n + j, v + (g->bias ? at(g->bias, g->dtype, j) : 0));
    }
  return TFU_OK;
}

/* A trial leaves what is not a result. */
tfu_code tfu_gemm_gpu_time(tfu_call *call, const tfu_gemm_gpu *g, int *served, float *microseconds) {
  (void)call;
  CHECK(g->c == g->d);
  trials++;
  memset(g->d, 0xff, (size_t)(g->m * g->n) * (g->wide ? sizeof(float) : tfu_dtype_size(g->dtype)));
  return *microseconds = 1, *served = 1, TFU_OK;
}

static void cross_entropy(const cross_entropy_args *a, tfu_dtype dtype, int gradient) {
  const int64_t rows = a->rows.rows;
  const tfu_shape shape = {.rank = 2, .dim = {rows, a->rows.cols}};
  const tfu_sparse_rows s = {.plan = tfu_plan_rows_cpu(&shape),
                             .x = {(void *)a->x, dtype, shape},
                             .labels = {(void *)a->labels, a->wide ? TFU_I64 : TFU_I32, {.rank = 1, .dim = {rows}}},
                             .loss = a->loss,
                             .stats = a->stats,
                             .dloss = a->dloss,
                             .dx = {a->dx, dtype, shape},
                             .smoothing = a->smoothing,
                             .z_loss = a->z_loss,
                             .ignored = a->ignore};
  CHECK(a->rows.aligned && (uintptr_t)a->x % 16 == 0 && a->rows.parts == 1);
  if (rows > largest) largest = rows;
  if (dtype == TFU_F64) (gradient ? tfu_sparse_backward_f64 : tfu_sparse_forward_f64)(&s);
  else (gradient ? tfu_sparse_backward_f32 : tfu_sparse_forward_f32)(&s);
}
static void find_losses(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  (void)c, cross_entropy(args, dtype, 0);
}
static void find_slopes(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  (void)c, cross_entropy(args, dtype, 1);
}

/* Blocks in an order that no GPU promises not to have: the last first. Each reads all before it writes. */
static void narrow(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  enum { BLOCK = TFU_THREADS * TFU_NARROW_ELEMENTS };
  const linear_cross_entropy_narrow_args *a = args;
  const int64_t blocks = c->gridDimX;
  float v[BLOCK];
  CHECK((uintptr_t)a->to % 16 == 0 && (uintptr_t)a->from % 16 == 0 && blocks * BLOCK >= a->n);
  for (int64_t b = blocks - 1; b >= 0; b--) {
    const int64_t n = a->n - b * BLOCK < BLOCK ? a->n - b * BLOCK : BLOCK;
    memcpy(v, a->from + b * BLOCK, (size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) put(a->to, dtype, b * BLOCK + i, v[i]);
  }
}

static void sum_up(void *args, tfu_dtype dtype, const CUlaunchConfig *c) {
  const linear_cross_entropy_total_args *a = args;
  double sum = 0;
  (void)c;
  for (int64_t i = 0; i < a->n; i++) sum += at(a->losses, dtype, i) * at(a->weights, dtype, i);
  put(a->total, dtype, 0, sum);
}

static const host_kernel kernels[] = {HOST_PASSES,
                                      {"sparse_cross_entropy", find_losses},
                                      {"sparse_cross_entropy_grad", find_slopes},
                                      {"linear_cross_entropy_narrow", narrow},
                                      {"linear_cross_entropy_total", sum_up},
                                      {NULL, NULL}};

tfu_code tfu_driver_get(const tfu_driver **driver, tfu_error *err) {
  static const tfu_driver own = {STAND_INS, HOST_KERNEL_STAND_INS};
  (void)err;
  *driver = &own;
  return TFU_OK;
}

/* ---- against the CPU ---- */

static double number(uint32_t *state) { /* from 0 to 1 */
  *state = *state * 1664525u + 1013904223u;
  return (double)*state / 4294967296.0;
}

static tfu_tensor filled(tfu_dtype dtype, tfu_shape shape, uint32_t seed, double from, double to) {
  const size_t bytes = tfu_dtype_size(dtype) * (size_t)tfu_count(&shape);
  tfu_tensor t = {aligned_alloc(256, (bytes / 256 + 1) * 256), dtype, shape};
  for (int64_t i = 0; i < tfu_count(&shape); i++) {
    const double v = from + (to - from) * number(&seed);
    if (dtype == TFU_I64) ((int64_t *)t.data)[i] = (int64_t)v;
    else put(t.data, dtype, i, v);
  }
  return t;
}

typedef struct problem {
  int64_t rows, inputs, classes;
  int transposed, bias, gradients, summed, chunks;
} problem;

static run *prepare(const problem *p, tfu_dtype dtype, int gradient_op) {
  const tfu_shape x = SHAPE(p->rows, p->inputs), none = SHAPE(0), bias = SHAPE(p->classes), rows = SHAPE(p->rows);
  const tfu_shape kernel = {.rank = 2,
                            .dim = {p->transposed ? p->classes : p->inputs, p->transposed ? p->inputs : p->classes}};
  const tfu_shape weights = SHAPE(p->rows, 1), one = SCALAR;
  const tfu_shape wanted[3] = {p->gradients ? x : none, p->gradients ? kernel : none,
                               p->gradients && p->bias ? bias : none};
  run *r = start(gradient_op ? &tfu_linear_cross_entropy_grad : &tfu_linear_cross_entropy);
  r->call.attr[TFU_LCE_SMOOTHING].f = 0.125f;
  r->call.attr[TFU_LCE_Z_LOSS].f = 0.0625f;
  r->call.attr[TFU_LCE_IGNORE].i = 1;
  r->call.attr[TFU_LCE_TRANSPOSED].b = p->transposed;
  tfu_tensor *in = r->call.in, *out = r->call.out;
  in[TFU_LCE_X] = filled(dtype, x, 1, -1, 1);
  in[TFU_LCE_KERNEL] = filled(dtype, kernel, 2, -0.5, 0.5);
  in[TFU_LCE_BIAS] = filled(dtype, p->bias ? bias : none, 3, -1, 1);
  in[TFU_LCE_LABELS] = filled(TFU_I64, rows, 4, 0, (double)p->classes);
  in[TFU_LCE_WEIGHTS] = filled(tfu_real(dtype), gradient_op ? rows : p->summed ? weights : none, 5, 0.5, 1);
  if (!gradient_op) *out++ = filled(tfu_real(dtype), p->summed ? one : rows, 6, 9, 9);
  for (int i = 0; i < 3; i++) {
    in[TFU_LCE_DX_FOR + i] = filled(dtype, wanted[i], 7, 9, 9);
    out[i] = filled(dtype, wanted[i], 8, 9, 9);
  }
  return r;
}

static void release(run *r) {
  for (int i = 0; i < TFU_MAX_ARGS; i++) free(r->call.in[i].data), free(r->call.out[i].data);
  while (r->n > 0) free(r->held[--r->n]);
  free(r);
}

static void compare(const problem *p, tfu_dtype dtype, int gradient_op) {
  const double epsilon = dtype == TFU_BF16 ? 0.03 : dtype == TFU_F16 ? 0.004 : dtype == TFU_F32 ? 1e-4 : 1e-10;
  run *cpu = prepare(p, dtype, gradient_op), *gpu = prepare(p, dtype, gradient_op);
  CHECK_FOR(finish(cpu, "test") == TFU_OK, "%s", cpu->err.text);
  trials = 0;
  largest = 0;
  CHECK_FOR((gradient_op ? tfu_linear_cross_entropy_grad_gpu : tfu_linear_cross_entropy_gpu)(&gpu->call) == TFU_OK,
            "%s", gpu->err.text);
  CHECK_FOR(!p->rows || (p->rows + largest - 1) / largest == p->chunks, "chunks of %d rows", (int)largest);
  CHECK((trials > 0) == (p->gradients && p->chunks > 1 && p->inputs > 0));
  for (int i = 0; cpu->call.op->out[i]; i++) {
    const tfu_tensor *want = &cpu->call.out[i], *got = &gpu->call.out[i];
    double most = 0, worst = 0;
    for (int64_t k = 0; k < tfu_count(&want->shape); k++) {
      const double w = at(want->data, want->dtype, k), off = fabs(at(got->data, got->dtype, k) - w);
      most = fmax(most, fabs(w));
      worst = isnan(off) ? INFINITY : fmax(worst, off);
    }
    CHECK_FOR(worst <= epsilon * fmax(most, 1e-3), "%s of %s, %d x %d x %d, transposed %d: off by %g of %g",
              cpu->call.op->out[i], tfu_dtype_name(dtype), (int)p->rows, (int)p->inputs, (int)p->classes, p->transposed,
              worst, most);
  }
  release(cpu), release(gpu);
}

/* ---- memory ---- */

static size_t scratch;
static void *count_and_allocate(tfu_call *call, size_t bytes) { return scratch += bytes, allocate(call, bytes); }

/* GPT-2's rows and inputs, and fewer classes, all of which take the same part of their logits' memory. cuBLASLt's
 * workspace, up to 32 MiB, comes on top. */
static void test_memory_gpu(void) {
  const problem p = {16384, 768, 512, 0, 0, 1, 1, 0};
  run *r = prepare(&p, TFU_BF16, 0);
  r->call.allocate = count_and_allocate;
  scratch = 0;
  dry = 1;
  CHECK_FOR(tfu_linear_cross_entropy_gpu(&r->call) == TFU_OK, "%s", r->err.text);
  dry = 0;
  CHECK_FOR(scratch <= 16384 * 512 * 2 * 13 / 100, "%zu bytes", scratch);
  release(r);
}

static void test_memory_cpu(void) {
  const problem p = {8192, 8, 256, 0, 1, 1, 1, 0};
  run *r = prepare(&p, TFU_F32, 0);
  r->call.allocate = count_and_allocate;
  scratch = 0;
  CHECK_FOR(finish(r, "test") == TFU_OK, "%s", r->err.text);
  CHECK_FOR(scratch <= 8192 * 256 * 4 * 10 / 100 + (size_t)tfu_threads() * (1 << 19), "%zu bytes", scratch);
  release(r);
}

int main(void) {
  static const problem problems[] = {
      {5, 3, 4, 0, 1, 1, 1, 1},       {5, 3, 4, 1, 0, 1, 1, 1},     {1024, 3, 7, 0, 1, 1, 1, 1},
      {1025, 40, 7, 0, 1, 1, 1, 2},   {1025, 5, 40, 1, 1, 1, 1, 2}, {2500, 17, 19, 0, 0, 1, 1, 3},
      {2500, 33, 300, 1, 1, 1, 1, 3}, {2500, 9, 11, 1, 1, 0, 1, 3}, {1300, 9, 11, 0, 1, 0, 0, 2},
      {0, 3, 4, 0, 1, 1, 1, 0},       {1100, 0, 4, 0, 1, 1, 1, 2}};
  host_kernels = kernels;
  static const tfu_dtype dtypes[] = {TFU_F32, TFU_F16, TFU_BF16, TFU_F64};
  for (no_bias = 0; no_bias < 2; no_bias++)
    for (int d = 0; d < TFU_COUNT(dtypes); d++)
      for (int i = 0; i < TFU_COUNT(problems); i++) {
        compare(&problems[i], dtypes[d], 0);
        if (problems[i].gradients) compare(&problems[i], dtypes[d], 1);
      }
  test_memory_gpu();
  test_memory_cpu();
  return verdict();
}
