/* attention_own.c - launches our own attention kernels: on tensor cores where there are tiles of the head's size and a
 * GPU of compute capability 8.0, else one warp per row. */
#include "kernels/attention/attention_own.h"

#include <limits.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/walk.h"
#include "ops/attention/attention.h"

enum { OLDEST_TILES = 80 };
/* Float32 with no more keys than this is left to attention_any.cu: tensor cores' products of float round a bit or two
 * more than float does, which shows where a few keys are all. */
enum { FEW_KEYS = 16 };

static const struct block {
  int kind, size, dim, warps, blocks, steps, stages;
} blocks[] = {
#define X(kind, size, dim, warps, blocks, steps, stages) {kind, size, dim, warps, blocks, steps, stages},
    TFU_ATTENTION_BLOCKS(X)
#undef X
};

static int rows_of(const struct block *b) { return 16 * b->blocks * b->warps; }

/* Bytes of shared memory: rows that stay and that pass by, the numbers of queries, and what dropout takes. */
static unsigned shared_of(const struct block *b, int drops) {
  const int own = 16 * b->blocks, pass = 2 * b->stages * b->steps;
  const int rows = b->kind == TFU_DECODE         ? own + b->warps * pass
                   : b->kind <= TFU_FORWARD_FULL ? rows_of(b) + pass
                                                 : 2 * rows_of(b) + pass;
  const int numbers = b->kind == TFU_BY_KEY ? 8 * b->stages * b->steps : 0;
  const int run = b->kind == TFU_BY_KEY ? own : b->steps, runs = b->kind == TFU_BY_KEY ? b->steps : own;
  return (unsigned)(rows * b->dim * b->size + numbers + (drops ? b->warps * TFU_DROP_BYTES(runs, run) : 0));
}

/* The block of this kind for the problem, or NULL where there is none: the smallest tiles that hold a head. */
static const struct block *block_for(int kind, const attention_args *a, tfu_dtype dtype, const tfu_device *device) {
  const int dim = a->head_dim > a->value_dim ? a->head_dim : a->value_dim, size = (int)tfu_dtype_size(dtype);
  const int64_t row = (int64_t)a->heads * dim; /* key's are no longer */
  if (device->capability < OLDEST_TILES || row > INT_MAX) return NULL;
  if (dtype == TFU_F32 && a->keys <= FEW_KEYS) return NULL;
  for (int i = 0; i < TFU_COUNT(blocks); i++)
    if (blocks[i].kind == kind && blocks[i].size == size && blocks[i].dim >= dim)
      return (int)shared_of(&blocks[i], 1) <= tfu_dynamic_shared(device) ? &blocks[i] : NULL;
  return NULL;
}

static int is_aligned(const attention_args *a, tfu_dtype dtype) {
  const void *all[] = {a->query, a->key, a->value, a->output, a->doutput, a->dquery, a->dkey, a->dvalue};
  const int size = (int)tfu_dtype_size(dtype);
  for (int i = 0; i < TFU_COUNT(all); i++)
    if ((uintptr_t)all[i] % 16) return 0;
  return a->head_dim * size % 16 == 0 && a->value_dim * size % 16 == 0;
}

/* Scores that need more than the plain kernels know. */
static int is_special(const attention_args *a) {
  return a->soft_cap > 0 || a->bias || a->mask || a->seed || a->table || !(a->scale > 0);
}

static int64_t at_least_one(int64_t n) { return n > 0 ? n : 1; }
/* `grid` says all but how many blocks there are along x. */
static tfu_code launch(tfu_call *call, tfu_kernel *kernel, int variant, tfu_dtype dtype, int64_t count, tfu_grid grid,
                       attention_work *w) {
  TFU_REQUIRE(call->err, count <= INT_MAX, "too many heads and sequences: the kernel would have %lld blocks",
              (long long)count);
  if (count == 0) return TFU_OK;
  grid.x = (unsigned)count;
  return tfu_launch(call, kernel, variant, dtype, grid, w);
}

/* The threads of a block and its memory. */
static tfu_grid grid_of(const struct block *b, const attention_args *a) {
  return (tfu_grid){.threads = 32 * (unsigned)b->warps, .shared = shared_of(b, a->seed != NULL)};
}

