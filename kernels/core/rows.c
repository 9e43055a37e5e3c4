#include "kernels/core/rows.h"

const char *const tfu_row_variants[] = {[TFU_SHORT] = "short", [TFU_LONG] = "long", [TFU_ANY] = "any"};

enum {
  WARP = 32,
  BLOCK = 256,         /* threads, where rows share a block                                           */
  MOST = 512,          /* threads of a row                                                            */
  RESIDENT = 1024,     /* threads of a multiprocessor to plan for                                     */
  RESERVED = 5 * 1024, /* bytes of shared memory that the system and a block's own variables may take */
  MOST_CLUSTER = 16,
  AHEAD = 8, /* packs of any rows on their way to a thread */
};

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int power_above(int64_t n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

/* Rows in registers, `per_thread` packs or fewer; false if they do not fit. */
static int hold(const tfu_row_wish *w, const tfu_device *device, tfu_row_plan *r, tfu_grid *grid, int per_thread) {
  const int once = w->looks == 1 && !w->separate; /* a long row may come in chunks */
  const int64_t block = (int64_t)per_thread * (r->packs > per_thread * MOST || w->separate ? BLOCK : MOST);
  int64_t shares = once ? 1 : divide_up(r->packs, block);
  r->chunks = once ? (int)divide_up(r->packs, block) : 1;
  if (!w->separate) shares = power_above(shares);
  for (;; shares *= 2) { /* more blocks share a row where its tensors would not fit otherwise */
    if (!w->separate && shares > (device->capability >= 90 ? MOST_CLUSTER : 1)) return 0;
    r->share = (int)divide_up(r->packs, shares);
    r->lanes = power_above(divide_up(r->share, (int64_t)per_thread * r->chunks));
    r->cluster = w->separate ? 1 : (int)shares;
    grid->threads = r->lanes > WARP ? (unsigned)r->lanes : BLOCK;
    grid->x = (unsigned)shares;
    grid->shared = (unsigned)(TFU_HELD_SLOTS * w->tensors * per_thread) * grid->threads * 16;
    if ((int)grid->shared <= device->block_shared - RESERVED) return 1;
  }
}

/* Any rows, in shared memory if they fit. */
static void walk(const tfu_row_wish *w, const tfu_device *device, tfu_row_plan *r, tfu_grid *grid) {
  const int64_t shares = w->separate ? divide_up(r->packs, BLOCK * 4) : 1;
  r->share = (int)divide_up(r->packs, shares);
  r->lanes = power_above(r->share) < BLOCK ? power_above(r->share) : BLOCK;
  r->cluster = 1;
  r->tiles = (int)divide_up(r->share, r->lanes);
  grid->threads = r->lanes > WARP ? (unsigned)r->lanes : BLOCK;
  const int64_t bytes = (int64_t)w->tensors * grid->threads * 16, room = (device->block_shared - RESERVED) / bytes;
  r->keep = r->looks > 1 && r->tiles < room;
  r->slots = (int)least(room, (r->keep ? r->tiles : 0) + AHEAD);
  grid->x = (unsigned)shares;
  grid->shared = (unsigned)(r->slots * bytes);
}

tfu_code tfu_plan_rows(tfu_call *call, const tfu_row_wish *w, tfu_row_plan *r, tfu_grid *grid, int *variant) {
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  TFU_REQUIRE(call->err, w->rows < (int64_t)1 << 30, "at most 2^30 rows are supported, got %lld: reshape x",
              (long long)w->rows);
  const int n = 16 / (int)tfu_dtype_size(w->dtype), odd = w->cols % n != 0;
  const int most = w->elements / n < 4 ? w->elements / n : 4;
  *grid = (tfu_grid){.x = 1};
  *r = (tfu_row_plan){
      .rows = w->rows,
      .cols = w->cols,
      .tensors = w->tensors,
      .looks = w->looks,
      .packs = (int)(divide_up(w->cols, n) + odd), /* an odd row may begin in one pack and end in another */
      .odd = odd && w->aligned,
      .aligned = w->aligned};
  const int whole = !odd && w->aligned && w->cols > 0;
  if (whole && r->packs < WARP && hold(w, &device, r, grid, 1)) *variant = TFU_SHORT;
  else if (whole && r->packs >= WARP && hold(w, &device, r, grid, most)) *variant = TFU_LONG;
  else walk(w, &device, r, grid), *variant = TFU_ANY;
  const int64_t fit = least((w->resident && r->lanes > WARP ? w->resident : RESIDENT) / grid->threads,
                            device.shared / ((int64_t)grid->shared + 1024));
  const int64_t places = (int64_t)device.multiprocessors * (fit > 1 ? fit : 1) * w->waves;
  const int64_t wanted = divide_up(w->rows, grid->threads / (unsigned)r->lanes);
  const int64_t blocks = least(least(divide_up(places, grid->x), wanted), 65535);
  grid->y = blocks > 0 ? (unsigned)blocks : 1; /* no rows still have sums: zero */
  grid->cluster = (unsigned)r->cluster;
  return TFU_OK;
}

void tfu_whole_periods(const tfu_row_plan *r, int64_t period, tfu_grid *grid) {
  const int64_t per_block = grid->threads / (unsigned)r->lanes;
  int64_t step = period;
  while (step % 2 == 0 && per_block % (period / step * 2) == 0) step /= 2; /* blocks whose rows are whole periods */
  grid->y = grid->y > step ? (unsigned)(grid->y / step * step) : (unsigned)step;
}
