#include "kernels/core/gpu/rows.h"

#include "kernels/core/arithmetic.h"

const char *const tfu_row_variants[] = {
    [TFU_SHORT] = "short", [TFU_LONG] = "long", [TFU_ANY] = "any", [TFU_RING] = "ring", [TFU_NARROW] = "narrow"};

enum {
  WARP = 32,
  BLOCK = 256,        /* threads, where rows share a block                                           */
  MOST = 512,         /* threads of a row, while that is enough for it                               */
  RESIDENT = 1024,    /* threads of a multiprocessor to plan for                                     */
  RING_CLUSTER = 8,   /* blocks that share rows of a ring: what every GPU with clusters allows       */
  CLUSTER_WAVES = 4,  /* at most: clusters start slowly */
  NARROW_WAVES = 4,   /* at most: a block shall have several tiles, or none waits in shared memory */
  NARROW_BYTES = 256, /* of a row's tensors: more, and too few rows fit on a multiprocessor       */
  MOST_PARTS = 4096,  /* of a split row; no divisor below: it stays whole                                 */
  AHEAD = 8,          /* packs of any rows on their way to a thread */
};

static int power_above(int64_t n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

/* Rows in registers, `per_thread` packs or fewer; false if they do not fit.
 *
 * A row goes to as few blocks as can hold it. Where columns are separate there may be any number of them; where the
 * blocks have to agree they are a cluster, of a power of two; and where one look is enough, a single block takes the
 * row, in chunks. A share has as many threads as it needs, a power of two: they are the block, or where a warp is
 * enough some threads of a block that has several rows. */
static int hold(const tfu_row_wish *w, const tfu_device *device, tfu_row_plan *r, tfu_grid *grid, int per_thread) {
  const int once = w->looks == 1 && !w->separate; /* a long row may come in chunks */
  /* Packs that a block can hold. */
  const int64_t block = (int64_t)per_thread * (once || w->separate             ? BLOCK
                                               : r->packs <= per_thread * MOST ? MOST
                                                                               : w->threads);
  int64_t shares = once ? 1 : divide_up(r->packs, block);
  r->chunks = once ? (int)divide_up(r->packs, block) : 1;
  if (!w->separate) shares = power_above(shares);
  for (;; shares *= 2) { /* more blocks share a row where its tensors would not fit otherwise */
    if (!w->separate && shares > (device->capability >= 90 ? TFU_MOST_CLUSTER : 1)) return 0;
    r->share = (int)divide_up(r->packs, shares);
    r->lanes = power_above(divide_up(r->share, (int64_t)per_thread * r->chunks));
    r->cluster = w->separate ? 1 : (int)shares;
    grid->threads = r->lanes > WARP ? (unsigned)r->lanes : BLOCK;
    grid->x = (unsigned)shares;
    grid->shared = w->waves ? (unsigned)(TFU_HELD_SLOTS * w->tensors * per_thread) * grid->threads * 16 : 0;
    if ((int)grid->shared <= tfu_dynamic_shared(device)) return 1;
    if (r->lanes <= WARP) return 0; /* a block then has as many threads as before */
  }
}

static int ring_cluster(const tfu_device *device) { return device->capability >= 90 ? RING_CLUSTER : 1; }

/* Long rows in a ring; false if they are not long, or do not fit. More blocks share a row than it needs where there are
 * too few rows for all multiprocessors. */
static int ring(const tfu_row_wish *w, const tfu_device *device, tfu_row_plan *r, tfu_grid *grid) {
  const int64_t bytes = (int64_t)r->packs * 16, most = ring_cluster(device);
  if (!w->ring.from || bytes <= w->ring.from * 1024 || device->capability < 80 || w->pass != TFU_WHOLE) return 0;
  int64_t shares = least(power_above(divide_up(bytes, w->ring.share * 1024)), most);
  while (shares < most && w->rows * shares * 2 <= device->multiprocessors) shares *= 2;
  for (; shares <= most; shares *= 2) {
    r->share = (int)divide_up(r->packs, shares);
    r->lanes = (int)least(power_above(divide_up(r->share, TFU_RING_PACKS)), TFU_RING_THREADS);
    r->tiles = (int)divide_up(r->share, TFU_RING_PACKS * r->lanes);
    r->cluster = (int)shares;
    const int64_t group = (int64_t)w->tensors * TFU_RING_PACKS * 16 * r->lanes;
    r->slots = (int)least(r->tiles + w->ring.ahead, tfu_dynamic_shared(device) / group);
    grid->threads = (unsigned)r->lanes;
    grid->x = (unsigned)shares;
    grid->shared = (unsigned)(r->slots * group);
    grid->resident = r->slots > r->tiles && r->lanes > WARP;
    if (grid->resident) return 1;
  }
  return 0;
}

/* Short rows that are no whole packs, one for each thread; false if they are not that. */
static int narrow(const tfu_row_wish *w, const tfu_device *device, tfu_row_plan *r, tfu_grid *grid) {
  const int64_t bytes = w->cols * (int64_t)tfu_dtype_size(w->dtype);
  if (!w->narrow || !r->odd || w->dtype == TFU_F64 || bytes * w->tensors > NARROW_BYTES) return 0;
  r->share = (int)bytes * TFU_NARROW_THREADS / 16;
  r->lanes = r->cluster = 1;
  r->slots = TFU_NARROW_SLOTS;
  grid->threads = TFU_NARROW_THREADS;
  grid->shared = (unsigned)(TFU_NARROW_SLOTS * w->tensors * (r->share + 1)) * 16;
  return (int)grid->shared <= tfu_dynamic_shared(device);
}

/* Any rows, in shared memory if they fit: then all tiles of a row stay there, and at least one slot is left for those
 * that come next. A block takes a row for itself or, where columns are separate, some four packs per thread of it. */
static void walk(const tfu_row_wish *w, const tfu_device *device, tfu_row_plan *r, tfu_grid *grid) {
  const int64_t shares = w->separate ? divide_up(r->packs, BLOCK * 4) : 1;
  r->share = (int)divide_up(r->packs, shares);
  r->lanes = power_above(least(r->share, BLOCK));
  r->cluster = 1;
  r->tiles = (int)divide_up(r->share, r->lanes);
  grid->threads = r->lanes > WARP ? (unsigned)r->lanes : BLOCK;
  const int64_t bytes = (int64_t)w->tensors * grid->threads * 16, room = tfu_dynamic_shared(device) / bytes;
  r->keep = r->looks > 1 && r->tiles < room;
  r->slots = (int)least(room, (r->keep ? r->tiles : 0) + AHEAD);
  grid->x = (unsigned)shares;
  grid->shared = (unsigned)(r->slots * bytes);
}

tfu_code tfu_plan_rows(tfu_call *call, const tfu_row_wish *w, tfu_row_plan *r, tfu_grid *grid, int *variant) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int n = 16 / (int)tfu_dtype_size(w->dtype), odd = w->cols % n != 0;
  TFU_REQUIRE(call->err, w->cols / n < INT32_MAX - 2, "rows of %lld elements are too long: reshape x",
              (long long)w->cols);
  const int most = w->elements / n < 4 ? w->elements / n : 4;
  *grid = (tfu_grid){.x = 1};
  *r = (tfu_row_plan){
      .rows = w->rows,
      .cols = w->cols,
      .tensors = w->tensors,
      .looks = w->looks,
      .packs = (int)(divide_up(w->cols, n) + odd), /* an odd row may begin in one pack and end in another */
      .odd = odd && w->aligned,
      .parts = w->parts ? w->parts : 1,
      .pass = w->pass,
      .found = w->found,
      .aligned = w->aligned};
  /* Kernels for whole rows have columns in an int. */
  const int whole = !odd && w->aligned && w->cols > 0 && w->cols < INT32_MAX / 2 && w->dtype != TFU_F64;
  if (whole && ring(w, &device, r, grid)) *variant = TFU_RING;
  else if (whole && r->packs < WARP && hold(w, &device, r, grid, 1)) *variant = TFU_SHORT;
  else if (whole && r->packs >= WARP && hold(w, &device, r, grid, most)) *variant = TFU_LONG;
  else if (narrow(w, &device, r, grid)) *variant = TFU_NARROW;
  else walk(w, &device, r, grid), *variant = TFU_ANY;
  /* Blocks along y: a wave is as many as fit on the GPU by their threads and shared memory, and there are `waves` of
   * them, or one of those with a ring, but no more than have rows to take; held rows without waves have a block for
   * each. */
  const int64_t fit = least((w->resident && r->lanes > WARP ? w->resident : RESIDENT) / grid->threads,
                            device.shared / ((int64_t)grid->shared + 1024));
  const int waves = *variant == TFU_RING     ? 1
                    : *variant == TFU_NARROW ? least(w->waves, NARROW_WAVES)
                    : r->cluster > 1         ? least(w->waves, CLUSTER_WAVES)
                                             : w->waves;
  const int64_t places = (int64_t)device.multiprocessors * (fit > 1 ? fit : 1) * (waves ? waves : 1);
  const int64_t wanted = divide_up(w->rows, grid->threads / (unsigned)r->lanes);
  const int each = (*variant == TFU_SHORT || *variant == TFU_LONG) && !w->waves;
  const int64_t blocks = least(each ? wanted : least(divide_up(places, grid->x), wanted), 65535);
  grid->y = blocks > 0 ? (unsigned)blocks : 1; /* no rows still have sums: zero */
  grid->cluster = (unsigned)r->cluster;
  return TFU_OK;
}

