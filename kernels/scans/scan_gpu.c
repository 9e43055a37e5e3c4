#include "kernels/scans/scan.h"

#include "kernels/core/gpu/choice.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/layout/transpose.h"

TFU_MODULE(scan);

/* Warps of a tile of a long row, of 4 KiB each. Large tiles have fewer totals to wait for, small ones let more blocks
 * read while others wait. */
TFU_CHOICE(tile_warps, 8, 2, 16);
/* Blocks of columns for each multiprocessor, below which strips are made narrower, and then the axis is cut, which
 * costs another look at memory. */
TFU_CHOICE(column_blocks, 4, 1, 16);

/* The type that numbers are computed in, which names the kernel. */
static tfu_dtype computed_in(int kind, tfu_dtype dtype) {
  return kind == TFU_SCAN_RECURRENCE ? TFU_F64 : dtype < TFU_FLOATS ? tfu_real(dtype) : TFU_I64;
}

static scan_what what_of(const tfu_call *call, const tfu_scanned *s) {
  static const int stored[] = {[TFU_F32] = TFU_STORED_F32,  [TFU_F16] = TFU_STORED_F16, [TFU_BF16] = TFU_STORED_BF16,
                               [TFU_F64] = TFU_STORED_WIDE, [TFU_I32] = TFU_STORED_I32, [TFU_I64] = TFU_STORED_WIDE};
  return (scan_what){.y = call->out[0].data,
                     .x = call->in[0].data,
                     .factor = call->in[1].data,
                     .kind = s->kind,
                     .exclusive = s->exclusive,
                     .reverse = s->reverse,
                     .storage = stored[call->in[0].dtype]};
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

static int64_t ceiling(int64_t n, int64_t by) { return (n + by - 1) / by; }

/* Scans the last axis of what->x, [rows, length]. */
static tfu_code scan_rows(tfu_call *call, const scan_what *what, int64_t count, int64_t length) {
  static tfu_kernel single = {.module = &module, .name = "scan_rows"};
  static tfu_kernel paired = {.module = &module, .name = "scan_pairs"};
  const tfu_dtype dtype = call->in[0].dtype, real = computed_in(what->kind, dtype);
  const int64_t size = (int64_t)tfu_dtype_size(dtype), bytes = length * size;
  const int how = real == TFU_F64              ? TFU_SCAN_DOUBLES
                  : real == TFU_I64            ? TFU_SCAN_INTEGERS
                  : what->kind == TFU_SCAN_SUM ? TFU_SCAN_FLOAT_SUMS
                                               : TFU_SCAN_FLOATS;
  const uintptr_t x = (uintptr_t)what->x;
  /* Packs that a row touches at most: one more where it may begin within one. */
  const int64_t packs = bytes % 16 || x % 16 ? ceiling(bytes + 15, 16) : bytes / 16;
  const int64_t warps = ceiling(packs, TFU_SCAN_PACKS * 32);
  const int pairs = what->kind >= TFU_SCAN_LSE, recurs = what->kind == TFU_SCAN_RECURRENCE;
  scan_rows_args a = {.what = *what,
                      .how = how,
                      .rows = count,
                      .bytes = bytes,
                      .tiles = 1,
                      .four = (int)(4 * size),
                      .apart = (uintptr_t)what->y % 16 != x % 16,
                      .nothing = {nothing(what->kind, dtype), nothing(TFU_SCAN_PROD, dtype)}};
  if (recurs && (uintptr_t)what->factor % 16 != x % 16) { /* the factor's packs shall begin where x's do */
    const tfu_turn copy = {.axes = 1, .size = {count * length}, .from = {1}, .to = {1}};
    void *room;
    TFU_TRY(tfu_scratch(call, (size_t)(count * bytes) + 16, &room));
    TFU_TRY(tfu_turn_gpu(call, copy, what->factor, (char *)room + x % 16, size));
    a.what.factor = (char *)room + x % 16;
  }
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  tfu_grid grid = {.threads = recurs ? TFU_SCAN_THREADS / 2 : TFU_SCAN_THREADS};
  int64_t blocks;
  /* A thread has as few packs as there are, but room for four numbers at least. */
  a.depth = a.four > 16;
  while (1 << a.depth < TFU_SCAN_PACKS && 1 << a.depth < packs) a.depth++;
  if (warps == 1) {
    while ((int64_t)1 << (a.depth + a.shift) < packs) a.shift++;
    blocks = ceiling(count, grid.threads >> a.shift);
  } else {
    /* A block for each row, unless it is too long for that or for shared memory, or there are too few rows. */
    const int64_t warp = 32 * TFU_SCAN_STRIDE * (recurs ? 2 : 1), room = (device.block_shared - 4096) / warp;
    const int64_t most = room < TFU_SCAN_MOST / 32 ? room : TFU_SCAN_MOST / 32;
    const int64_t tile = tile_warps() < most ? tile_warps() : most;
    const int whole = warps <= tile || (warps <= most && 2 * count >= device.multiprocessors);
    a.shift = 6;
    a.tiles = whole ? 1 : (int)ceiling(warps, tile);
    grid.threads = (unsigned)(32 * ceiling(warps, a.tiles));
    blocks = count * a.tiles;
  }
  if (a.tiles > 1) {
    a.groups = (int)ceiling(a.tiles, TFU_SCAN_GROUP);
    a.row_slots = a.tiles + a.groups + ceiling(a.groups, TFU_SCAN_GROUP) + 1;
    const size_t state = tfu_dtype_size(real) * (pairs ? 2 : 1);
    const size_t all = (size_t)(count * a.row_slots) * (state > 8 ? 32 : 16);
    TFU_TRY(tfu_scratch(call, all, &a.slots));
    TFU_TRY(tfu_clear(call, a.slots, all));
  }
  TFU_REQUIRE(call->err, blocks <= INT32_MAX, "x %s is too large for one launch", tfu_show(&call->in[0].shape).text);
  grid.x = (unsigned)blocks;
  grid.shared = grid.threads * TFU_SCAN_STRIDE * (recurs ? 2 : 1);
  return tfu_launch(call, pairs ? &paired : &single, 0, TFU_F32, grid, &a);
}

/* The axis is made the last one, and put back. */
static tfu_code scan_turned(tfu_call *call, const tfu_scanned *s) {
  const tfu_dtype dtype = call->in[0].dtype;
  const int64_t size = (int64_t)tfu_dtype_size(dtype), matrix = s->length * s->inner;
  const tfu_turn there = {.axes = 3,
                          .size = {s->outer, s->inner, s->length},
                          .from = {matrix, 1, s->inner},
                          .to = {matrix, s->length, 1}},
                 back = {.axes = 3,
                         .size = {s->outer, s->length, s->inner},
                         .from = {matrix, 1, s->length},
                         .to = {matrix, s->inner, 1}};
  const scan_what own = what_of(call, s);
  scan_what turned = own;
  void *x, *factor = NULL;
  TFU_TRY(tfu_scratch(call, (size_t)(s->outer * matrix * size), &x));
  TFU_TRY(tfu_turn_gpu(call, there, own.x, x, size));
  if (s->kind == TFU_SCAN_RECURRENCE) {
    TFU_TRY(tfu_scratch(call, (size_t)(s->outer * matrix * size), &factor));
    TFU_TRY(tfu_turn_gpu(call, there, own.factor, factor, size));
  }
  turned.x = turned.y = x; /* a block has read its part of a row before it writes it, and nobody else's */
  turned.factor = factor;
  TFU_TRY(scan_rows(call, &turned, s->outer * s->inner, s->length));
  return tfu_turn_gpu(call, back, x, own.y, size);
}

static tfu_code scan_columns(tfu_call *call, const tfu_scanned *s) {
  static tfu_kernel columns = {.module = &module, .name = "scan_columns"};
  const tfu_tensor *x = &call->in[0];
  const int64_t size = (int64_t)tfu_dtype_size(x->dtype);
  scan_columns_args a = {.what = what_of(call, s),
                         .size = (int)size,
                         .length = s->length,
                         .inner = s->inner,
                         .shift = 8,
                         .chunks = 1,
                         .chunk = s->length};
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int64_t wanted = (int64_t)column_blocks() * device.multiprocessors;
  /* As wide as a block, unless the columns are fewer or so long that threads on top of each other have something to do;
   * then down to 128 bytes, and to 64 where blocks are few. */
  while (a.shift > 0 && (1 << (a.shift - 1)) >= s->inner) a.shift--;
  while (a.shift > 0 && (size << a.shift) > 128 && s->length > TFU_SCAN_COLUMN * (TFU_SCAN_THREADS >> a.shift))
    a.shift--;
  if ((size << a.shift) == 128 && s->outer * ceiling(s->inner, (int64_t)1 << a.shift) < wanted &&
      s->length > TFU_SCAN_COLUMN * (TFU_SCAN_THREADS >> a.shift))
    a.shift--;
  a.strips = ceiling(s->inner, (int64_t)1 << a.shift);
  const int64_t high = TFU_SCAN_COLUMN * (TFU_SCAN_THREADS >> a.shift), blocks = s->outer * a.strips;
  if (2 * blocks < wanted && s->length > 4 * high) {
    int64_t chunks = ceiling(wanted, blocks);
    if (chunks > s->length / (2 * high)) chunks = s->length / (2 * high);
    a.chunk = ceiling(ceiling(s->length, chunks), high) * high;
    a.chunks = (int)ceiling(s->length, a.chunk);
  }
  TFU_REQUIRE(call->err, blocks * a.chunks <= INT32_MAX, "x %s is too large for one launch", tfu_show(&x->shape).text);
  const tfu_grid grid = {.x = (unsigned)(blocks * a.chunks), .threads = TFU_SCAN_THREADS};
  if (a.chunks > 1) {
    TFU_TRY(tfu_scratch(call, (size_t)(s->outer * a.chunks * s->inner) * sizeof(float), &a.totals));
    a.find = 1;
    TFU_TRY(tfu_launch(call, &columns, 0, TFU_F32, grid, &a));
    a.find = 0;
  }
  return tfu_launch(call, &columns, 0, TFU_F32, grid, &a);
}

/* Columns have a kernel of their own where they are common; others are turned to rows, which costs three times the
 * memory traffic, and saves as many kernels. */
static tfu_code scan(tfu_call *call) {
  tfu_scanned s;
  TFU_TRY(tfu_scanned_of(call, &s));
  const scan_what what = what_of(call, &s);
  if (s.inner == 1) return scan_rows(call, &what, s.outer, s.length);
  return s.kind < TFU_SCAN_LSE && computed_in(s.kind, call->in[0].dtype) == TFU_F32 ? scan_columns(call, &s)
                                                                                    : scan_turned(call, &s);
}
tfu_code tfu_scan_gpu(tfu_call *call) { return scan(call); }
tfu_code tfu_scan_recurrence_gpu(tfu_call *call) { return scan(call); }
