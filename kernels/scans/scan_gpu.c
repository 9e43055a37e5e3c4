#include "kernels/scans/scan.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/layout/transpose.h"

TFU_MODULE(scan);
TFU_MODULE_AS(columns_module, scan_columns);

/* Sums, products and maxima are one kernel for each type; sums of two columns of halves as one have their own. */
enum { PLAIN, LSE, RECURRENCE, TWO };
static const char *const variants[] = {"plain", "lse", "recurrence", "two"};
static tfu_kernel rows = {.module = &module, .name = "scan_rows", .variants = variants};
static tfu_kernel columns = {.module = &columns_module, .name = "scan_columns", .variants = variants};

static int variant_of(int kind) {
  return kind == TFU_SCAN_RECURRENCE ? RECURRENCE : kind == TFU_SCAN_LSE ? LSE : PLAIN;
}

/* Warps of a tile of a long row, of 4 KiB each. Large tiles have fewer totals to wait for, small ones let more blocks
 * read while others wait. */
TFU_TUNABLE(tile_warps, 12, 2, 16);
/* Blocks of columns for each multiprocessor, below which strips are made narrower, and then the axis is cut, which
 * costs another look at memory. */
TFU_TUNABLE(column_blocks, 2, 1, 16);

/* Bytes of a state: of one number or two, in the type that they are computed in. */
static size_t state_size(int kind, tfu_dtype dtype) {
  if (kind == TFU_SCAN_RECURRENCE) return 2 * sizeof(double);
  return tfu_dtype_size(dtype < TFU_FLOATS ? tfu_real(dtype) : dtype) * (kind == TFU_SCAN_LSE ? 2 : 1);
}

static scan_what what_of(const tfu_call *call, const tfu_scanned *s) {
  return (scan_what){.y = call->out[0].data,
                     .x = call->in[0].data,
                     .factor = call->in[1].data,
                     .exclusive = s->exclusive,
                     .reverse = s->reverse};
}

/* Eight bytes of the number that changes nothing. */
static uint64_t nothing(int kind, tfu_dtype dtype) {
  static const uint64_t one[] = {
      [TFU_F32] = 0x3f8000003f800000, [TFU_F16] = 0x3c003c003c003c00, [TFU_BF16] = 0x3f803f803f803f80,
      [TFU_F64] = 0x3ff0000000000000, [TFU_I32] = 0x0000000100000001, [TFU_I64] = 1};
  static const uint64_t lowest[] = {
      [TFU_F32] = 0xff800000ff800000, [TFU_F16] = 0xfc00fc00fc00fc00, [TFU_BF16] = 0xff80ff80ff80ff80,
      [TFU_F64] = 0xfff0000000000000, [TFU_I32] = 0x8000000080000000, [TFU_I64] = 0x8000000000000000};
  return kind == TFU_SCAN_PROD ? one[dtype] : kind == TFU_SCAN_MAX || kind == TFU_SCAN_LSE ? lowest[dtype] : 0;
}

static tfu_code scan_rows(tfu_call *call, const tfu_scanned *s) {
  const tfu_dtype dtype = call->in[0].dtype;
  const int64_t size = (int64_t)tfu_dtype_size(dtype), count = s->outer, bytes = s->length * size;
  const scan_what what = what_of(call, s);
  const uintptr_t x = (uintptr_t)what.x;
  /* Packs that a row touches at most: one more where it may begin within one. */
  const int64_t packs = bytes % 16 || x % 16 ? divide_up(bytes + 15, 16) : bytes / 16;
  const int64_t warps = divide_up(packs, TFU_SCAN_PACKS * 32);
  const int recurs = s->kind == TFU_SCAN_RECURRENCE;
  scan_rows_args a = {.what = what,
                      .kind = s->kind,
                      .rows = count,
                      .bytes = bytes,
                      .tiles = 1,
                      .apart = (uintptr_t)what.y % 16 != x % 16,
                      .nothing = {nothing(s->kind, dtype), nothing(TFU_SCAN_PROD, dtype)}};
  if (recurs && (uintptr_t)what.factor % 16 != x % 16) { /* the factor's packs shall begin where x's do */
    const tfu_permutation copy = {.axes = 1, .size = {count * s->length}, .from = {1}, .to = {1}};
    void *room;
    TFU_TRY(tfu_scratch(call, (size_t)(count * bytes) + 16, &room));
    TFU_TRY(tfu_permute_gpu(call, copy, what.factor, (char *)room + x % 16, size));
    a.what.factor = (char *)room + x % 16;
  }
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  tfu_grid grid = {.threads = recurs ? TFU_SCAN_THREADS / 2 : TFU_SCAN_THREADS};
  int64_t blocks;
  /* So few packs for a thread that it has no more of them than a row has threads. */
  while (1 << a.depth < TFU_SCAN_PACKS && 2 << 2 * a.depth < packs) a.depth++;
  if (warps == 1) {
    while ((int64_t)1 << (a.depth + a.shift) < packs) a.shift++;
    blocks = divide_up(count, grid.threads >> a.shift);
  } else {
    /* A block for each row, unless it is too long for that or for shared memory, or there are too few rows. */
    const int64_t warp = 32 * TFU_SCAN_STRIDE * (recurs ? 2 : 1), room = tfu_dynamic_shared(&device) / warp;
    const int64_t most = room < TFU_SCAN_MOST / 32 ? room : TFU_SCAN_MOST / 32;
    const int64_t tile = tile_warps() < most ? tile_warps() : most;
    const int whole = warps <= tile || (warps <= most && 2 * count >= device.multiprocessors);
    a.shift = 6;
    a.tiles = whole ? 1 : (int)divide_up(warps, tile);
    grid.threads = (unsigned)(32 * divide_up(warps, a.tiles));
    blocks = count * a.tiles;
  }
  if (a.tiles > 1) {
    a.groups = (int)divide_up(a.tiles, TFU_SCAN_GROUP);
    a.row_slots = a.tiles + a.groups + divide_up(a.groups, TFU_SCAN_GROUP) + 1;
    const size_t all = (size_t)(count * a.row_slots) * (state_size(s->kind, dtype) > 8 ? 32 : 16);
    TFU_TRY(tfu_scratch(call, all + sizeof *a.tickets, &a.slots));
    TFU_TRY(tfu_clear(call, a.slots, all + sizeof *a.tickets));
    a.tickets = (uint32_t *)((char *)a.slots + all);
  }
  TFU_REQUIRE(call->err, blocks <= INT32_MAX, "x %s is too large for one launch", tfu_show(&call->in[0].shape).text);
  grid.x = (unsigned)blocks;
  grid.shared = grid.threads * TFU_SCAN_STRIDE * (recurs ? 2 : 1);
  return tfu_launch(call, &rows, variant_of(s->kind), dtype, grid, &a);
}

