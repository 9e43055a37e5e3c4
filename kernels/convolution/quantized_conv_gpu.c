/* quantized_conv_gpu.c - launches QuantizedConv: on tensor cores where channels and outputs are whole packs, else a
 * result for each thread. */
#include "ops/convolution/quantized_conv.h"

#include <limits.h>

#include "kernels/convolution/quantized_conv.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(quantized_conv);
TFU_MODULE_AS(groups_module, quantized_conv_groups);

static tfu_kernel direct = {.module = &module, .name = "quantized_conv_direct", .keys = tfu_any};

/* Tiles of so many positions by outputs, parts of so many bytes of terms and how many of these are in shared memory,
 * and blocks that a multiprocessor has at a time. */
typedef struct tiling {
  tfu_kernel kernel;
  int rows, columns, line, stages, threads, blocks;
} tiling;
/* By warps, and by warpgroups. */
static tiling narrow = {{.module = &module, .name = "quantized_conv_41", .keys = tfu_any}, 256, 64, 64, 4, 128, 2};
static tiling wide = {{.module = &module, .name = "quantized_conv_22", .keys = tfu_any}, 128, 128, 64, 4, 128, 2};
static tiling narrow_group = {
    {.module = &groups_module, .name = "quantized_conv_groups_12_64", .keys = tfu_any}, 128, 64, 64, 4, 128, 3};
static tiling wide_group = {
    {.module = &groups_module, .name = "quantized_conv_groups_12_128", .keys = tfu_any}, 128, 128, 128, 3, 128, 2};

static int64_t positions_of(const conv_shape *s) { return s->batch * conv_volume(s->out); }

/* Whether all positions along x and y, and outside of x as far as windows reach, can be counted in 32 bits. */
static int in_ints(const conv_shape *s) {
  enum { MOST = 1 << 28, COUNT = INT_MAX - 1024 /* a tile may reach beyond the last */ };
  for (int a = 0; a < CONV_AXES; a++)
    if (s->window[a] > MOST / s->dilation[a] || s->out[a] > MOST / s->stride[a] || s->in[a] > MOST) return 0;
  return positions_of(s) <= COUNT && s->batch * conv_volume(s->in) <= COUNT && s->groups * s->k <= COUNT;
}

static int begins_on_pack(const void *data) { return (uintptr_t)data % 16 == 0; }

/* NULL, or why tensor cores do not serve. */
static const char *hindrance(const quantized_conv_args *a, const tfu_device *device) {
  const conv_shape *s = &a->s;
  if (device->capability < 80) return "the GPU has no products of 8 bits on tensor cores that tfuse knows";
  if (s->in[0] != 1 || s->out[0] != 1 || s->window[0] != 1 || s->before[0] != 0)
    return "tensor cores take one or two spatial axes";
  if (s->c == 0 || s->c % 16 || s->k % 16)
    return "tensor cores take channels and outputs of a group in multiples of 16";
  if (!begins_on_pack(a->x) || !begins_on_pack(a->kernel) || !begins_on_pack(a->y) || !begins_on_pack(a->residual) ||
      !begins_on_pack(a->scale) || !begins_on_pack(a->bias))
    return "tensor cores take tensors that begin on 16 bytes";
  return in_ints(s) ? NULL : "tensor cores take positions that can be counted in 32 bits";
}

/* Of int8, the numbers from least to most, of which relu leaves half. */
static void set_steps(quantized_conv_args *a, float y_scale) {
  enum { MOST = 127 };
  a->y_step = 1;
  if (a->y_kind != QUANTIZED_CONV_I8) return;
  a->y_least = a->relu ? 0 : -MOST;
  a->y_steps = (float)MOST - a->y_least;
  a->y_step = y_scale / a->y_steps;
  a->y_first = -a->y_least / a->y_steps;
}

/* By warpgroups where the GPU's own image is there, which alone has these. Many blocks hide how long it takes to finish
 * a tile, where that is much of the work. */
static tiling *tiling_for(const quantized_conv_args *a, const tfu_device *device) {
  enum { FEW = 128 };
  const conv_shape *s = &a->s;
  const int image = tfu_image_for(groups_module.images, device->capability);
  if (device->capability == 90 && image >= 0 && !groups_module.images[image].is_ptx)
    return s->k > 64 && a->terms > FEW ? &wide_group : &narrow_group;
  return s->k > 64 ? &wide : &narrow;
}

static tfu_code launch_tiles(tfu_call *call, const tfu_device *device, quantized_conv_args *a) {
  const conv_shape *s = &a->s;
  tiling *t = tiling_for(a, device);
  const int64_t down = divide_up(positions_of(s), t->rows), across = divide_up(s->k, t->columns),
                tiles = s->groups * down * across;
  TFU_REQUIRE(call->err, tiles <= INT_MAX / 2, "the convolution is too large: %lld tiles", (long long)tiles);
  a->positions = (int)positions_of(s), a->tiles = (int)tiles;
  a->across = divisor_of(across), a->down = divisor_of(down);
  a->high = divisor_of(s->out[1]), a->wide = divisor_of(s->out[2]);
  const tfu_grid grid = {.x = (unsigned)least(tiles, (int64_t)t->blocks * device->multiprocessors),
                         .threads = (unsigned)t->threads,
                         .shared = (unsigned)(t->stages * QUANTIZED_CONV_STAGE(t->rows, t->columns, t->line))};
  return tfu_launch(call, &t->kernel, 0, 0, grid, a);
}

tfu_code tfu_quantized_conv_gpu(tfu_call *call) {
  static const int kinds[TFU_DTYPES] = {
      [TFU_F32] = QUANTIZED_CONV_F32, [TFU_F16] = QUANTIZED_CONV_F16, [TFU_BF16] = QUANTIZED_CONV_BF16};
  const tfu_tensor *residual = &call->in[TFU_QCONV_RESIDUAL], *y = &call->out[0];
  const tfu_shape kernel = tfu_qconv_kernel(&call->in[TFU_QCONV_KERNEL].shape);
  quantized_conv_args a = {.s = tfu_conv_read(call, &call->in[TFU_QCONV_X].shape, &kernel, &y->shape),
                           .x = call->in[TFU_QCONV_X].data,
                           .kernel = call->in[TFU_QCONV_KERNEL].data,
                           .scale = call->in[TFU_QCONV_SCALE].data,
                           .bias = tfu_given_data(&call->in[TFU_QCONV_BIAS]),
                           .residual = tfu_given_data(residual),
                           .y = y->data,
                           .residual_scale = tfu_qconv_residual_scale(call),
                           .relu = call->attr[TFU_QCONV_RELU].b,
                           .y_kind = kinds[y->dtype],
                           .narrow = residual->dtype == TFU_I8};
  tfu_device device;
  TFU_TRY(tfu_qconv_check(call));
  TFU_TRY(tfu_device_now(&device, call->err));
  a.terms = (int)(conv_volume(a.s.window) * a.s.c);
  set_steps(&a, call->attr[TFU_QCONV_Y_SCALE].f);
  call->why = hindrance(&a, &device);
  if (!call->why) return launch_tiles(call, &device, &a);
  const int64_t blocks = divide_up(positions_of(&a.s) * a.s.groups * a.s.k, TFU_THREADS);
  const tfu_grid grid = {.x = (unsigned)least(blocks, INT_MAX), .threads = TFU_THREADS};
  return tfu_launch(call, &direct, 0, 0, grid, &a);
}
