/* Launches the ladder of matmul_own.h: the op MatmulOwn and its gradient, and what gemm_gpu.c falls back to. */
#include "kernels/products/matmul_own.h"

#include <limits.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/core/panels.h"

TFU_MODULE(matmul_own);

static const char *const layouts[] = {"nn", "nt", "tn", "tt"};
enum { SIDE_NAIVE = 16, SIDE_TILED = 128 }; /* of a block's results */
enum { HALF = 2 /* bytes of the types that tensor cores take */ };

static struct rung {
  tfu_kernel kernel;
  int rows, cols; /* of a block's results */
  unsigned shared;
} rungs[] = {
    [TFU_OWN_TENSOR] = {{.module = &module, .name = "matmul_tensor", .variants = layouts},
                        TFU_PANEL_ROWS,
                        TFU_PANEL_COLS(HALF),
                        TFU_PANEL_SHARED(HALF)},
    [TFU_OWN_TILED] = {{.module = &module, .name = "matmul_tiled"}, SIDE_TILED, SIDE_TILED, 0},
    [TFU_OWN_NAIVE] = {{.module = &module, .name = "matmul_naive"}, SIDE_NAIVE, SIDE_NAIVE, 0},
};

/* ---- what tensor cores take ---- */

enum { CHUNK = 16 / HALF /* elements of 16 bytes */ };

static int transposed(const matmul_factor *f) { return f->col != 1; }

/* Whether a factor is whole chunks of 16 bytes: copies have that size. `inner` is its side that is contiguous. */
static int in_chunks(const matmul_factor *f, int64_t inner, int64_t batch) {
  const int64_t stride = transposed(f) ? f->col : f->row;
  return (uintptr_t)f->data % 16 == 0 && inner % CHUNK == 0 && stride % CHUNK == 0 &&
         (batch == 1 || f->batch % CHUNK == 0);
}

/* Whether results can be read and written two at a time. */
static int in_pairs(const matmul_args *a, size_t size) {
  const uintptr_t both = (uintptr_t)a->d | (uintptr_t)a->c;
  return a->n % 2 == 0 && (a->batch == 1 || a->d_batch % 2 == 0) && both % (2 * size) == 0;
}

/* NULL where tensor cores can serve, or why they cannot. */
static const char *hindrance(const matmul_args *a, tfu_dtype dtype, const tfu_device *device) {
  if (dtype != TFU_F16 && dtype != TFU_BF16) return "tiled, since the tensor kernel takes float16 and bfloat16";
  if (!tfu_panels_fit(device, HALF))
    return "tiled, since the GPU is too old for the tensor kernel, or has too little shared memory";
  if (!in_chunks(&a->a, transposed(&a->a) ? a->m : a->k, a->batch) ||
      !in_chunks(&a->b, transposed(&a->b) ? a->k : a->n, a->batch) ||
      !in_pairs(a, a->wide ? sizeof(float) : tfu_dtype_size(dtype)))
    return "tiled, since the tensor kernel takes rows of multiples of 16 bytes";
  return NULL;
}

/* ---- launching ---- */

/* Parts of k, each a sum of its own, where the results alone do not fill the GPU: a long k is then faster, and its sums
 * are more exact. */
static int64_t slices_of(const matmul_args *a, int64_t blocks, const tfu_device *device) {
  enum { LEAST = 512 }; /* terms of a part that are worth it */
  const int64_t most = a->k / LEAST, room = device->multiprocessors / blocks;
  const int dense = a->batch == 1 || a->d_batch == a->m * a->n;
  const int64_t slices = most < room ? most : room;
  return a->c || !dense || slices < 2 ? 1 : slices;
}

static tfu_code launch(tfu_call *call, struct rung *r, tfu_dtype dtype, int64_t blocks, matmul_args *a) {
  const int layout = r->kernel.variants ? 2 * transposed(&a->a) + transposed(&a->b) : 0;
  TFU_REQUIRE(call->err, blocks <= INT_MAX && a->slice <= INT_MAX,
              "the product is too large: %lld blocks, sums of %lld terms", (long long)blocks, (long long)a->slice);
  const tfu_grid grid = {.x = (unsigned)blocks, .threads = TFU_THREADS, .shared = r->shared};
  return tfu_launch(call, &r->kernel, layout, dtype, grid, a);
}

