#include "kernels/convolution/scale_channels.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(scale_channels);
static const char *const variants[] = {"singles", "packs"};
static tfu_kernel forward = {.module = &module, .name = "scale_channels", .variants = variants};
static tfu_kernel backward = {.module = &module, .name = "scale_channels_grad", .variants = variants};

/* Blocks per multiprocessor, by measurement on an H200 at [256, 56, 56, 144]: at 32, 64, 128, 256 blocks float32
 * reaches 81, 86, 93, 98% of the copy's speed and bfloat16 79, 87, 89, 90%. With sums, of which each part of an image
 * leaves some behind: at 8, 32, 64, 128 blocks 84, 91, 93, 95% and 86, 91, 92, 84%. */
TFU_TUNABLE(blocks, 256, 1, 512);
TFU_TUNABLE(sums_blocks, 64, 1, 512);

static int begins_on_a_pack(const void *p) { return (uintptr_t)p % 16 == 0; }

/* How x [images, positions …, channels] is dealt out to about so many blocks per multiprocessor; returns whether words
 * are packs. */
static int deal_out(const tfu_tensor *x, int64_t wanted, int aligned, scale_channels_args *a, tfu_grid *grid) {
  const int64_t pack = 16 / (int64_t)tfu_dtype_size(x->dtype);
  const int rank = x->shape.rank;
  a->images = x->shape.dim[0];
  a->channels = x->shape.dim[rank - 1];
  a->positions = 1;
  for (int i = 1; i < rank - 1; i++) a->positions *= x->shape.dim[i];
  const int packs = aligned && a->channels % pack == 0;
  a->words = packs ? a->channels / pack : a->channels;
  a->tiles = divide_up(a->words, TFU_THREADS);
  a->lanes = (int)divide_up(a->words, a->tiles);
  a->rows = TFU_THREADS / a->lanes;
  /* A part is as many iterations of a thread's loop for all blocks, but the last of an image. */
  const int64_t iteration = (int64_t)TFU_SCALE_AHEAD * a->rows, iterations = divide_up(a->positions, iteration);
  const int64_t parts = divide_up(wanted, a->images * a->tiles);
  a->part = iteration * divide_up(iterations, parts);
  *grid = (tfu_grid){.x = (unsigned)(a->tiles * (a->part ? divide_up(a->positions, a->part) : 1)),
                     .y = (unsigned)least(a->images, 65535),
                     .threads = (unsigned)divide_up(a->lanes * a->rows, 32) * 32};
  return packs;
}

tfu_code tfu_scale_channels_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0], *scale = &call->in[1], *y = &call->out[0];
  scale_channels_args a = {.x = x->data, .scale = scale->data, .y = y->data, .drop = call->attr[0].b};
  tfu_device device;
  tfu_grid grid;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int aligned = begins_on_a_pack(a.x) && begins_on_a_pack(a.scale) && begins_on_a_pack(a.y);
  const int packs = deal_out(x, (int64_t)device.multiprocessors * blocks(), aligned, &a, &grid);
  return tfu_launch(call, &forward, packs, x->dtype, grid, &a);
}

tfu_code tfu_scale_channels_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *x = &call->in[1], *scale = &call->in[2];
  const tfu_tensor *dx = &call->out[0], *dscale = &call->out[1];
  if (!tfu_count(&dscale->shape)) return TFU_OK;
  scale_channels_args a = {.dy = dy->data, .x = x->data, .scale = scale->data, .y = dx->data, .dscale = dscale->data};
  tfu_device device;
  tfu_grid grid;
  TFU_TRY(tfu_device_now(&device, call->err));
  const int aligned = begins_on_a_pack(a.dy) && begins_on_a_pack(a.x) && begins_on_a_pack(a.scale) &&
                      begins_on_a_pack(a.y) && begins_on_a_pack(a.dscale);
  const int packs = deal_out(x, (int64_t)device.multiprocessors * sums_blocks(), aligned, &a, &grid);
  const int64_t parts = grid.x / a.tiles, sums = a.images * a.channels;
  if (parts == 1) return tfu_launch(call, &backward, packs, x->dtype, grid, &a);
  a.dscale = NULL;
  TFU_TRY(tfu_scratch(call, (size_t)(parts * sums) * tfu_dtype_size(tfu_real(x->dtype)), &a.partial));
  TFU_TRY(tfu_launch(call, &backward, packs, x->dtype, grid, &a));
  return tfu_fold_gpu(call, a.partial, parts, sums, 1, dscale);
}
