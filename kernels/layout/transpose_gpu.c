#include "kernels/layout/transpose.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/tunable.h"

TFU_MODULE(transpose);

/* Tiles along y's last axis that are taken before the next along x's: both then touch stretches of memory that are as
 * many tiles long, instead of one whole strip of x and a sliver of each of y's rows. */
TFU_TUNABLE(swath, 8, 1, 64);
/* Bytes from which on a tile of packs is wide enough: of narrower matrices most threads of a block would be idle. */
TFU_TUNABLE(wide_enough, 64, 16, 512);
/* Of matrices of odd sizes: bytes of y, as a power of two, that only one tile writes to, a sector of memory or more;
 * with 0, tiles end anywhere (pairs.cuh). Words of 4 bytes of y's rows, as a power of two, and KiB of shared memory
 * that a tile has at most. A tile then reads an eighth more than it writes. On an H200, (0, 3, 1, 2) of [37, 513, 65,
 * 129] has 91, 53, 48% of the copy speed in bfloat16 with 5, 6, 7, and 58 with 0; in float32 90, 89, 55 and 71. */
TFU_TUNABLE(border_bits, 5, 0, 7);
TFU_TUNABLE(reach_bits, 6, 5, 7);
TFU_TUNABLE(room, 40, 8, 48);

enum { DENSE_BYTES = 40 * 1024 }; /* of a tile, at most */
enum { MOST = 1 << 30 };          /* elements of a launch: what kernels divide is less than 2^31 */

/* The power of two that n fits into. */
static int shift_for(int64_t n) {
  int shift = 0;
  while ((int64_t)1 << shift < n) shift++;
  return shift;
}

/* Whether all that a pack may begin at is a multiple of `bytes`: x, y, and the distances along all axes but the last of
 * each. */
static int whole(const tfu_permutation *t, const char *x, const char *y, int64_t size, int64_t bytes) {
  if ((uintptr_t)x % (size_t)bytes || (uintptr_t)y % (size_t)bytes) return 0;
  for (int i = 0; i < t->axes; i++)
    if ((t->from[i] != 1 && t->from[i] * size % bytes) || (t->to[i] != 1 && t->to[i] * size % bytes)) return 0;
  return 1;
}

static tfu_code move_rows(tfu_call *call, const tfu_permutation *t, const char *x, char *y, int64_t size) {
  static tfu_kernel by_size = {.module = &module, .name = "transpose_rows", .keys = tfu_any};
  static tfu_kernel by_packs = {.module = &module, .name = "transpose_packs", .keys = tfu_any};
  static tfu_kernel by_runs = {.module = &module, .name = "transpose_runs", .keys = tfu_bits};
  const int last = t->axes - 1;
  transpose_rows_args a = {.y = y, .x = x, .axes = t->axes};
  int64_t unit = size, n = 1;
  while (t->from[last] == 1 && unit < 16 && whole(t, x, y, size, 2 * unit) && t->size[last] * size % (2 * unit) == 0)
    unit *= 2;
  for (int i = 0; i < t->axes; i++) {
    const int axis = last - i;
    const int64_t shrink = unit / size, own = i == 0 ? t->size[axis] / shrink : t->size[axis];
    a.size[i] = divisor_of(own);
    a.from[i] = t->from[axis] == 1 ? 1 : t->from[axis] / shrink;
    n *= own;
  }
  a.units = (uint32_t)n;
  a.bytes = (int)unit;
  if (t->from[last] == 1 && unit < 8 && (int64_t)a.size[0].by * unit >= 16 && (uintptr_t)y % 16 == 0) {
    const int64_t packs = (n * unit + 15) / 16, each = TFU_TRANSPOSE_THREADS * TFU_RUN_ROUNDS;
    const tfu_grid grid = {.x = (unsigned)(divide_up(packs, each)), .threads = TFU_TRANSPOSE_THREADS};
    return tfu_launch(call, &by_runs, 0, tfu_bits_of((size_t)unit), grid, &a);
  }
  const int64_t each = TFU_TRANSPOSE_THREADS * (unit == 16 ? TFU_ROW_ROUNDS / 2 : TFU_ROW_ROUNDS);
  const tfu_grid grid = {.x = (unsigned)(divide_up(n, each)), .threads = TFU_TRANSPOSE_THREADS};
  return tfu_launch(call, unit == 16 ? &by_packs : &by_size, 0, 0, grid, &a);
}

