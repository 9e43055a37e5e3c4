/* What sorting by digits needs of the host, and the ops Sort, Argsort and Unsort. */
#include "kernels/sorting/sort.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/sorting/order.h"
#include "kernels/sorting/radix.h"

TFU_MODULE(sort);
static tfu_kernel radix_short = {.module = &module, .name = "radix_short", .keys = tfu_bits};
/* Keys of a lane of a warp; a thread of a block has TFU_NETWORK_ITEMS, which is twice as many as the last of these. */
enum { IN_BLOCK = 3 };
static const char *const items[] = {"4", "8", "16", "block"};
static tfu_kernel sort_network = {.module = &module, .name = "sort_network", .variants = items, .keys = tfu_bits};
static tfu_kernel radix_rows = {.module = &module, .name = "radix_rows", .keys = tfu_bits};
static tfu_kernel radix_totals = {.module = &module, .name = "radix_totals", .keys = tfu_bits};
static tfu_kernel radix_starts = {.module = &module, .name = "radix_starts", .keys = tfu_any};
static tfu_kernel radix_sweep = {.module = &module, .name = "radix_sweep", .keys = tfu_bits};
static tfu_kernel count_before = {.module = &module, .name = "count_before", .keys = tfu_any};
static tfu_kernel move = {.module = &module, .name = "move", .keys = tfu_any};
static tfu_kernel put_rows = {.module = &module, .name = "put_rows", .keys = tfu_any};

/* A row of so many keys or fewer is sorted by counting, which takes a step for each pair of keys. */
TFU_TUNABLE(short_cols, 32, 1, TFU_THREADS);
TFU_TUNABLE(network_cols, TFU_NETWORK_BLOCK *TFU_NETWORK_ITEMS, 1, TFU_NETWORK_BLOCK *TFU_NETWORK_ITEMS);
TFU_TUNABLE(row_items, 16, 4, 32);   /* keys of a thread where a block holds a row              */
TFU_TUNABLE(totals_blocks, 3, 1, 4); /* per multiprocessor, where the digits of long rows are counted */

enum { MOST_HELD = 1 << 16, PILES_BYTES = TFU_BUCKETS * sizeof(uint32_t) };

/* Bytes of shared memory for blocks of so many warps, whose keys take so many bytes with what comes with them. */
static size_t shared_of(int64_t warps, int items, size_t bytes) {
  return (size_t)warps * (32 * (size_t)items * bytes + PILES_BYTES) + 2 * PILES_BYTES;
}

tfu_code tfu_count_before(tfu_call *call, uint32_t *counts, int64_t n, void *sum) {
  before_args a = {.counts = counts, .sum = sum, .n = n};
  return tfu_launch(call, &count_before, 0, 0, (tfu_grid){.threads = TFU_THREADS}, &a);
}

/* The last digit goes to where results are wanted, and those before it there and to scratch in turn. Tiles say counts
 * of less than 2^30, so longer rows are done in portions, one after the other. */