/* Tiles of the queries' or the keys' heads: see place_of(). */
static tfu_code launch_tiles(tfu_call *call, tfu_kernel *kernel, int variant, tfu_dtype dtype, const struct block *b,
                             int steps, int heads, attention_work *w) {
  const attention_args *a = &w->a;
  const int64_t tiles = a->ragged ? (int64_t)steps / rows_of(b) + a->batch + 1 : divide_up(steps, rows_of(b));
  const int64_t of_head = a->ragged ? tiles : tiles * a->batch;
  TFU_REQUIRE(call->err, tiles <= INT_MAX, "too many sequences: %d", a->batch);
  w->tiles = (int)tiles;
  tfu_grid grid = grid_of(b, a);
  if (b->kind == TFU_BY_KEY && b->dim > TFU_MOST_BOTH) grid.y = 2;
  return launch(call, kernel, variant, dtype, of_head * heads, grid, w);
}

/* ---- any ---- */

TFU_MODULE(attention_any);
static tfu_kernel any_forward = {.module = &module, .name = "any_forward"};
static tfu_kernel numbers = {.module = &module, .name = "numbers"};
static tfu_kernel any_by_query = {.module = &module, .name = "any_by_query"};
static tfu_kernel any_by_key = {.module = &module, .name = "any_by_key"};
static tfu_kernel any_by_bias = {.module = &module, .name = "any_by_bias"};

enum { WARPS = TFU_THREADS / 32, MOST_BLOCKS = 1 << 20 };

/* A warp per row; more rows than a grid is wide take turns. */
static tfu_code launch_rows(tfu_call *call, tfu_kernel *kernel, tfu_dtype dtype, int64_t rows, attention_work *w) {
  const int64_t count = divide_up(rows, WARPS);
  return launch(call, kernel, 0, dtype, count < MOST_BLOCKS ? count : MOST_BLOCKS, (tfu_grid){.threads = TFU_THREADS},
                w);
}

static int64_t query_rows(const attention_args *a) {
  return (a->ragged ? 1 : (int64_t)a->batch) * a->queries * a->heads;
}
static int64_t key_rows(const attention_args *a) {
  return (a->ragged ? 1 : (int64_t)a->batch) * a->keys * a->key_heads;
}

/* ---- few queries ---- */

TFU_MODULE_AS(decode_module, attention_decode);
static const char *const decode_variants[] = {"64", "128", "256"};
static tfu_kernel decode = {.module = &decode_module, .name = "decode", .variants = decode_variants};
static tfu_kernel join_parts = {.module = &decode_module, .name = "join_parts"};

/* DECODE_ROWS: of one product, queries times the heads that share a key head. DECODE_TILES: up to so many products are
 * worth it, though each reads the keys again, if there are too few heads to fill the GPU otherwise. SPLIT_KEYS: fewer
 * are not worth a block of their own. */
enum { DECODE_ROWS = 16, DECODE_TILES = 4, DECODE_BLOCKS = 2 /* on a multiprocessor */, SPLIT_KEYS = 128 };

static int is_few(const tfu_call *call, const attention_args *a, const tfu_device *device) {
  if (a->ragged || a->key_heads == 0) return 0;
  const int64_t rows = (int64_t)a->queries * (a->heads / a->key_heads);
  if (call->invariant) return a->queries == 1 && rows <= DECODE_ROWS * DECODE_TILES;
  if (rows <= DECODE_ROWS) return 1;
  return rows <= DECODE_ROWS * DECODE_TILES && (int64_t)a->batch * a->heads < device->multiprocessors &&
         a->keys >= 4 * SPLIT_KEYS;
}

static int variant_of(const struct block *b) { return b->dim == 64 ? 0 : b->dim == 128 ? 1 : 2; }

/* Deals the work out, and gives the bytes of what the splits leave to be joined. Where the call is invariant, how a
 * sequence's keys are split depends on its own length alone; splits without keys change nothing. */
static size_t plan_decode(const tfu_call *call, const tfu_device *device, attention_work *w) {
  const attention_args *a = &w->a;
  const int64_t rows = (int64_t)a->queries * (a->heads / a->key_heads), tiles = divide_up(rows, DECODE_ROWS);
  const int64_t each = tiles * a->key_heads * a->batch, most = at_least_one(divide_up(a->keys, SPLIT_KEYS));
  const int64_t splits = at_least_one((int64_t)device->multiprocessors * DECODE_BLOCKS / at_least_one(each));
  w->tiles = (int)tiles;
  w->splits = (int)(splits < most ? splits : most);
  if (w->splits > TFU_MOST_SPLITS) w->splits = TFU_MOST_SPLITS;
  if (call->invariant) w->splits = TFU_INVARIANT_SPLITS;
  return (size_t)(query_rows(a) * w->splits * (a->value_dim + 2)) * sizeof(float);
}

