#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/reductions/reduce.h"

TFU_MODULE(reduce_grad);
TFU_MODULE_AS(held_module, reduce_held);
static tfu_kernel held = {.module = &held_module, .name = "reduce_held", .variants = tfu_reduce_variants};
static tfu_kernel pairs = {.module = &module, .name = "reduce_pairs"};
static tfu_kernel gradient = {.module = &module, .name = "reduce_grad"};
static tfu_kernel spread_any = {.module = &module, .name = "spread_any"};
static tfu_kernel spread_columns = {.module = &module, .name = "spread_columns"};
static tfu_kernel by_rows = {.module = &module, .name = "slopes_rows", .variants = tfu_reduce_variants};
static tfu_kernel by_columns = {.module = &module, .name = "slopes_columns", .variants = tfu_reduce_variants};

enum {
  THREADS = TFU_REDUCE_THREADS,
  AHEAD = 4 /* packs of a thread in slopes_rows, as there */
};

/* Rows of a column that a thread has in slopes_columns, which reads and writes them, and in spread_columns, which only
 * writes. The former is measured on an H200: with 4, 8, 16, 32 and 64 of them [16384, 8192] takes 272, 279, 284, 286
 * and 290 us in float32. The latter is by reasoning. */
TFU_TUNABLE(slope_rows, 4, 4, 128);
TFU_TUNABLE(spread_rows, 32, 1, 128);

static unsigned blocks(int64_t n, int64_t each) { return (unsigned)divide_up(n, each); }

/* Rows that stay in registers. */
static tfu_code whole_rows(tfu_call *call, const tfu_groups *g, int kind) {
  const tfu_tensor *x = &call->in[1];
  const int64_t packs = g->reduced[0] * (int64_t)tfu_dtype_size(x->dtype) / 16;
  reduce_args a = {.x = x->data,
                   .y = call->out[0].data,
                   .dy = call->in[0].data,
                   .outer = g->kept[0],
                   .count = g->reduced[0],
                   .all = g->reduced[0],
                   .kind = kind,
                   .negated = kind == TFU_REDUCE_MIN,
                   .from = x->dtype};
  /* Some lanes even for a short row, so that they read its sectors of memory together. */
  while (TFU_BATCH << a.lane_bits < a.count || (a.lane_bits < 3 && 1 << a.lane_bits < packs)) a.lane_bits++;
  tfu_grid grid = {.threads = 1 << a.lane_bits > THREADS ? 1u << a.lane_bits : THREADS};
  grid.x = blocks(a.outer, grid.threads >> a.lane_bits);
  return tfu_launch(call, &held, tfu_reduce_variant(kind, 1), x->dtype, grid, &a);
}

static void list_groups(reduce_grad_args *a, const tfu_groups *g) {
  for (int i = g->n; i >= 0; i--) {
    if (i < g->n || a->kept_last) a->size[a->groups++] = g->kept[i];
    if (i > 0) a->size[a->groups++] = g->reduced[i - 1];
  }
}

/* The columns of one middle axis dealt out to blocks, `rows` rows of a column for each thread. */
static tfu_grid deal_columns(reduce_grad_args *a, const tfu_groups *g, int64_t each, int rows) {
  a->outer = g->kept[0], a->count = g->reduced[0], a->inner = g->kept[1];
  while (a->lane_bits < 8 && a->inner / each << a->lane_bits < THREADS) a->lane_bits++;
  a->share = (int64_t)rows << a->lane_bits;
  if (a->share < divide_up(a->count, 32768)) a->share = divide_up(a->count, 32768); /* parts, at most */
  return (tfu_grid){.x = blocks(a->outer * a->inner / each, THREADS >> a->lane_bits),
                    .y = blocks(a->count, a->share),
                    .threads = THREADS};
}

