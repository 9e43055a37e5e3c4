/* Launches the ladder of conv_own.h, and the two passes of its gradient. */
#include "kernels/convolution/conv_own.h"

#include <limits.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/constant.h"
#include "kernels/core/gpu/walk.h"
#include "kernels/core/panels.h"

TFU_MODULE(conv_own);
TFU_MODULE_AS(constant_module, conv_own_constant);
TFU_MODULE_AS(shared_module, conv_own_shared);
TFU_MODULE_AS(tensor_module, conv_own_tensor);

static tfu_constant constant_kernel = {.module = &constant_module, .name = "conv_constant_kernel"};
static tfu_kernel rungs[CONV_RUNGS] = {[CONV_DIRECT] = {.module = &module, .name = "conv_direct"},
                                       [CONV_CONSTANT] = {.module = &constant_module, .name = "conv_constant"},
                                       [CONV_SHARED] = {.module = &shared_module, .name = "conv_shared"},
                                       [CONV_TENSOR] = {.module = &tensor_module, .name = "conv_tensor"}};
static tfu_kernel data_kernel = {.module = &module, .name = "conv_data_direct"};
static tfu_kernel filter_kernel = {.module = &module, .name = "conv_filter_direct"};

/* ---- what the rungs take ---- */

/* All that is known of a forward pass. */
typedef struct task {
  const conv_args *a;
  tfu_dtype dtype;
  int tf32;
  tfu_device device;
} task;

static int64_t positions_of(const conv_shape *s) { return s->batch * conv_volume(s->out); }
static int64_t lines_of(const conv_shape *s) { return conv_volume(s->window) * s->c; } /* of the kernel */
static size_t kernel_bytes(const task *t) {
  return (size_t)(lines_of(&t->a->s) * t->a->s.groups * t->a->s.k) * tfu_dtype_size(t->dtype);
}

/* Whether outputs, and of x channels, are whole packs, so that a pack is of one group. */
static int in_packs(const task *t, int64_t elements) { return elements * (int64_t)tfu_dtype_size(t->dtype) % 16 == 0; }
static int begins_on_pack(const void *data) { return (uintptr_t)data % 16 == 0; }
static int packs_of_y(const task *t) {
  return in_packs(t, t->a->s.k) && begins_on_pack(t->a->y) && begins_on_pack(t->a->residual);
}

/* One or two spatial axes. */
static int is_plane(const conv_shape *s) {
  return s->in[0] == 1 && s->out[0] == 1 && s->window[0] == 1 && s->before[0] == 0;
}

/* Whether all positions along x and y, and outside of x as far as windows reach, can be counted in 32 bits. */
static int in_ints(const conv_shape *s) {
  enum { MOST = 1 << 28, COUNT = INT_MAX - TFU_PANEL_ROWS /* a tile may reach beyond the last */ };
  for (int axis = 0; axis < CONV_AXES; axis++)
    if (s->window[axis] > MOST / s->dilation[axis] || s->out[axis] > MOST / s->stride[axis] || s->in[axis] > MOST)
      return 0;
  return positions_of(s) <= COUNT && s->batch * conv_volume(s->in) <= COUNT && lines_of(s) <= COUNT &&
         s->groups * s->k <= COUNT;
}

/* NULL where a rung can serve, or why it cannot. */
static const char *constant_hindrance(const task *t) {
  if (kernel_bytes(t) > CONV_CONSTANT_BYTES) return "constant takes kernels of at most 64 KiB";
  return packs_of_y(t) ? NULL : "constant takes outputs of a group in multiples of 16 bytes";
}