static tfu_code scan_columns(tfu_call *call, const tfu_scanned *s) {
  const tfu_tensor *x = &call->in[0];
  const int recurs = s->kind == TFU_SCAN_RECURRENCE, positions = TFU_SCAN_COLUMN(recurs);
  scan_columns_args a = {.what = what_of(call, s),
                         .kind = s->kind,
                         .length = s->length,
                         .inner = s->inner,
                         .shift = 8,
                         .chunks = 1,
                         .chunk = s->length};
  int64_t size = (int64_t)tfu_dtype_size(x->dtype);
  size_t state = state_size(s->kind, x->dtype);
  const int two = s->kind == TFU_SCAN_SUM && size == 2 && s->inner % 2 == 0 && (uintptr_t)a.what.x % 4 == 0 &&
                  (uintptr_t)a.what.y % 4 == 0;
  if (two) a.inner /= 2, size *= 2, state *= 2;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t wanted = (int64_t)column_blocks() * device.multiprocessors;
  /* As wide as a block, unless the columns are fewer or so long that threads on top of each other have something to do;
   * then down to 128 bytes, and to 64 where blocks are few. */
  while (a.shift > 0 && (1 << (a.shift - 1)) >= a.inner) a.shift--;
  while (a.shift > 0 && (size << a.shift) > 128 && s->length > positions * (TFU_SCAN_THREADS >> a.shift)) a.shift--;
  if ((size << a.shift) == 128 && s->outer * divide_up(a.inner, (int64_t)1 << a.shift) < wanted &&
      s->length > positions * (TFU_SCAN_THREADS >> a.shift))
    a.shift--;
  a.strips = divide_up(a.inner, (int64_t)1 << a.shift);
  const int64_t high = positions * (TFU_SCAN_THREADS >> a.shift), blocks = s->outer * a.strips;
  if (2 * blocks < wanted && s->length > 4 * high) {
    int64_t chunks = divide_up(wanted, blocks);
    if (chunks > s->length / (2 * high)) chunks = s->length / (2 * high);
    a.chunk = divide_up(divide_up(s->length, chunks), high) * high;
    a.chunks = (int)divide_up(s->length, a.chunk);
  }
  TFU_REQUIRE(call->err, blocks * a.chunks <= INT32_MAX, "x %s is too large for one launch", tfu_show(&x->shape).text);
  const tfu_grid grid = {.x = (unsigned)(blocks * a.chunks), .threads = TFU_SCAN_THREADS};
  const int variant = two ? TWO : variant_of(s->kind);
  if (a.chunks > 1) {
    TFU_TRY(tfu_scratch(call, (size_t)(s->outer * a.chunks * a.inner) * state, &a.totals));
    a.find = 1;
    TFU_TRY(tfu_launch(call, &columns, variant, x->dtype, grid, &a));
    a.find = 0;
  }
  return tfu_launch(call, &columns, variant, x->dtype, grid, &a);
}

static tfu_code scan(tfu_call *call) {
  tfu_scanned s;
  TFU_TRY(tfu_scanned_of(call, &s));
  return s.inner == 1 ? scan_rows(call, &s) : scan_columns(call, &s);
}
tfu_code tfu_scan_gpu(tfu_call *call) { return scan(call); }
tfu_code tfu_scan_recurrence_gpu(tfu_call *call) { return scan(call); }