/* Beyond some length a cluster waits longer than the second reading takes that splitting costs. A row is also split
 * where there are too few to go round, and one that fits a ring only there. Only "long" kernels know of parts: so these
 * are rows that more than a warp holds in registers, and for which a block has the shared memory. */
tfu_code tfu_parts_of(tfu_call *call, const tfu_row_wish *w, int *parts) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int n = 16 / (int)tfu_dtype_size(w->dtype), per_thread = w->elements / n < 4 ? w->elements / n : 4;
  const int64_t packs = w->cols / n;
  int64_t shares = divide_up(packs, per_thread * w->threads);
  int few = shares > 1 && w->rows * shares < device.multiprocessors, threads = MOST;
  while (w->waves && TFU_HELD_SLOTS * w->tensors * per_thread * threads * 16 > tfu_dynamic_shared(&device))
    threads /= 2;
  *parts = 1;
  if (!w->aligned || w->dtype == TFU_F64 || w->cols % n) return TFU_OK;
  tfu_grid grid;
  if (w->cols < INT32_MAX / 2 && ring(w, &device, &(tfu_row_plan){.packs = (int)packs}, &grid)) {
    few = w->rows * ring_cluster(&device) < device.multiprocessors;
    shares = 1;
  }
  if (shares <= (device.capability >= 90 ? w->cluster : 1) && !few) return TFU_OK;
  for (int64_t p = divide_up(packs, per_thread * threads); p <= MOST_PARTS && p * per_thread * WARP < packs; p++)
    if (packs % p == 0) {
      *parts = (int)p;
      break;
    }
  return TFU_OK;
}