/* The gradient of a sum. */
static tfu_code spread(tfu_call *call, const tfu_groups *g) {
  const tfu_tensor *dy = &call->in[0], *dx = &call->out[0];
  const int64_t each = 16 / (int64_t)tfu_dtype_size(dx->dtype);
  const int rows = g->n > 0 && g->kept[g->n] == 1;
  reduce_grad_args a = {
      .dx = dx->data, .x = dy->data, .n = tfu_count(&dx->shape), .kept_last = !rows, .from = dx->dtype};
  if (g->n == 1 && !rows && tfu_real(dx->dtype) == TFU_F32 && g->kept[1] % each == 0 && (uintptr_t)dx->data % 16 == 0 &&
      (uintptr_t)dy->data % 16 == 0)
    return tfu_launch(call, &spread_columns, 0, dx->dtype, deal_columns(&a, g, each, spread_rows()), &a);
  list_groups(&a, g);
  const tfu_grid grid = {.x = blocks(a.n, THREADS), .threads = THREADS};
  return tfu_launch(call, &spread_any, 0, dx->dtype, grid, &a);
}

tfu_code tfu_reduce_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *x = &call->in[1];
  const tfu_dtype real = tfu_real(x->dtype);
  unsigned reduced;
  const tfu_shape *shape = &call->out[0].shape;
  TFU_TRY(tfu_reduced_axes(shape, call->attr[1].i, &reduced, call->err));
  const tfu_groups g = tfu_groups_of(shape, reduced);
  const int kind = (int)call->attr[0].i, variant = tfu_reduce_variant(kind == TFU_REDUCE_L2 ? TFU_REDUCE_STD : kind, 1);
  if (kind == TFU_REDUCE_SUM) return spread(call, &g);
  const int64_t each = 16 / (int64_t)tfu_dtype_size(x->dtype);
  const int packs = real == TFU_F32 && kind != TFU_REDUCE_PROD && (uintptr_t)x->data % 16 == 0 &&
                    (uintptr_t)call->out[0].data % 16 == 0;
  const int rows = g.n > 0 && g.kept[g.n] == 1; /* whose elements lie beside each other */
  const int whole = packs && g.n > 0 && (rows ? g.reduced[g.n - 1] : g.kept[g.n]) % each == 0;
  if (whole && rows && g.n == 1 && g.reduced[0] <= TFU_BATCH * TFU_HELD_THREADS) return whole_rows(call, &g, kind);

  reduce_pairs_args p = {.dy = dy->data, .n = tfu_count(&dy->shape), .all = 1, .kind = kind, .from = x->dtype};
  for (int i = 0; i < g.n; i++) p.all *= g.reduced[i];
  if (kind == TFU_REDUCE_L2) p.y = tfu_given_data(&call->in[2]);
  if (!p.y) TFU_TRY(tfu_reduce_launch(call, x, &g, kind, kind == TFU_REDUCE_MIN, NULL, &p.states));
  TFU_TRY(tfu_scratch(call, 2 * (size_t)p.n * tfu_dtype_size(real), &p.pairs));
  tfu_grid grid = {.x = blocks(p.n, THREADS), .threads = THREADS};
  TFU_TRY(tfu_launch(call, &pairs, 0, TFU_F32, grid, &p));

  reduce_grad_args a = {.dx = call->out[0].data,
                        .x = x->data,
                        .pairs = p.pairs,
                        .n = tfu_count(&x->shape),
                        .kept_last = !rows,
                        .kind = kind,
                        .from = x->dtype};
  list_groups(&a, &g);
  if (whole && rows) {
    grid.x = blocks(a.n, AHEAD * THREADS * each);
    return tfu_launch(call, &by_rows, variant, x->dtype, grid, &a);
  }
  if (whole && g.n == 1) {
    grid = deal_columns(&a, &g, each, slope_rows());
    return tfu_launch(call, &by_columns, variant, x->dtype, grid, &a);
  }
  grid.x = blocks(a.n, THREADS);
  return tfu_launch(call, &gradient, 0, real, grid, &a);
}