static tfu_code long_rows(tfu_call *call, const radix_job *job, const radix_args *r, const tfu_device *device) {
  const size_t key = tfu_dtype_size(job->dtype) == 8 ? 8 : 4, n = (size_t)(r->rows * r->cols);
  const int bits = tfu_bits_of(key);
  const int64_t tile = TFU_SWEEP_THREADS * TFU_SWEEP_BYTES / (int64_t)key, tiles = divide_up(r->cols, tile),
                most = ((1 << 30) - 1) / tile, portions = divide_up(tiles, most);
  const int digits = (r->end - r->shift + 7) / 8, own = job->sorted && (job->keys || !r->of_16_bits);
  const int64_t words = r->rows * digits * TFU_BUCKETS,
                share = divide_up((int64_t)device->multiprocessors * totals_blocks(), r->rows);
  void *scratch_keys = NULL, *own_keys = job->sorted, *scratch_places = NULL, *starts, *said;
  TFU_REQUIRE(call->err, r->rows * tiles <= INT32_MAX, "%lld rows of %lld values are too many to sort: split them",
              (long long)r->rows, (long long)r->cols);
  if (digits > 1) TFU_TRY(tfu_scratch(call, n * key, &scratch_keys));
  if (digits > 2 && !own) TFU_TRY(tfu_scratch(call, n * key, &own_keys));
  if (digits > 1 && job->indices) TFU_TRY(tfu_scratch(call, n * sizeof(uint32_t), &scratch_places));
  const size_t counters = (size_t)(portions * words + r->rows) * sizeof(uint32_t);
  const size_t of_tiles = (size_t)(r->rows * (tiles < most ? tiles : most)) * PILES_BYTES;
  TFU_TRY(tfu_scratch(call, counters, &starts));
  TFU_TRY(tfu_scratch(call, of_tiles + sizeof(uint32_t), &said)); /* what tiles say, then their tickets */
  TFU_TRY(tfu_clear(call, starts, counters));
  sweep_args a = {.from = r->from,
                  .from_indices = r->carried,
                  .halves = job->carried_halves,
                  .keys = {own_keys, scratch_keys},
                  .indices = {r->indices, scratch_places},
                  .results = job->sorted,
                  .starts = starts,
                  .said = said,
                  .tickets = (uint32_t *)((char *)said + of_tiles),
                  .moving = (uint32_t *)starts + portions * words,
                  .order = r->order,
                  .rows = r->rows,
                  .cols = r->cols,
                  .chunks = (unsigned)(tiles < share ? tiles : share),
                  .of_16_bits = r->of_16_bits,
                  .decode = r->decode,
                  .with_indices = job->indices != NULL,
                  .digits = digits,
                  .shift = r->shift};
  const tfu_grid totals = {.x = (unsigned)(a.rows * a.chunks),
                           .threads = TFU_SWEEP_THREADS,
                           .shared = 32 * TFU_BUCKETS * (unsigned)sizeof(uint32_t)};
  TFU_TRY(tfu_launch(call, &radix_totals, 0, bits, totals, &a));
  TFU_TRY(tfu_launch(call, &radix_starts, 0, 0, (tfu_grid){.x = (unsigned)a.rows, .threads = TFU_THREADS}, &a));
  for (a.digit = 0; a.digit < digits; a.digit++, a.shift += 8)
    for (int64_t p = 0; p < portions; p++) {
      a.first_tile = (unsigned)(p * most);
      a.tiles = (unsigned)(tiles - p * most < most ? tiles - p * most : most);
      a.starts = (uint32_t *)starts + p * words;
      a.next_starts = p + 1 < portions ? a.starts + words : NULL;
      const tfu_grid grid = {
          .x = (unsigned)(a.rows * a.tiles),
          .threads = TFU_SWEEP_THREADS,
          .shared = TFU_SWEEP_THREADS * TFU_SWEEP_BYTES + (TFU_SWEEP_THREADS / 32 + 1) * PILES_BYTES};
      TFU_TRY(tfu_clear(call, said, of_tiles + sizeof(uint32_t)));
      TFU_TRY(tfu_launch(call, &radix_sweep, 0, bits, grid, &a));
    }
  return TFU_OK;
}

tfu_code tfu_radix_gpu(tfu_call *call, const radix_job *job) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const size_t size = tfu_dtype_size(job->dtype), key = size == 8 ? 8 : 4, room = (size_t)tfu_dynamic_shared(&device);
  const int bits = tfu_bits_of(key);
  const int indices = job->indices != NULL;
  radix_args a = {.from = job->from,
                  .keys = job->sorted,
                  .indices = (uint32_t *)job->indices,
                  .carried = job->carried,
                  .order = job->order,
                  .rows = job->rows,
                  .cols = job->cols,
                  .decode = !job->keys,
                  .of_16_bits = size == 2,
                  .shift = size == 2 ? 16 : job->skipped,
                  .end = job->bits ? job->bits : 8 * (int)key};
  TFU_REQUIRE(call->err, a.cols <= (indices ? INT32_MAX : UINT32_MAX),
              "a row must have less than 2^%d values, got %lld", indices ? 31 : 32, (long long)a.cols);
  if (a.cols <= short_cols()) {
    a.at_a_time = TFU_THREADS / (int)a.cols;
    const int64_t blocks = divide_up(a.rows, a.at_a_time);
    const tfu_grid grid = {.x = (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX),
                           .threads = TFU_THREADS,
                           .shared = (unsigned)(TFU_THREADS * (2 * key + sizeof(uint32_t)))};
    return tfu_launch(call, &radix_short, 0, bits, grid, &a);
  }
  /* In registers: words are keys, or keys with indices of half their size. */
  const size_t word = key == 8 || (indices && size == 4) ? 8 : 4;
  int variant = 0, threads = TFU_NETWORK_THREADS, each = 4; /* keys of a thread */
  while (variant < IN_BLOCK && a.cols > 32 * each) variant++, each *= 2;
  if (variant == IN_BLOCK)
    for (threads = 32; a.cols > threads * TFU_NETWORK_ITEMS && threads < TFU_NETWORK_BLOCK;) threads *= 2;
  const size_t lines = (size_t)(threads * (each + 1)) * word;
  if (a.cols <= network_cols() && !(indices && key == 8) && lines <= room) {
    const int64_t blocks = variant == IN_BLOCK ? a.rows : (a.rows + threads / 32 - 1) / (threads / 32);
    const tfu_grid grid = {.x = (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX),
                           .threads = (unsigned)threads,
                           .shared = (unsigned)lines};
    return tfu_launch(call, &sort_network, variant, tfu_bits_of(word), grid, &a);
  }
  /* A row in shared memory: twice its keys, and twice their indices of 16 bits. */
  int64_t warps = (a.cols + 32 * row_items() - 1) / (32 * row_items());
  if (warps > TFU_RADIX_THREADS / 32) warps = TFU_RADIX_THREADS / 32;
  a.items = (int)(a.cols < MOST_HELD ? (a.cols + 32 * warps - 1) / (32 * warps) : 0);
  const size_t held = shared_of(warps, a.items, 2 * key + (indices ? 2 * sizeof(uint16_t) : 0));
  if (a.items && held <= room) {
    const tfu_grid grid = {.x = (unsigned)(a.rows < INT32_MAX ? a.rows : INT32_MAX),
                           .threads = 32 * (unsigned)warps,
                           .shared = (unsigned)held};
    return tfu_launch(call, &radix_rows, 0, bits, grid, &a);
  }
  return long_rows(call, job, &a, &device);
}

