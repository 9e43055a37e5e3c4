/* Recurrence and its gradient by a persistent kernel, where the recurrent kernel fits into the registers of one GPU.
 *
 * Blocks wait for each other, so all of them have to run at the same time. A cooperative launch promises that: it
 * begins when there is room for all, whatever else runs on other streams, also other launches of this kind, and also
 * in a graph; and no more blocks are asked for than fit (tfu_resident_blocks). */
#include "kernels/recurrent/recurrence_persistent.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"

TFU_MODULE(recurrence_persistent);
TFU_MODULE_AS(back_module, recurrence_persistent_back);

static tfu_kernel kernel = {.module = &module, .name = "recurrence_persistent"};
static tfu_kernel scaled_kernel = {.module = &module, .name = "recurrence_persistent_scaled"};
static tfu_kernel back_kernel = {.module = &back_module, .name = "recurrence_persistent_back"};

/* Tiles of 16 sequences that a block has at most; more are left to the loop over steps, whose products then pay. On an
 * H200 a tile of 1,024 units takes some 3 us of a step, and 5 in float32. */
TFU_TUNABLE(most_tiles, 4, 0, 64);
/* Steps, at least: to fill the registers takes as long as some steps of the loop. */
enum { FEWEST_STEPS = 4 };

/* How the units and sequences are dealt out to blocks. */
typedef struct plan {
  int tiles;
  persistent_memory at;
  tfu_grid grid;
} plan;

/* Packs of all tensors but masks are read whole. */
static int all_aligned(const tfu_call *call) {
  for (int i = 0; i < TFU_MAX_ARGS; i++)
    for (int k = 0; k < 2; k++) {
      const tfu_tensor *t = k ? &call->out[i] : &call->in[i];
      if (t->dtype != TFU_BOOL && (uintptr_t)tfu_given_data(t) % 16) return 0;
    }
  return 1;
}

static int take(int *at, int64_t bytes) {
  const int here = *at;
  *at += (int)(divide_up(bytes, 16) * 16);
  return here;
}

static int lay_out(persistent_memory *at, const recurrence_sizes *s, int64_t size, int slice, int tiles, int sources,
                   int scaled, int back) {
  enum { FLOAT = 4, ROWS = PERSISTENT_ROWS };
  int bytes = 0;
  at->partial = take(&bytes, (int64_t)(back ? 1 : 2) * PERSISTENT_WARPS * ROWS *
                                 ((back ? 2 : s->gates) * slice + PERSISTENT_PAD) * FLOAT);
  at->input = take(&bytes, 2 * sources * ROWS * slice * size);
  at->mask = take(&bytes, 2 * ROWS * FLOAT);
  at->state = take(&bytes, (int64_t)2 * tiles * ROWS * slice * FLOAT);
  at->bias = take(&bytes, back ? 0 : s->gates * slice * FLOAT);
  const int64_t scales = back ? s->gates * ROWS * slice * size : TFU_THREADS * PERSISTENT_BITS;
  at->scale = take(&bytes, scaled ? tiles * scales : 0);
  at->sums = take(&bytes, back ? 2 * s->gates * ROWS * slice * FLOAT : 0);
  return bytes;
}

/* *served is 0 where the kernel cannot be kept on this GPU, or the loop over steps is better. */
static tfu_code make_plan(tfu_call *call, tfu_kernel *k, const recurrence_sizes *s, tfu_dtype dtype, int scaled,
                          int back, plan *p, int *served) {
  tfu_device device;
  *served = 0;
  if (dtype == TFU_F64 || s->units > PERSISTENT_UNITS || s->units % PERSISTENT_MULTIPLE) return TFU_OK;
  if (s->reset_before) return TFU_OK; /* two products of a step, one after the other */
  if (s->batch < 1 || s->steps < FEWEST_STEPS) return TFU_OK;
  TFU_TRY(tfu_device_now(&device, call->err));
  /* Tensor cores with these types; backward clusters. */
  if (device.capability < (back ? 90 : 80)) return TFU_OK;
  const int64_t size = (int64_t)tfu_dtype_size(dtype), tiles = divide_up(s->batch, PERSISTENT_ROWS);
  p->grid = (tfu_grid){.threads = TFU_THREADS, .cluster = back ? 2 : 0, .together = 1};
  int64_t resident;
  TFU_TRY(tfu_resident_blocks(call, k, 0, dtype, p->grid, &resident));
  const int slice = PERSISTENT_SLICE(size);
  const int64_t cluster = back ? 2 : 1, across = divide_up(s->units, cluster * slice) * cluster;
  if (across > resident) return TFU_OK;
  p->tiles = (int)divide_up(tiles, least(resident / across, tiles));
  if (p->tiles > most_tiles()) return TFU_OK;
  p->grid.x = (unsigned)across;
  p->grid.y = (unsigned)divide_up(tiles, p->tiles);
  p->grid.shared = (unsigned)lay_out(&p->at, s, size, slice, p->tiles, back ? s->kept + 2 : s->gates, scaled, back);
  *served = p->grid.shared <= (unsigned)tfu_dynamic_shared(&device);
  return TFU_OK;
}