static tfu_code launch_decode(tfu_call *call, tfu_dtype dtype, const struct block *b, size_t bytes, attention_work *w) {
  const attention_args *a = &w->a;
  const int64_t each = w->tiles * (int64_t)a->key_heads * a->batch;
  if (bytes == 0) return TFU_OK;
  TFU_SCRATCH(call, bytes / sizeof *w->parts, w->parts);
  TFU_TRY(launch(call, &decode, variant_of(b), dtype, each * w->splits, grid_of(b, a), w));
  return launch(call, &join_parts, 0, dtype, query_rows(a), (tfu_grid){.threads = TFU_JOIN_THREADS}, w);
}

/* ---- forward ---- */

TFU_MODULE_AS(forward_module, attention);
static const char *const tile_variants[] = {"64", "128", "64_full", "128_full", "256_full"};
static tfu_kernel forward = {.module = &forward_module, .name = "forward", .variants = tile_variants};

tfu_code tfu_attention_own(tfu_call *call, const attention_args *a, tfu_dtype dtype) {
  attention_work w = {.a = *a, .aligned = is_aligned(a, dtype)};
  const struct block *b;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  if (is_few(call, a, &device) && (b = block_for(TFU_DECODE, a, dtype, &device))) {
    const size_t bytes = plan_decode(call, &device, &w);
    if (call->invariant || tfu_has_scratch(call, bytes)) return launch_decode(call, dtype, b, bytes, &w);
    w.tiles = w.splits = 0;
  }
  if (!is_special(a) && (b = block_for(TFU_FORWARD, a, dtype, &device)))
    return launch_tiles(call, &forward, variant_of(b), dtype, b, a->queries, a->heads, &w);
  if ((b = block_for(TFU_FORWARD_FULL, a, dtype, &device)))
    return launch_tiles(call, &forward, 2 + variant_of(b), dtype, b, a->queries, a->heads, &w);
  return launch_rows(call, &any_forward, dtype, query_rows(a), &w);
}

/* ---- gradient ---- */

TFU_MODULE_AS(grad_module, attention_grad);
static tfu_kernel by_query = {.module = &grad_module, .name = "by_query", .variants = tile_variants};
static tfu_kernel by_key = {.module = &grad_module, .name = "by_key", .variants = tile_variants};

static tfu_code gradients(tfu_call *call, tfu_dtype dtype, const tfu_device *device, attention_work *w) {
  const attention_args *a = &w->a;
  const struct block *q = block_for(TFU_BY_QUERY, a, dtype, device), *k = block_for(TFU_BY_KEY, a, dtype, device);
  if (!q || !k) {
    TFU_TRY(launch_rows(call, &any_by_query, dtype, query_rows(a), w));
    return launch_rows(call, &any_by_key, dtype, key_rows(a), w);
  }
  const int full = is_special(a) || q->size != 2 || q->dim > 128, variant = (full ? 2 : 0) + variant_of(q);
  TFU_TRY(launch_tiles(call, &by_query, variant, dtype, q, a->queries, a->heads, w));
  return launch_tiles(call, &by_key, variant, dtype, k, a->keys, a->key_heads, w);
}

TFU_MODULE_AS(bias_module, attention_bias_grad);
static tfu_kernel by_bias = {.module = &bias_module, .name = "by_bias", .variants = decode_variants};

static tfu_code bias_gradient(tfu_call *call, tfu_dtype dtype, const tfu_device *device, attention_work *w) {
  const attention_args *a = &w->a;
  const struct block *b = block_for(TFU_BY_QUERY, a, dtype, device);
  /* What bias has of each axis: numbers, or tiles of them. */
  const int64_t size[4] = {a->batch, a->heads, b ? divide_up(a->queries, rows_of(b)) : a->queries,
                           b ? divide_up(a->keys, b->steps) : a->keys};
  int64_t count = 1;
  for (int d = 0; d < 4; d++) count *= a->bias_step[d] ? size[d] : 1;
  if (b) return launch(call, &by_bias, variant_of(b), dtype, count, grid_of(b, a), w);
  return launch_rows(call, &any_by_bias, dtype, count, w);
}

tfu_code tfu_attention_own_grad(tfu_call *call, const attention_args *a, tfu_dtype dtype) {
  attention_work w = {.a = *a, .aligned = is_aligned(a, dtype)};
  const size_t real = tfu_dtype_size(tfu_real(dtype));
  tfu_device device;
  void *rows = NULL;
  TFU_TRY(tfu_device_now(&device, call->err));
  if (query_rows(a)) TFU_TRY(tfu_scratch(call, (size_t)query_rows(a) * 2 * real, &rows));
  w.rows = rows;
  TFU_TRY(launch_rows(call, &numbers, dtype, query_rows(a), &w));
  TFU_TRY(gradients(call, dtype, &device, &w));
  return a->dbias ? bias_gradient(call, dtype, &device, &w) : TFU_OK;
}