/* Along an axis of n, as many equal tiles as `most` asks for. */
static uint32_t even(int64_t n, int64_t most) {
  const int64_t tiles = divide_up(n, most);
  return (uint32_t)(divide_up(n, tiles));
}

/* Pairs that lie side by side in a tile of matrices of odd sizes, as a power of two: 32, or twice as many where that is
 * no worse and elements are small. A row of one less than two of each has a place for all. */
static int pairs_shift(int64_t n, int64_t size) {
  return size == 2 && divide_up(n, 127) * 2 <= divide_up(n, 63) ? 6 : 5;
}
static uint32_t row_of_pairs(int64_t n, int shift) { return even(n, ((int64_t)2 << shift) - 1); }

/* Tiles that end at borders of y's sectors (sectors.cuh), where y's rows are long, and rows of x follow each other or
 * are long, too, and of 16 bits: others were faster in pairs. Returns their bytes of shared memory, or 0. */
static unsigned plan_sectors(transpose_tiles_args *args, int64_t size) {
  enum { LONG = 512 };
  transpose_tiles_args copy = *args, *a = &copy;
  const int64_t na = a->a, border = (int64_t)1 << (border_bits() > 4 ? border_bits() : 4), margin = size == 2 ? 2 : 0;
  a->border = (int)(border / size);
  a->shift_b = reach_bits();
  a->tile_b =
      (uint32_t)(divide_up(even(a->b + a->border - 1, ((int64_t)4 << a->shift_b) / size), a->border) * a->border);
  const int64_t rows = least(a->tile_b + a->border - 1, a->b), most = room() * 1024 / (rows * size);
  a->dense = a->b_from == na && na % 2 && na <= most;
  a->tile_a = a->dense ? (uint32_t)na : even(na, most - margin - 1);
  a->pitch = (int)(a->dense ? na : (a->tile_a + margin) | 1);
  if (!border_bits() || a->b < LONG || !(a->dense || (size == 2 && na >= LONG))) return 0;
  *args = copy;
  return (unsigned)(rows * a->pitch * size) + 16;
}