tfu_code tfu_recurrence_persists(tfu_call *call, const recurrence_sizes *s, tfu_dtype dtype, int *both) {
  plan p;
  TFU_TRY(make_plan(call, &kernel, s, dtype, 0, 0, &p, both));
  return *both ? make_plan(call, &back_kernel, s, dtype, 0, 1, &p, both) : TFU_OK;
}

/* What blocks hand to each other begins as all ones. */
static tfu_code untold(tfu_call *call, const tfu_tensor *t) {
  return tfu_fill(call, t->data, ~(uint32_t)0, (size_t)tfu_count(&t->shape) * tfu_dtype_size(t->dtype) / 4);
}

tfu_code tfu_recurrence_persistent(tfu_call *call, int *served) {
  const tfu_tensor *in = call->in, *y = &call->out[TFU_RECUR_Y];
  persistent_args a = {.size = recurrence_sizes_of(call, y, &in[TFU_RECUR_KERNEL]),
                       .tf32 = call->attr[TFU_RECUR_TF32].b,
                       .mask = tfu_given_data(&in[TFU_RECUR_MASK]),
                       .kernel = in[TFU_RECUR_KERNEL].data,
                       .bias = tfu_given_data(&in[TFU_RECUR_BIAS]),
                       .h = tfu_given_data(&in[TFU_RECUR_H]),
                       .c = tfu_given_data(&in[TFU_RECUR_C]),
                       .scale = tfu_given_data(&in[TFU_RECUR_SCALE]),
                       .gates = in[TFU_RECUR_GATES].data,
                       .y = y->data,
                       .kept = tfu_given_data(&call->out[TFU_RECUR_KEPT]),
                       .last = tfu_given_data(&call->out[TFU_RECUR_LAST])};
  tfu_kernel *const k = a.scale ? &scaled_kernel : &kernel;
  plan p;
  TFU_TRY(make_plan(call, k, &a.size, y->dtype, a.scale != NULL, 0, &p, served));
  *served = *served && all_aligned(call);
  if (!*served) return TFU_OK;
  a.tiles = p.tiles, a.at = p.at;
  TFU_TRY(untold(call, y));
  return tfu_launch(call, k, 0, y->dtype, p.grid, &a);
}

tfu_code tfu_recurrence_grad_persistent(tfu_call *call, int *served) {
  const tfu_tensor *in = call->in, *out = call->out, *dy = &in[TFU_RECGRAD_DY];
  persistent_back_args a = {.size = recurrence_sizes_of(call, dy, &in[TFU_RECGRAD_KERNEL]),
                            .tf32 = call->attr[TFU_RECUR_TF32].b,
                            .mask = tfu_given_data(&in[TFU_RECGRAD_MASK]),
                            .kernel = in[TFU_RECGRAD_KERNEL].data,
                            .h = tfu_given_data(&in[TFU_RECGRAD_H]),
                            .c = tfu_given_data(&in[TFU_RECGRAD_C]),
                            .scale = tfu_given_data(&in[TFU_RECGRAD_SCALE]),
                            .dy = dy->data,
                            .dlast = tfu_given_data(&in[TFU_RECGRAD_DLAST]),
                            .y = in[TFU_RECGRAD_Y].data,
                            .kept = in[TFU_RECGRAD_KEPT].data,
                            .dgates = out[TFU_RECGRAD_DGATES].data,
                            .dproduct = tfu_given_data(&out[TFU_RECGRAD_DPRODUCT]),
                            .dh = out[TFU_RECGRAD_DH].data,
                            .dc = tfu_given_data(&out[TFU_RECGRAD_DC])};
  plan p;
  TFU_TRY(make_plan(call, &back_kernel, &a.size, dy->dtype, a.scale != NULL, 1, &p, served));
  *served = *served && all_aligned(call);
  if (!*served) return TFU_OK;
  a.tiles = p.tiles, a.at = p.at;
  TFU_TRY(untold(call, &out[a.dproduct ? TFU_RECGRAD_DPRODUCT : TFU_RECGRAD_DGATES]));
  return tfu_launch(call, &back_kernel, 0, dy->dtype, p.grid, &a);
}