tfu_row_wish tfu_split(tfu_row_wish w, int parts) {
  w.rows *= parts;
  w.cols /= parts;
  w.parts = parts;
  return w;
}

static tfu_code launch_pass(tfu_call *call, tfu_kernel *kernel, tfu_kernel *for_any, tfu_row_wish wish, int pass,
                            tfu_row_plan *rows, void *args) {
  tfu_grid grid;
  int variant;
  wish.pass = pass;
  TFU_TRY(tfu_plan_rows(call, &wish, rows, &grid, &variant));
  const int any = variant == TFU_ANY || variant == TFU_NARROW;
  return tfu_launch(call, any ? for_any : kernel, variant, wish.dtype, grid, args);
}

tfu_code tfu_launch_rows(tfu_call *call, tfu_kernel *kernel, tfu_kernel *for_any, tfu_row_wish wish, size_t found,
                         tfu_row_plan *rows, void *args) {
  int parts = 1;
  if (found) TFU_TRY(tfu_parts_of(call, &wish, &parts));
  const size_t bytes = (size_t)wish.rows * (size_t)parts * found;
  if (parts == 1 || !tfu_has_scratch(call, bytes))
    return launch_pass(call, kernel, for_any, wish, TFU_WHOLE, rows, args);
  wish = tfu_split(wish, parts);
  TFU_TRY(tfu_scratch(call, bytes, &wish.found));
  TFU_TRY(launch_pass(call, kernel, for_any, wish, TFU_FIND, rows, args));
  return launch_pass(call, kernel, for_any, wish, TFU_JOIN, rows, args);
}

void tfu_whole_periods(const tfu_row_plan *r, int64_t period, tfu_grid *grid) {
  const int64_t per_block = grid->threads / (unsigned)r->lanes;
  int64_t step = period;
  if (period > 1) grid->resident = 0; /* fewer blocks than planned would not be whole periods */
  /* The fewest blocks whose rows are whole periods: what the period has in common with the rows of a block, which are a
   * power of two, is taken out. */
  while (step % 2 == 0 && per_block % (period / step * 2) == 0) step /= 2;
  grid->y = grid->y > step ? (unsigned)(grid->y / step * step) : (unsigned)step;
}