tfu_code tfu_matmul_own_run(tfu_call *call, tfu_own_kind kind, tfu_dtype dtype, matmul_args a) {
  tfu_device device;
  const int64_t count = a.batch * a.m * a.n;
  if (count == 0) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  if (kind == TFU_OWN_TENSOR) {
    const char *why = hindrance(&a, dtype, &device);
    if (why) kind = TFU_OWN_TILED;
    if (why && !call->why) call->why = why;
  }
  struct rung *r = &rungs[kind];
  const int64_t blocks = divide_up(a.m, r->rows) * divide_up(a.n, r->cols) * a.batch;
  const size_t real_size = tfu_dtype_size(tfu_real(dtype));
  a.slices = call->invariant ? 1 : (int)slices_of(&a, blocks, &device);
  if (!tfu_has_scratch(call, (size_t)(a.slices * count) * real_size)) a.slices = 1;
  a.slice = divide_up(divide_up(a.k, a.slices), TFU_PANEL_DEPTH(HALF)) * TFU_PANEL_DEPTH(HALF);
  a.slices = a.k > 0 ? (int)divide_up(a.k, a.slice) : 1;
  a.parts = 0;
  if (a.slices == 1) return launch(call, r, dtype, blocks, &a);

  const tfu_dtype real = tfu_real(dtype);
  const tfu_tensor out = {.data = a.d, .dtype = a.wide ? real : dtype, .shape = {.rank = 1, .dim = {count}}};
  a.parts = count;
  a.d_batch = a.m * a.n;
  a.wide = 1;
  TFU_TRY(tfu_scratch(call, (size_t)(a.slices * count) * real_size, &a.d));
  TFU_TRY(launch(call, r, dtype, blocks * a.slices, &a));
  return tfu_fold_gpu(call, a.d, a.slices, count, 1, &out);
}

/* ---- the op ---- */

/* The last two axes of t, as they lie or transposed. */
static matmul_factor factor_of(const tfu_tensor *t, int transpose) {
  const int64_t cols = tfu_cols(&t->shape), rows = t->shape.dim[t->shape.rank - 2];
  return (matmul_factor){
      .data = t->data, .row = transpose ? 1 : cols, .col = transpose ? cols : 1, .batch = rows * cols};
}

static tfu_code multiply(tfu_call *call, const tfu_tensor *a, int a_transposed, const tfu_tensor *b, int b_transposed,
                         const tfu_tensor *d) {
  const int rank = d->shape.rank;
  const int64_t m = d->shape.dim[rank - 2], n = d->shape.dim[rank - 1], count = tfu_count(&d->shape);
  const matmul_args args = {.a = factor_of(a, a_transposed),
                            .b = factor_of(b, b_transposed),
                            .d = d->data,
                            .m = m,
                            .n = n,
                            .k = a->shape.dim[a_transposed ? rank - 2 : rank - 1],
                            .batch = count ? count / (m * n) : 0,
                            .d_batch = m * n,
                            .alpha = 1};
  return tfu_matmul_own_run(call, (tfu_own_kind)call->attr[TFU_MATMUL_OWN_KIND].i, d->dtype, args);
}

tfu_code tfu_matmul_own_gpu(tfu_call *call) {
  return multiply(call, &call->in[TFU_MATMUL_A], 0, &call->in[TFU_MATMUL_B], 0, &call->out[0]);
}

tfu_code tfu_matmul_own_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[TFU_MATMULGRAD_DY];
  TFU_TRY(multiply(call, dy, 0, &call->in[TFU_MATMULGRAD_B], 1, &call->out[TFU_MATMULGRAD_DA]));
  return multiply(call, &call->in[TFU_MATMULGRAD_A], 1, dy, 0, &call->out[TFU_MATMULGRAD_DB]);
}