/* Of a block: the weights of two taps, and a tile of x. */
static int64_t shared_bytes(const task *t) {
  const int64_t tile = conv_seen(&t->a->s, 1, CONV_TILE_HIGH) * conv_seen(&t->a->s, 2, CONV_TILE_WIDE);
  return (tile + 2 * CONV_TILE_OUTPUTS) * CONV_TILE_CHANNELS * (int64_t)tfu_dtype_size(tfu_real(t->dtype));
}
static const char *shared_hindrance(const task *t) {
  enum { MOST = 1 << 16 };
  if (!is_plane(&t->a->s)) return "shared takes one or two spatial axes";
  for (int axis = 1; axis < CONV_AXES; axis++)
    if (t->a->s.stride[axis] > MOST || t->a->s.window[axis] > MOST / t->a->s.dilation[axis])
      return "shared takes what windows see in shared memory";
  if (shared_bytes(t) > tfu_dynamic_shared(&t->device)) return "shared takes what windows see in shared memory";
  return NULL;
}

static const char *tensor_hindrance(const task *t) {
  const conv_shape *s = &t->a->s;
  const size_t size = tfu_dtype_size(t->dtype);
  if (size > 4 || (size == 4 && !t->tf32)) return "tensor takes 16 bits, and float32 where TF32 is allowed";
  if (!tfu_panels_fit(&t->device, size)) return "the GPU is too old for tensor, or has too little shared memory";
  if (!is_plane(s)) return "tensor takes one or two spatial axes";
  if (!packs_of_y(t) || !in_packs(t, s->c) || !begins_on_pack(t->a->x) || !begins_on_pack(t->a->kernel))
    return "tensor takes channels and outputs of a group in multiples of 16 bytes";
  return in_ints(s) ? NULL : "tensor takes positions that can be counted in 32 bits";
}

/* The rung that serves, from the one that is wanted on; sums of nothing are left to direct. */
static conv_rung served(const task *t, conv_rung rung, const char **why) {
  const char *hindrance = NULL;
  *why = NULL;
  if (lines_of(&t->a->s) == 0) return CONV_DIRECT;
  if (rung == CONV_CONSTANT) return (*why = constant_hindrance(t)) ? CONV_DIRECT : CONV_CONSTANT;
  if (rung == CONV_TENSOR && !(*why = tensor_hindrance(t))) return CONV_TENSOR;
  if (rung != CONV_DIRECT && !(hindrance = shared_hindrance(t))) return CONV_SHARED;
  if (!*why) *why = hindrance;
  return CONV_DIRECT;
}

/* ---- launches ---- */

/* A thread per result, as far as blocks go: the kernels go round. */
static tfu_grid grid_of_results(int64_t results) {
  const int64_t blocks = divide_up(results, TFU_THREADS);
  return (tfu_grid){.x = (unsigned)(blocks < INT_MAX ? blocks : INT_MAX), .threads = TFU_THREADS};
}

static int64_t shared_blocks(const conv_shape *s) {
  return s->batch * divide_up(s->out[1], CONV_TILE_HIGH) * divide_up(s->out[2], CONV_TILE_WIDE) * s->groups *
         divide_up(s->k, CONV_TILE_OUTPUTS);
}
static int64_t tensor_blocks(const conv_shape *s, size_t size) {
  return s->groups * divide_up(positions_of(s), TFU_PANEL_ROWS) * divide_up(s->k, TFU_PANEL_COLS(size));
}

static tfu_code run_forward(tfu_call *call, conv_rung rung, const task *t) {
  conv_args a = *t->a;
  const conv_shape *s = &a.s;
  const size_t size = tfu_dtype_size(t->dtype);
  const int64_t outputs = s->groups * s->k, positions = positions_of(s);
  const int64_t blocks = rung == CONV_SHARED   ? shared_blocks(s)
                         : rung == CONV_TENSOR ? tensor_blocks(s, size)
                                               : divide_up(positions, TFU_THREADS);
  tfu_grid grid = {.x = (unsigned)blocks, .threads = TFU_THREADS};
  if (rung == CONV_DIRECT) grid = grid_of_results(positions * outputs);
  else TFU_REQUIRE(call->err, blocks <= INT_MAX, "the convolution is too large: %lld blocks", (long long)blocks);
  if (rung == CONV_SHARED) grid.shared = (unsigned)shared_bytes(t);
  if (rung == CONV_TENSOR) {
    grid.shared = (unsigned)TFU_PANEL_SHARED(size);
    a.y_high = divisor_of(s->out[1]), a.y_wide = divisor_of(s->out[2]);
  }
  if (rung != CONV_CONSTANT) return tfu_launch(call, &rungs[rung], 0, t->dtype, grid, &a);
  grid.y = (unsigned)((size_t)outputs * size / 16);
  return tfu_launch_constant(call, &rungs[rung], t->dtype, grid, &a, &constant_kernel, a.kernel, kernel_bytes(t));
}