static tfu_code permute_tiles(tfu_call *call, const tfu_permutation *t, int axis_a, const char *x, char *y,
                              int64_t size) {
  static tfu_kernel any = {.module = &module, .name = "transpose_tiles", .keys = tfu_bits};
  static tfu_kernel squares = {.module = &module, .name = "transpose_squares", .keys = tfu_any};
  static tfu_kernel pairs = {.module = &module, .name = "transpose_pairs", .keys = tfu_bits};
  static tfu_kernel sectors = {.module = &module, .name = "transpose_sectors", .keys = tfu_bits};
  const int axis_b = t->axes - 1;
  const int64_t na = t->size[axis_a], nb = t->size[axis_b], side = 16 / size;
  const int in_packs = size > 1 && na % side == 0 && nb % side == 0 && na * size >= wide_enough() &&
                       nb * size >= wide_enough() && whole(t, x, y, size, 16);
  transpose_tiles_args a = {.y = y,
                            .x = x,
                            .bytes = (int)size,
                            .a = (uint32_t)na,
                            .b = (uint32_t)nb,
                            .b_from = t->from[axis_b],
                            .a_to = t->to[axis_a],
                            .swath = (uint32_t)swath()};
  tfu_grid grid = {.threads = TFU_TRANSPOSE_THREADS};
  const int in_pairs =
      (size == 2 || size == 4) && na >= 32 && nb >= 32 && ((uintptr_t)x | (uintptr_t)y) % (2 * (size_t)size) == 0;
  const int in_sectors = !in_packs && in_pairs && (uintptr_t)x % 16 == 0 && (grid.shared = plan_sectors(&a, size));
  if (in_packs) {
    a.tile_a = (uint32_t)(16 * side);
    a.tile_b = (uint32_t)(16 * side * (side == 2 ? 2 : 1));
  } else if (in_pairs && !in_sectors) {
    a.shift_a = pairs_shift(na, size), a.shift_b = pairs_shift(nb, size);
    a.tile_a = row_of_pairs(na, a.shift_a), a.tile_b = row_of_pairs(nb, a.shift_b);
    a.pitch = (int)(a.tile_a | 1);
    a.dense = t->from[axis_b] == na && na % 2 && na * a.tile_b * size <= DENSE_BYTES;
    if (a.dense) a.tile_a = (uint32_t)na, a.pitch = (int)na;
    grid.shared = (unsigned)(((int64_t)a.tile_b * a.pitch + 2) * size);
  } else if (!in_sectors) {
    /* 64 by 64, or up to 256 along one axis where the other is short: no more than there are threads. */
    a.shift_a = (int)least(shift_for(na), 6), a.shift_b = (int)least(shift_for(nb), 6);
    if (nb < 64) a.shift_a = (int)least(shift_for(na), least(8, 12 - a.shift_b));
    if (na < 64) a.shift_b = (int)least(shift_for(nb), least(8, 12 - a.shift_a));
    /* Small matrices stay in the cache. */
    if (a.shift_a + a.shift_b < 9) return move_rows(call, t, x, y, size);
    a.tile_a = even(na, (int64_t)1 << a.shift_a);
    a.tile_b = even(nb, (int64_t)1 << a.shift_b);
    const int step = size < 4 ? (int)(4 / size) : 1; /* elements of a bank: the pitch is an odd number of banks */
    a.pitch = (int)divide_up(a.tile_a, step) * step;
    if (a.pitch / step % 2 == 0) a.pitch += step;
    /* Short rows that follow each other in x are read as one stretch and lie in shared memory so, unless too many of
     * them would begin in the same bank. */
    a.dense = t->from[axis_b] == na && na * a.tile_b * size <= DENSE_BYTES && (na * size % 8 || (size == 8 && na % 2));
    if (a.dense) a.tile_a = (uint32_t)na, a.pitch = (int)na;
    grid.shared = (unsigned)((int64_t)a.tile_b * a.pitch * size);
  }
  a.tiles_a = (uint32_t)(divide_up(na, a.tile_a));
  a.tiles_b = (uint32_t)divide_up(nb + (a.border ? a.border - 1 : 0), a.tile_b);
  a.tiles = divisor_of((int64_t)a.tiles_a * a.tiles_b);
  a.strip = divisor_of(least((int64_t)a.tiles_a * a.swath, INT32_MAX));
  int64_t matrices = 1;
  for (int i = t->axes; i-- > 0;) {
    if (i == axis_a || i == axis_b) continue;
    a.size[a.axes] = divisor_of(t->size[i]);
    a.from[a.axes] = t->from[i];
    a.to[a.axes++] = t->to[i];
    matrices *= t->size[i];
  }
  grid.x = (unsigned)(matrices * a.tiles.by);
  return tfu_launch(call,
                    in_packs     ? &squares
                    : in_sectors ? &sectors
                    : in_pairs   ? &pairs
                                 : &any,
                    0, in_packs ? 0 : tfu_bits_of((size_t)size), grid, &a);
}

/* What is too large for one launch is cut along y's first axis, so that y's pieces are whole stretches of memory. */
static tfu_code permute(tfu_call *call, tfu_permutation t, const char *x, char *y, int64_t size) {
  const int64_t slice = t.to[0], per = slice >= MOST ? 1 : MOST / slice;
  if (t.size[0] > per) {
    tfu_permutation piece = t;
    for (int64_t i = 0; i < t.size[0]; i += per) {
      piece.size[0] = least(per, t.size[0] - i);
      TFU_TRY(permute(call, piece, x + i * t.from[0] * size, y + i * t.to[0] * size, size));
    }
    return TFU_OK;
  }
  if (t.size[0] == 1 && t.axes > 1) {
    t.axes--;
    for (int i = 0; i < t.axes; i++) t.size[i] = t.size[i + 1], t.from[i] = t.from[i + 1], t.to[i] = t.to[i + 1];
    return permute(call, t, x, y, size);
  }
  int a = 0;
  while (a < t.axes && t.from[a] != 1) a++;
  return a >= t.axes - 1 ? move_rows(call, &t, x, y, size) : permute_tiles(call, &t, a, x, y, size);
}

tfu_code tfu_permute_gpu(tfu_call *call, tfu_permutation t, const void *x, void *y, int64_t size) {
  return permute(call, t, x, y, size);
}

tfu_code tfu_transpose_gpu(tfu_call *call) {
  return permute(call, tfu_permutation_of(call), call->in[0].data, call->out[0].data,
                 (int64_t)tfu_dtype_size(call->in[0].dtype));
}
