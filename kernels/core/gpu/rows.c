#include "kernels/core/gpu/rows.h"

#include "kernels/core/arithmetic.h"

const char *const tfu_row_variants[] = {
    [TFU_SHORT] = "short", [TFU_LONG] = "long", [TFU_ANY] = "any", [TFU_RING] = "ring", [TFU_THREAD] = "thread"};

enum {
  WARP = 32,
  BLOCK = 256,        /* threads, where rows share a block                                           */
  MOST = 512,         /* threads of a row, while that is enough for it                               */
  RESIDENT = 1024,    /* threads of a multiprocessor to plan for                                     */
  RING_CLUSTER = 8,   /* blocks that share rows of a ring: what every GPU with clusters allows       */
  CLUSTER_WAVES = 4,  /* at most: clusters start slowly */
  THREAD_WAVES = 4,   /* at most: a block shall have several tiles, or none waits in shared memory */
  THREAD_BYTES = 256, /* of a row's tensors: more, and too few rows fit on a multiprocessor       */
  MOST_PARTS = 4096,  /* of a split row; no divisor below: it stays whole                                 */
  AHEAD = 8,          /* packs of any rows on their way to a thread */
};

/* What a variant is planned from, and what it makes: the plan, and a grid without its blocks along y. */
typedef struct planning {
  const tfu_row_kernel *k;
  const tfu_row_job *j;
  tfu_device device;
  int whole, most; /* rows of whole packs; packs of a row that a thread may have */
  int invariant;   /* how a row is shared does not depend on how many there are */
  tfu_row_plan *r;
  tfu_grid *grid;
} planning;

/* ---- a planner for each variant: whether it fits ---- */

/* Rows in registers, `per_thread` packs or fewer.
 *
 * A row goes to as few blocks as can hold it. Where columns are separate there may be any number of them; where the
 * blocks have to agree they are a cluster, of a power of two; and where one look is enough, a single block takes the
 * row, in chunks. A share has as many threads as it needs, a power of two: they are the block, or where a warp is
 * enough some threads of a block that has several rows. */
static int hold(const planning *p, int per_thread) {
  const tfu_row_kernel *k = p->k;
  tfu_row_plan *r = p->r;
  tfu_grid *grid = p->grid;
  const int separate = (k->has & TFU_SEPARATE) != 0,
            once = k->looks == 1 && !separate; /* a long row may come in chunks */
  const int threads = once || separate ? BLOCK : r->packs <= per_thread * MOST ? MOST : k->threads;
  const int64_t block = (int64_t)per_thread * threads; /* packs that a block can hold */
  int64_t shares = once ? 1 : divide_up(r->packs, block);
  r->chunks = once ? (int)divide_up(r->packs, block) : 1;
  if (!separate) shares = power_above(shares);
  for (;; shares *= 2) { /* more blocks share a row where its tensors would not fit otherwise */
    if (!separate && shares > (p->device.capability >= 90 ? TFU_MOST_CLUSTER : 1)) return 0;
    r->share = (int)divide_up(r->packs, shares);
    r->lanes = power_above(divide_up(r->share, (int64_t)per_thread * r->chunks));
    r->cluster = separate ? 1 : (int)shares;
    grid->threads = r->lanes > WARP ? (unsigned)r->lanes : BLOCK;
    grid->x = (unsigned)shares;
    grid->shared =
        k->has & TFU_ALONE ? 0 : (unsigned)(TFU_HELD_SLOTS * p->j->tensors * per_thread) * grid->threads * 16;
    if ((int)grid->shared <= tfu_dynamic_shared(&p->device)) return 1;
    if (r->lanes <= WARP) return 0; /* a block then has as many threads as before */
  }
}
static int plan_short(const planning *p) { return p->whole && p->r->packs < WARP && hold(p, 1); }
static int plan_long(const planning *p) { return p->whole && p->r->packs >= WARP && hold(p, p->most); }

static int ring_cluster(const tfu_device *device) { return device->capability >= 90 ? RING_CLUSTER : 1; }