/* Positions are cut into slices where the results alone do not fill the GPU, and where scratch allows it. */
static int64_t slices_of(const tfu_call *call, int64_t blocks, int64_t positions, size_t bytes, int processors) {
  enum { LEAST = 64 * CONV_FILTER_SHARE /* positions that are worth a slice */, WAVES = 8, MOST = 65535 };
  int64_t slices = divide_up((int64_t)processors * WAVES, blocks);
  if (slices > positions / LEAST) slices = positions / LEAST;
  if (slices > MOST) slices = MOST;
  while (slices > 1 && !tfu_has_scratch(call, (size_t)slices * bytes)) slices /= 2;
  return slices < 1 ? 1 : slices;
}

static tfu_code run_filter(tfu_call *call, tfu_dtype dtype, conv_args *a) {
  const conv_shape *s = &a->s;
  const int64_t rows = lines_of(s), outputs = s->groups * s->k, positions = positions_of(s);
  const tfu_tensor out = {.data = a->kernel, .dtype = dtype, .shape = {.rank = 1, .dim = {rows * outputs}}};
  const size_t bytes = (size_t)(rows * outputs) * tfu_dtype_size(tfu_real(dtype));
  const int64_t blocks = rows * divide_up(outputs, CONV_FILTER_OUTPUTS);
  tfu_device device;
  if (rows * outputs == 0) return TFU_OK;
  TFU_REQUIRE(call->err, blocks <= INT_MAX, "the kernel is too large: %lld blocks", (long long)blocks);
  TFU_TRY(tfu_device_now(&device, call->err));
  a->slice = divide_up(positions, slices_of(call, blocks, positions, bytes, device.multiprocessors));
  const int64_t slices = a->slice ? divide_up(positions, a->slice) : 1;
  TFU_TRY(tfu_scratch(call, (size_t)slices * bytes, &a->partial));
  const tfu_grid grid = {.x = (unsigned)blocks, .y = (unsigned)slices, .threads = TFU_THREADS};
  TFU_TRY(tfu_launch(call, &filter_kernel, 0, dtype, grid, a));
  return tfu_fold_gpu(call, a->partial, slices, rows * outputs, 1, &out);
}

tfu_code tfu_conv_own_run(tfu_call *call, conv_pass pass, conv_rung rung, int tf32, tfu_dtype dtype, conv_args a) {
  const conv_shape *s = &a.s;
  if (pass == CONV_FILTER) return run_filter(call, dtype, &a);
  const int64_t results =
      s->batch * s->groups * (pass == CONV_DATA ? conv_volume(s->in) * s->c : conv_volume(s->out) * s->k);
  if (results == 0) return TFU_OK;
  if (pass == CONV_DATA) return tfu_launch(call, &data_kernel, 0, dtype, grid_of_results(results), &a);
  task t = {.a = &a, .dtype = dtype, .tf32 = tf32};
  const char *why;
  TFU_TRY(tfu_device_now(&t.device, call->err));
  rung = served(&t, rung, &why);
  if (!call->why) call->why = why;
  return run_forward(call, rung, &t);
}

tfu_code tfu_conv_own_gpu(tfu_call *call) {
  const conv_args a = {.s = tfu_conv_forward_read(call),
                       .x = call->in[TFU_CONV_X].data,
                       .kernel = call->in[TFU_CONV_KERNEL].data,
                       .y = call->out[0].data};
  return tfu_conv_own_run(call, CONV_FORWARD, (conv_rung)call->attr[TFU_CONV_OWN_RUNG].i, call->attr[TFU_CONV_TF32].b,
                          call->out[0].dtype, a);
}