/* ---- numbers that are moved ---- */

TFU_TUNABLE(put_blocks, 8, 1, 64); /* per multiprocessor, where each has a row */

/* Rows that a block holds are written in order, not scattered. */
static tfu_code put_whole_rows(tfu_call *call, move_args *a) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t rows = a->n / a->k, most = (int64_t)device.multiprocessors * put_blocks();
  const tfu_grid grid = {.x = (unsigned)(rows < most ? rows : most),
                         .threads = TFU_THREADS,
                         .shared = (unsigned)((a->cols * a->size + 3) / 4 * 4)};
  return tfu_launch(call, &put_rows, 0, 0, grid, a);
}

tfu_code tfu_move_gpu(tfu_call *call, tfu_dtype dtype, move_args a) {
  enum { BLOCK = TFU_THREADS * TFU_MOVE_EACH };
  if (!a.n) return TFU_OK;
  a.size = (int)tfu_dtype_size(dtype);
  if (!a.apart) a.apart = a.size;
  const tfu_grid grid = {.x = (unsigned)(divide_up(a.n, BLOCK)), .threads = TFU_THREADS};
  return tfu_launch(call, &move, 0, 0, grid, &a);
}

/* ---- ops ---- */

static tfu_code sort(tfu_call *call, void *sorted, int32_t *indices) {
  const tfu_tensor *x = &call->in[0];
  const radix_job job = {.from = x->data,
                         .dtype = x->dtype,
                         .order = tfu_wide_order_of(x->dtype, call->attr[0].b, indices != NULL),
                         .rows = tfu_rows(&x->shape),
                         .cols = tfu_cols(&x->shape),
                         .sorted = sorted,
                         .indices = indices};
  return tfu_radix_gpu(call, &job);
}

tfu_code tfu_sort_gpu(tfu_call *call) { return sort(call, call->out[0].data, NULL); }
tfu_code tfu_argsort_gpu(tfu_call *call) { return sort(call, NULL, call->out[0].data); }

/* Numbers of a row of so many are put all over more memory than caches hold, where each moves 32 bytes. */
TFU_TUNABLE(scattered, 1 << 22, 1 << 17, 1 << 30);

/* Brings numbers of 2 or 4 bytes, with their indices, into the order of the indices' highest digit: what is read after
 * each other then goes to a 256th of the row. Changes nothing where there is no memory for that. */
static tfu_code bring_near(tfu_call *call, move_args *a) {
  const size_t bytes = (size_t)a->n * sizeof(uint32_t);
  void *indices, *numbers;
  if (a->k > INT32_MAX || !tfu_try_scratch(call, bytes, &indices) || !tfu_try_scratch(call, bytes, &numbers))
    return TFU_OK;
  radix_job job = {.from = a->indices,
                   .dtype = TFU_I32,
                   .order = tfu_order_of_keys(sizeof(uint32_t)),
                   .rows = a->n / a->k,
                   .cols = a->k,
                   .sorted = indices,
                   .keys = 1,
                   .indices = numbers,
                   .carried = a->from,
                   .carried_halves = a->size == 2};
  while (job.bits < 32 && (a->cols - 1) >> job.bits) job.bits++;
  job.skipped = job.bits > 8 ? job.bits - 8 : 0;
  a->indices = indices, a->from = numbers, a->apart = sizeof(uint32_t);
  return tfu_radix_gpu(call, &job);
}

tfu_code tfu_unsort_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *dx = &call->out[0];
  const int size = (int)tfu_dtype_size(dx->dtype);
  move_args a = {.put = 1,
                 .from = dy->data,
                 .to = dx->data,
                 .indices = call->in[1].data,
                 .n = tfu_count(&dy->shape),
                 .k = tfu_cols(&dy->shape),
                 .cols = tfu_cols(&dx->shape),
                 .stride = tfu_cols(&dy->shape),
                 .size = size,
                 .apart = size};
  /* A short row would leave its block idle. */
  if (a.n && a.cols >= TFU_THREADS && a.cols <= MOST_HELD / 2 / size) return put_whole_rows(call, &a);
  if (a.k < a.cols) TFU_TRY(tfu_clear(call, dx->data, (size_t)tfu_count(&dx->shape) * (size_t)size));
  if (a.n && size <= 4 && a.k >= scattered()) TFU_TRY(bring_near(call, &a));
  return tfu_move_gpu(call, dy->dtype, a);
}