/* Long rows in a ring. More blocks share a row than it needs where there are too few rows for all multiprocessors. */
static int plan_ring(const planning *p) {
  const tfu_row_kernel *k = p->k;
  const tfu_device *device = &p->device;
  tfu_row_plan *r = p->r;
  tfu_grid *grid = p->grid;
  const int64_t bytes = (int64_t)r->packs * 16, most = ring_cluster(device);
  if (!p->whole || !(k->has & TFU_HAS_RING) || bytes <= k->ring.from * 1024 || device->capability < 80 ||
      p->j->pass != TFU_WHOLE)
    return 0;
  int64_t shares = least(power_above(divide_up(bytes, k->ring.share * 1024)), most);
  while (!p->invariant && shares < most && p->j->rows * shares * 2 <= device->multiprocessors) shares *= 2;
  for (; shares <= most; shares *= 2) {
    r->share = (int)divide_up(r->packs, shares);
    r->lanes = (int)least(power_above(divide_up(r->share, TFU_RING_PACKS)), TFU_RING_THREADS);
    r->tiles = (int)divide_up(r->share, TFU_RING_PACKS * r->lanes);
    r->cluster = (int)shares;
    const int64_t group = (int64_t)p->j->tensors * TFU_RING_PACKS * 16 * r->lanes;
    r->slots = (int)least(r->tiles + k->ring.ahead, tfu_dynamic_shared(device) / group);
    grid->threads = (unsigned)r->lanes;
    grid->x = (unsigned)shares;
    grid->shared = (unsigned)(r->slots * group);
    grid->resident = r->slots > r->tiles && r->lanes > WARP;
    if (grid->resident) return 1;
  }
  return 0;
}

/* Short rows that are no whole packs, one for each thread. */
static int plan_thread(const planning *p) {
  const tfu_row_job *j = p->j;
  tfu_row_plan *r = p->r;
  const int64_t bytes = j->cols * (int64_t)tfu_dtype_size(j->dtype);
  if (!(p->k->has & TFU_HAS_THREAD) || !r->odd || j->dtype == TFU_F64 || bytes * j->tensors > THREAD_BYTES) return 0;
  r->share = (int)bytes * TFU_THREAD_ROWS_THREADS / 16;
  r->lanes = r->cluster = 1;
  r->slots = TFU_THREAD_ROWS_SLOTS;
  p->grid->threads = TFU_THREAD_ROWS_THREADS;
  p->grid->shared = (unsigned)(TFU_THREAD_ROWS_SLOTS * j->tensors * (r->share + 1)) * 16;
  return (int)p->grid->shared <= tfu_dynamic_shared(&p->device);
}

/* Any rows, in shared memory if they fit: then all tiles of a row stay there, and at least one slot is left for those
 * that come next. A block takes a row for itself or, where columns are separate, some four packs per thread of it. */
static int plan_any(const planning *p) {
  tfu_row_plan *r = p->r;
  tfu_grid *grid = p->grid;
  const int64_t shares = p->k->has & TFU_SEPARATE ? divide_up(r->packs, BLOCK * 4) : 1;
  r->share = (int)divide_up(r->packs, shares);
  r->lanes = power_above(least(r->share, BLOCK));
  r->cluster = 1;
  r->tiles = (int)divide_up(r->share, r->lanes);
  grid->threads = r->lanes > WARP ? (unsigned)r->lanes : BLOCK;
  const int64_t bytes = (int64_t)p->j->tensors * grid->threads * 16, room = tfu_dynamic_shared(&p->device) / bytes;
  r->keep = r->looks > 1 && r->tiles < room;
  r->slots = (int)least(room, (r->keep ? r->tiles : 0) + AHEAD);
  grid->x = (unsigned)shares;
  grid->shared = (unsigned)(r->slots * bytes);
  return 1;
}

/* In the order in which they are tried. */
static const struct {
  int variant;
  int (*plan)(const planning *p);
} planners[] = {{TFU_RING, plan_ring},
                {TFU_SHORT, plan_short},
                {TFU_LONG, plan_long},
                {TFU_THREAD, plan_thread},
                {TFU_ANY, plan_any}};

/* Packs of a row that a thread may have in registers. */
static int packs_of_thread(const tfu_row_kernel *k, int n) { return (int)least(k->elements / n, 4); }

