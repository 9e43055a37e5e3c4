/* What sorting by digits needs of the host, and the ops Sort, Argsort and Unsort. */
#include "kernels/sorting/sort.h"

#include "kernels/core/gpu/choice.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/sorting/order.h"
#include "kernels/sorting/radix.h"

TFU_MODULE(sort);
static tfu_kernel radix_short = {.module = &module, .name = "radix_short"};
static tfu_kernel radix_count = {.module = &module, .name = "radix_count"};
static tfu_kernel radix_scan = {.module = &module, .name = "radix_scan"};
static tfu_kernel radix_rows = {.module = &module, .name = "radix_rows"};
static tfu_kernel radix_deal = {.module = &module, .name = "radix_deal"};
static tfu_kernel move = {.module = &module, .name = "move"};

/* A row of so many keys or fewer is sorted by counting, which takes a step for each pair of keys. */
TFU_CHOICE(short_cols, 128, 1, TFU_THREADS);
/* Keys of a thread where a block holds a row, and the warps and keys of a thread of a block that deals a tile out, and
 * how many of these there are with places: more keys make longer runs that go to one pile, fewer leave more blocks. */
TFU_CHOICE(row_items, 16, 4, 32);
TFU_CHOICE(deal_warps, 16, 2, TFU_RADIX_THREADS / 32);
TFU_CHOICE(deal_items, 16, 2, 32);
TFU_CHOICE(deal_items_with_places, 12, 2, 32);

enum { RESERVED = 4096, MOST_HELD = 1 << 16, WARP_COUNTS = TFU_PILES * sizeof(uint32_t) };

/* Bytes of shared memory for blocks of so many warps, whose keys take so many bytes with what comes with them. */
static size_t shared_of(int64_t warps, int items, size_t bytes) {
  return (size_t)warps * (32 * (size_t)items * bytes + WARP_COUNTS) + 2 * WARP_COUNTS;
}

static tfu_code scan(tfu_call *call, radix_args *a, int64_t lists) {
  const tfu_grid grid = {.x = (unsigned)lists, .threads = a->tiles > 256 ? TFU_THREADS : 32};
  return tfu_launch(call, &radix_scan, 0, TFU_F32, grid, a);
}

tfu_code tfu_count_before(tfu_call *call, uint32_t *counts, int64_t n, void *sum) {
  radix_args a = {.counts = counts, .totals = sum, .tiles = (unsigned)n};
  return scan(call, &a, 1);
}

static tfu_code one_digit(tfu_call *call, radix_args *a, tfu_dtype tag, int warps, size_t shared) {
  const tfu_grid tiles = {.x = (unsigned)(a->rows * a->tiles), .threads = 32 * (unsigned)warps};
  tfu_grid count = tiles, deal = tiles;
  count.shared = (unsigned)warps * WARP_COUNTS;
  deal.shared = (unsigned)shared;
  TFU_TRY(tfu_launch(call, &radix_count, 0, tag, count, a));
  TFU_TRY(scan(call, a, a->rows * TFU_PILES));
  return tfu_launch(call, &radix_deal, 0, tag, deal, a);
}

/* The last digit goes to where results are wanted, and those before it there and to scratch in turn. */
static tfu_code long_rows(tfu_call *call, const radix_job *job, radix_args a, tfu_dtype tag, int warps, size_t shared) {
  const size_t key = tag == TFU_F64 ? 8 : 4, n = (size_t)(a.rows * a.cols);
  const int digits = (a.end - a.shift + 7) / 8, own = job->sorted && (job->keys || !a.narrow);
  void *keys[2] = {job->sorted, NULL}, *places[2] = {job->places, NULL}, *counts, *totals;
  const int64_t tiles = (a.cols + 32 * warps * a.items - 1) / (32 * warps * a.items);
  a.tiles = (unsigned)tiles;
  TFU_REQUIRE(call->err, a.rows * tiles <= INT32_MAX && a.rows * TFU_PILES <= INT32_MAX,
              "%lld rows of %lld values are too many to sort: split them", (long long)a.rows, (long long)a.cols);
  if (digits > 1) TFU_TRY(tfu_scratch(call, n * key, &keys[1]));
  if (digits > 2 && !own) TFU_TRY(tfu_scratch(call, n * key, &keys[0]));
  if (digits > 1 && job->places) TFU_TRY(tfu_scratch(call, n * sizeof(uint32_t), &places[1]));
  TFU_TRY(tfu_scratch(call, (size_t)(a.rows * tiles) * WARP_COUNTS, &counts));
  TFU_TRY(tfu_scratch(call, (size_t)a.rows * WARP_COUNTS, &totals));
  a.counts = counts;
  a.totals = totals;
  for (int d = 0; d < digits; d++, a.shift += 8) {
    const int to = (digits - 1 - d) % 2, last = d == digits - 1;
    a.decode = last && !job->keys;
    a.keys = last ? job->sorted : keys[to];
    a.places = places[to];
    TFU_TRY(one_digit(call, &a, tag, warps, shared));
    a.from = a.keys;
    a.from_order = tfu_order_of_keys(key);
    a.from_narrow = 0;
    a.from_places = a.places;
  }
  return TFU_OK;
}

