#include "kernels/elementwise/rope.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/tunable.h"
#include "ops/elementwise/rope.h"

TFU_MODULE(rope);
static tfu_kernel half = {.module = &module, .name = "rope_half"};
static tfu_kernel interleaved = {.module = &module, .name = "rope_interleaved"};
static tfu_kernel part = {.module = &module, .name = "rope_part"};

TFU_TUNABLE(blocks, 32, 1, 256);     /* per multiprocessor                */
TFU_TUNABLE(half_blocks, 8, 1, 256); /* the same, where pairs are half a head apart */

/* Blocks in a number by which threads go on by whole heads. */
static tfu_code halves(tfu_call *call, tfu_dtype dtype, rope_args a) {
  const int64_t packs = a.by.half * (int64_t)tfu_dtype_size(dtype) / 16;
  tfu_device device;
  TFU_TRY(tfu_device_now(&device, call->err));
  int64_t unit = packs;
  while (unit % 2 == 0 && packs / unit < TFU_THREADS) unit /= 2;
  a.slices = divide_up(a.heads, TFU_ROPE_HEADS);
  const int64_t wanted = divide_up(a.tokens * a.slices * packs, TFU_THREADS),
                most = (int64_t)device.multiprocessors * half_blocks(),
                units = divide_up(wanted < most ? wanted : most, unit);
  return tfu_launch(call, &half, 0, dtype, (tfu_grid){.x = (unsigned)(units * unit), .threads = TFU_THREADS}, &a);
}

static tfu_code rotate(tfu_call *call, const tfu_tensor *x, const tfu_tensor *y, const tfu_tensor *positions) {
  const int64_t n = tfu_count(&x->shape), size = (int64_t)tfu_dtype_size(x->dtype);
  if (!tfu_given(&x->shape) || n == 0) return TFU_OK;
  const int64_t head_dim = x->shape.dim[3],
                rotary = call->attr[TFU_ROPE_ROTARY].i ? call->attr[TFU_ROPE_ROTARY].i : head_dim;
  const double forward = call->attr[TFU_ROPE_SCALE].f, scale = call->attr[TFU_ROPE_INVERSE].b ? -forward : forward;
  rope_args a = {.y = y->data,
                 .x = x->data,
                 .positions = positions->data,
                 .by = rope_frequencies_of(tfu_given_data(&call->in[TFU_ROPE_FREQUENCIES]), call->attr[TFU_ROPE_BASE].f,
                                           scale, rotary / 2),
                 .head_dim = head_dim,
                 .heads = x->shape.dim[2],
                 .time = x->shape.dim[1],
                 .tokens = x->shape.dim[0] * x->shape.dim[1],
                 .kind = positions->shape.rank,
                 .wide = positions->dtype == TFU_I64,
                 .interleaved = call->attr[TFU_ROPE_PAIRING].i == TFU_ROPE_INTERLEAVED};
  tfu_grid grid;
  const int64_t run = a.interleaved ? head_dim : a.by.half; /* elements that packs must fill */
  if (rotary < head_dim || run * size % 16 || !tfu_aligned(call, n)) {
    TFU_TRY(tfu_walk_plan_of(call, n / 2, x->dtype, 1, blocks(), &a.walk, &grid));
    grid = (tfu_grid){.x = grid.x * grid.y, .threads = TFU_THREADS};
    return tfu_launch(call, &part, 0, x->dtype, grid, &a);
  }
  if (a.interleaved) {
    TFU_TRY(tfu_walk_plan_of(call, n, x->dtype, head_dim * a.heads, blocks(), &a.walk, &grid));
    return tfu_launch(call, &interleaved, 0, x->dtype, grid, &a);
  }
  return halves(call, x->dtype, a);
}

tfu_code tfu_rope_gpu(tfu_call *call) {
  for (int i = 0; i < 2; i++) TFU_TRY(rotate(call, &call->in[i], &call->out[i], &call->in[TFU_ROPE_POSITIONS]));
  return TFU_OK;
}