tfu_code tfu_plan_rows(tfu_call *call, const tfu_row_kernel *k, const tfu_row_job *j, tfu_row_plan *r, tfu_grid *grid,
                       int *variant) {
  const int n = 16 / (int)tfu_dtype_size(j->dtype), odd = j->cols % n != 0;
  TFU_REQUIRE(call->err, j->cols / n < INT32_MAX - 2, "rows of %lld elements are too long: reshape x",
              (long long)j->cols);
  planning p = {.k = k, .j = j, .most = packs_of_thread(k, n), .invariant = call->invariant, .r = r, .grid = grid};
  /* Kernels for whole rows have columns in an int. */
  p.whole = !odd && j->aligned && j->cols > 0 && j->cols < INT32_MAX / 2 && j->dtype != TFU_F64;
  TFU_TRY(tfu_device_now(&p.device, call->err));
  *grid = (tfu_grid){.x = 1};
  *r = (tfu_row_plan){
      .rows = j->rows,
      .cols = j->cols,
      .tensors = j->tensors,
      .looks = k->looks,
      .packs = (int)(divide_up(j->cols, n) + odd), /* an odd row may begin in one pack and end in another */
      .odd = odd && j->aligned,
      .parts = j->parts ? j->parts : 1,
      .pass = j->pass,
      .found = j->found,
      .aligned = j->aligned};
  int i = 0;
  while (!planners[i].plan(&p)) i++;
  *variant = planners[i].variant;
  /* Blocks along y: a wave is as many as fit on the GPU by their threads and shared memory, and there are `waves` of
   * them, or one of those with a ring, but no more than have rows to take; held rows that are alone have a block each.
   */
  const int64_t fit = least((k->resident && r->lanes > WARP ? k->resident : RESIDENT) / grid->threads,
                            p.device.shared / ((int64_t)grid->shared + 1024));
  const int64_t waves = *variant == TFU_RING     ? 1
                        : *variant == TFU_THREAD ? least(k->waves, THREAD_WAVES)
                        : r->cluster > 1         ? least(k->waves, CLUSTER_WAVES)
                                                 : k->waves;
  const int64_t places = (int64_t)p.device.multiprocessors * (fit > 1 ? fit : 1) * (waves ? waves : 1);
  const int64_t wanted = divide_up(j->rows, grid->threads / (unsigned)r->lanes);
  const int each = (*variant == TFU_SHORT || *variant == TFU_LONG) && k->has & TFU_ALONE;
  const int64_t blocks = least(each ? wanted : least(divide_up(places, grid->x), wanted), 65535);
  grid->y = blocks > 0 ? (unsigned)blocks : 1; /* no rows still have sums: zero */
  grid->cluster = (unsigned)r->cluster;
  return TFU_OK;
}

/* Beyond some length a cluster waits longer than the second reading takes that splitting costs. A row is also split
 * where there are too few to go round, and one that fits a ring only there. Only "long" kernels know of parts: so these
 * are rows that more than a warp holds in registers, and for which a block has the shared memory. */
tfu_code tfu_parts_of(tfu_call *call, const tfu_row_kernel *k, const tfu_row_job *j, int *parts) {
  tfu_grid grid;
  tfu_row_plan plan = {0};
  planning p = {.k = k, .j = j, .r = &plan, .grid = &grid};
  const tfu_device *device = &p.device;
  TFU_TRY(tfu_device_now(&p.device, call->err));
  const int n = 16 / (int)tfu_dtype_size(j->dtype), per_thread = packs_of_thread(k, n);
  const int64_t packs = j->cols / n;
  int64_t shares = divide_up(packs, per_thread * k->threads);
  int few = shares > 1 && j->rows * shares < device->multiprocessors, threads = MOST;
  while (!(k->has & TFU_ALONE) && TFU_HELD_SLOTS * j->tensors * per_thread * threads * 16 > tfu_dynamic_shared(device))
    threads /= 2;
  *parts = 1;
  if (call->invariant || !j->aligned || j->dtype == TFU_F64 || j->cols % n) return TFU_OK;
  p.whole = j->cols < INT32_MAX / 2;
  plan.packs = p.whole ? (int)packs : 0;
  if (plan_ring(&p)) {
    few = j->rows * ring_cluster(device) < device->multiprocessors;
    shares = 1;
  }
  if (shares <= (device->capability >= 90 ? k->cluster : 1) && !few) return TFU_OK;
  for (int64_t at = divide_up(packs, per_thread * threads); at <= MOST_PARTS && at * per_thread * WARP < packs; at++)
    if (packs % at == 0) {
      *parts = (int)at;
      break;
    }
  return TFU_OK;
}

tfu_code tfu_split(tfu_call *call, const tfu_row_kernel *k, int parts, tfu_row_job *j) {
  j->rows *= parts;
  j->cols /= parts;
  j->parts = parts;
  return tfu_scratch(call, (size_t)j->rows * k->found, &j->found);
}

static tfu_code launch_pass(tfu_call *call, const tfu_row_kernel *k, tfu_row_job job, int pass, tfu_row_plan *rows,
                            void *args) {
  tfu_grid grid;
  int variant;
  job.pass = pass;
  TFU_TRY(tfu_plan_rows(call, k, &job, rows, &grid, &variant));
  const int any = variant == TFU_ANY || variant == TFU_THREAD;
  return tfu_launch(call, any ? k->any : k->kernel, variant, job.dtype, grid, args);
}

tfu_code tfu_launch_rows(tfu_call *call, const tfu_row_kernel *k, tfu_row_job job, tfu_row_plan *rows, void *args) {
  int parts = 1;
  if (k->found) TFU_TRY(tfu_parts_of(call, k, &job, &parts));
  if (parts == 1 || !tfu_has_scratch(call, (size_t)job.rows * (size_t)parts * k->found))
    return launch_pass(call, k, job, TFU_WHOLE, rows, args);
  TFU_TRY(tfu_split(call, k, parts, &job));
  TFU_TRY(launch_pass(call, k, job, TFU_FIND, rows, args));
  return launch_pass(call, k, job, TFU_JOIN, rows, args);
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
