#include "kernels/rows/group_norm.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/rows/norm_gpu.h"

TFU_MODULE(group_norm);
static const char *const widths[] = {"packs", "single"};
#define KERNEL(label) static tfu_kernel label = {.module = &module, .name = #label, .variants = widths}
KERNEL(group_sums);
KERNEL(group_apply);
KERNEL(group_grad_sums);
KERNEL(group_grad_apply);
static tfu_kernel group_join = {.module = &module, .name = "group_join"};
static tfu_kernel group_grad_join = {.module = &module, .name = "group_grad_join"};

TFU_MODULE_AS(held_module, group_held);
static tfu_kernel group_held = {.module = &held_module, .name = "group_held"};

/* ---- many positions ---- */

TFU_TUNABLE(blocks, 8, 1, 64); /* per multiprocessor, if there are as many positions */
/* KiB of shared memory for all positions of a group, or of two: of less than 32 bytes of a position, memory reads half
 * in vain. 0: never. On an H200 [64, 56, 56, 256] of 32 groups takes 90 us so in bfloat16, and 155 in two passes; its
 * gradient, which would hold two tensors, took longer. */
TFU_TUNABLE(held_kib, 200, 0, 220);

static void describe(const tfu_tensor *x, const tfu_tensor *gamma, group_norm_args *a) {
  const int64_t *dim = x->shape.dim;
  a->samples = dim[0], a->positions = dim[1], a->channels = dim[2] * dim[3], a->group = dim[3];
  a->groups = (int)dim[2];
  a->x = x->data, a->gamma = tfu_given_data(gamma);
}

static tfu_code room_for_sums(tfu_call *call, const tfu_tensor *x, group_norm_args *a) {
  const size_t values = (size_t)(a->samples * a->chunks * 2 * a->channels);
  return tfu_scratch(call, values * tfu_dtype_size(tfu_real(x->dtype)), &a->partial);
}

/* How the work is dealt out, and room for the sums. A thread has at least four positions, as far as there are
 * any, so that more is read than the sums that chunks leave. */
static tfu_code prepare(tfu_call *call, const tfu_tensor *x, const tfu_device *device, group_norm_args *a,
                        tfu_grid *grid, int *variant) {
  const int64_t size = (int64_t)tfu_dtype_size(x->dtype);
  *variant = x->dtype == TFU_F64 || a->channels * size % 16 || !tfu_aligned(call, tfu_count(&x->shape));
  const int64_t width = *variant ? 1 : 16 / size, units = divide_up(a->channels, width);
  a->lanes = units < TFU_THREADS ? (int)units : TFU_THREADS;
  const int64_t columns = divide_up(units, a->lanes), per_block = TFU_THREADS / a->lanes;
  a->chunks = (int64_t)device->multiprocessors * blocks() / (columns * a->samples);
  if (a->chunks > a->positions / (4 * per_block)) a->chunks = a->positions / (4 * per_block);
  if (a->chunks < 1) a->chunks = 1;
  a->chunk = divide_up(a->positions, a->chunks);
  a->chunks = divide_up(a->positions, a->chunk);
  const int64_t most = a->chunks > a->groups ? a->chunks : a->groups;
  TFU_REQUIRE(call->err, a->samples <= INT32_MAX / most, "too many samples for one launch: %lld of %lld groups",
              (long long)a->samples, (long long)a->groups);
  *grid = (tfu_grid){.x = (unsigned)(a->samples * a->chunks), .y = (unsigned)columns, .threads = TFU_THREADS};
  return room_for_sums(call, x, a);
}

/* Whether blocks can hold whole groups: packs do not go across groups, there is room, and enough
 * blocks. Sets what the kernel is told of it. */
static int hold(tfu_call *call, const tfu_tensor *x, const tfu_device *device, group_norm_args *a, tfu_grid *grid) {
  const int64_t bytes = a->group * (int64_t)tfu_dtype_size(x->dtype), packs = bytes / 16;
  const int64_t room = least((int64_t)held_kib() * 1024, device->block_shared - 16 * 1024);
  if (x->dtype == TFU_F64 || device->capability < 80 || bytes % 16 || packs & (packs - 1) ||
      packs > TFU_GROUP_HELD_PARTS || !tfu_aligned(call, tfu_count(&x->shape)))
    return 0;
  for (a->bundle = packs == 1 && a->groups % 2 == 0 ? 2 : 1; a->bundle > 0; a->bundle--) {
    a->parts = (int)packs * a->bundle;
    const int64_t each = divide_up(a->positions, TFU_GROUP_HELD_THREADS / a->parts),
                  blocks = a->samples * a->groups / a->bundle;
    const int64_t shared = each * TFU_GROUP_HELD_THREADS * 16;
    if (shared > room || blocks < device->multiprocessors || blocks > INT32_MAX) continue;
    *grid = (tfu_grid){.x = (unsigned)blocks, .threads = TFU_GROUP_HELD_THREADS, .shared = (unsigned)shared};
    return 1;
  }
  return 0;
}