tfu_code tfu_radix_gpu(tfu_call *call, const radix_job *job) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const size_t size = tfu_dtype_size(job->dtype), key = size == 8 ? 8 : 4,
               room = (size_t)device.block_shared - RESERVED;
  const tfu_dtype tag = size == 8 ? TFU_F64 : TFU_F32;
  const int places = job->places != NULL;
  radix_args a = {.from = job->from,
                  .keys = job->sorted,
                  .places = (uint32_t *)job->places,
                  .from_order = job->order,
                  .order = job->order,
                  .rows = job->rows,
                  .cols = job->cols,
                  .from_narrow = size == 2,
                  .decode = !job->keys,
                  .narrow = size == 2,
                  .shift = size == 2 ? 16 : 0,
                  .end = job->bits ? job->bits : 8 * (int)key};
  TFU_REQUIRE(call->err, a.cols <= (places ? INT32_MAX : UINT32_MAX), "a row must have less than 2^%d values, got %lld",
              places ? 31 : 32, (long long)a.cols);
  if (a.cols <= short_cols()) {
    a.at_a_time = TFU_THREADS / (int)a.cols;
    const int64_t blocks = (a.rows + a.at_a_time - 1) / a.at_a_time;
    const tfu_grid grid = {.x = (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX),
                           .threads = TFU_THREADS,
                           .shared = (unsigned)(TFU_THREADS * (2 * key + sizeof(uint32_t)))};
    return tfu_launch(call, &radix_short, 0, tag, grid, &a);
  }
  /* A row in shared memory: twice its keys, and twice their places of 16 bits. */
  int64_t warps = (a.cols + 32 * row_items() - 1) / (32 * row_items());
  if (warps > TFU_RADIX_THREADS / 32) warps = TFU_RADIX_THREADS / 32;
  a.items = (int)(a.cols < MOST_HELD ? (a.cols + 32 * warps - 1) / (32 * warps) : 0);
  const size_t held = shared_of(warps, a.items, 2 * key + (places ? 2 * sizeof(uint16_t) : 0));
  if (a.items && held <= room) {
    const tfu_grid grid = {.x = (unsigned)(a.rows < INT32_MAX ? a.rows : INT32_MAX),
                           .threads = 32 * (unsigned)warps,
                           .shared = (unsigned)held};
    return tfu_launch(call, &radix_rows, 0, tag, grid, &a);
  }
  const size_t bytes = 2 * key + (places ? sizeof(uint32_t) : 0);
  a.items = places ? deal_items_with_places() : deal_items();
  if (key == 8) a.items /= 2;
  warps = deal_warps();
  while (warps > 1 && shared_of(warps, a.items, bytes) > room) warps--;
  return long_rows(call, job, a, tag, (int)warps, shared_of(warps, a.items, bytes));
}

/* ---- numbers that are moved ---- */

TFU_CHOICE(move_blocks, 32, 1, 256); /* per multiprocessor */

tfu_code tfu_move_gpu(tfu_call *call, tfu_dtype dtype, move_args a) {
  tfu_device device;
  if (!a.n) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t wanted = (a.n + TFU_THREADS - 1) / TFU_THREADS, most = (int64_t)device.multiprocessors * move_blocks();
  const tfu_grid grid = {.x = (unsigned)(wanted < most ? wanted : most), .threads = TFU_THREADS};
  a.size = (int)tfu_dtype_size(dtype);
  return tfu_launch(call, &move, 0, TFU_F32, grid, &a);
}

/* ---- ops ---- */

static tfu_code sort(tfu_call *call, void *sorted, int32_t *places) {
  const tfu_tensor *x = &call->in[0];
  const radix_job job = {.from = x->data,
                         .dtype = x->dtype,
                         .order = tfu_wide_order_of(x->dtype, call->attr[0].b, places != NULL),
                         .rows = tfu_rows(&x->shape),
                         .cols = tfu_cols(&x->shape),
                         .sorted = sorted,
                         .places = places};
  return tfu_radix_gpu(call, &job);
}

tfu_code tfu_sort_gpu(tfu_call *call) { return sort(call, call->out[0].data, NULL); }
tfu_code tfu_argsort_gpu(tfu_call *call) { return sort(call, NULL, call->out[0].data); }

tfu_code tfu_unsort_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *dx = &call->out[0];
  const int64_t k = tfu_cols(&dy->shape), cols = tfu_cols(&dx->shape);
  if (k < cols) TFU_TRY(tfu_clear(call, dx->data, (size_t)tfu_count(&dx->shape) * tfu_dtype_size(dx->dtype)));
  return tfu_move_gpu(call, dy->dtype,
                      (move_args){.put = 1,
                                  .from = dy->data,
                                  .to = dx->data,
                                  .places = call->in[1].data,
                                  .n = tfu_count(&dy->shape),
                                  .k = k,
                                  .cols = cols,
                                  .stride = k});
}