static tfu_code forward_positions(tfu_call *call) {
  const tfu_tensor *x = &call->in[0];
  group_norm_args a = {.y = call->out[0].data,
                       .stats = call->out[1].data,
                       .beta = tfu_given_data(&call->in[2]),
                       .epsilon = call->attr[0].f};
  tfu_device device;
  tfu_grid grid;
  int variant;
  TFU_TRY(tfu_device_now(&device, call->err));
  describe(x, &call->in[1], &a);
  if (hold(call, x, &device, &a, &grid)) return tfu_launch(call, &group_held, 0, x->dtype, grid, &a);
  TFU_TRY(prepare(call, x, &device, &a, &grid, &variant));
  const tfu_grid groups = {.x = (unsigned)(a.samples * x->shape.dim[2]), .threads = TFU_THREADS};
  TFU_TRY(tfu_launch(call, &group_sums, variant, x->dtype, grid, &a));
  TFU_TRY(tfu_launch(call, &group_join, 0, x->dtype, groups, &a));
  return tfu_launch(call, &group_apply, variant, x->dtype, grid, &a);
}

static tfu_code backward_positions(tfu_call *call) {
  const tfu_tensor *x = &call->in[1];
  group_norm_args a = {.y = call->out[0].data, .stats = call->in[4].data, .dy = call->in[0].data};
  tfu_device device;
  tfu_grid grid;
  int variant;
  TFU_TRY(tfu_device_now(&device, call->err));
  describe(x, &call->in[2], &a);
  TFU_TRY(prepare(call, x, &device, &a, &grid, &variant));
  const int64_t groups = a.samples * a.groups;
  TFU_TRY(tfu_scratch(call, (size_t)(2 * groups) * tfu_dtype_size(tfu_real(x->dtype)), &a.means));
  TFU_TRY(tfu_launch(call, &group_grad_sums, variant, x->dtype, grid, &a));
  TFU_TRY(tfu_launch(call, &group_grad_join, 0, tfu_real(x->dtype),
                     (tfu_grid){.x = (unsigned)groups, .threads = TFU_THREADS}, &a));
  TFU_TRY(tfu_launch(call, &group_grad_apply, variant, x->dtype, grid, &a));
  return tfu_fold_gpu(call, a.partial, a.samples * a.chunks, a.channels, 2, &call->out[1]);
}

/* ---- one position ---- */

/* A group of a sample that has one position is a row: group normalisation is then that of rows, whose weights repeat.
 * So is the sum over nothing. */
static int one_position(const tfu_shape *x) {
  enum { MOST_GROUPS = 65535 }; /* a grid must be able to take a period of rows at a time */
  return tfu_count(x) == 0 || (x->dim[1] == 1 && x->dim[2] <= MOST_GROUPS);
}
static int64_t rows_of(const tfu_shape *x) { return tfu_count(x) ? x->dim[0] * x->dim[2] : 0; }

tfu_code tfu_group_norm_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out, *x = &in[0];
  if (!one_position(&x->shape)) return forward_positions(call);
  return tfu_norm_rows(call, x->dtype, rows_of(&x->shape), x->shape.dim[3],
                       (norm_args){.y = out[0].data,
                                   .stats = out[1].data,
                                   .x = x->data,
                                   .gamma = tfu_given_data(&in[1]),
                                   .beta = tfu_given_data(&in[2]),
                                   .period = (int)x->shape.dim[2],
                                   .epsilon = call->attr[0].f});
}

tfu_code tfu_group_norm_grad_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out, *x = &in[1];
  if (!one_position(&x->shape)) return backward_positions(call);
  return tfu_norm_rows_grad(call, x->dtype, rows_of(&x->shape), x->shape.dim[3],
                            (norm_grad_args){.dx = out[0].data,
                                             .dy = in[0].data,
                                             .x = x->data,
                                             .gamma = tfu_given_data(&in[2]),
                                             .stats = in[4].data,
                                             .period = (int)x->shape.dim[2]},
                            &out[1]);
}
