#include "kernels/elementwise/scale_bias_act.h"

#include "activations.h"

TFU_MODULE(scale_bias_act);

static const char *const names[TFU_ACTS] = TFU_ACTIVATION_NAMES;
_Static_assert((int)TFU_ACTS <= (int)TFU_MAX_VARIANTS, "every activation is a variant of the kernel");

static tfu_kernel forward = {.module = &module, .name = "scale_bias_act", .variants = names};
static tfu_kernel backward = {.module = &module, .name = "scale_bias_act_grad", .variants = names};

/* Blocks per multiprocessor, by measurement on an H200 over all activations at [16384, 8192]. Forward, for each byte of
 * an element: at 32, 64, 128 blocks float32 reaches at worst 93, 95, 97% of the copy speed, while bfloat16 falls behind
 * from 128 on. Backward: at 2, 3, 4 blocks at worst 94, 91, 92% for float32 and 92, 86, 83% for bfloat16, for every
 * block leaves partial sums behind. */
enum { FORWARD_BLOCKS_PER_BYTE = 32, BACKWARD_BLOCKS = 2 };

/* Channels to keep apart: without a value per channel the tensor is one long row. */
static int64_t channels(const tfu_tensor *x, int64_t scale_count, int64_t bias_count) {
  return scale_count > 1 || bias_count > 1 ? tfu_cols(&x->shape) : 1;
}

tfu_code tfu_scale_bias_act_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0], *scale = &call->in[1], *bias = &call->in[2];
  scale_bias_act_args a = {.y = call->out[0].data,
                           .x = x->data,
                           .scale = scale->data,
                           .bias = bias->data,
                           .scale_count = tfu_count(&scale->shape),
                           .bias_count = tfu_count(&bias->shape)};
  tfu_grid grid;
  const int blocks = FORWARD_BLOCKS_PER_BYTE * (int)tfu_dtype_size(x->dtype);
  TFU_TRY(tfu_walk_plan(call, channels(x, a.scale_count, a.bias_count), blocks, &a.walk, &grid));
  return tfu_launch(call, &forward, (int)call->attr[0].i, x->dtype, grid, &a);
}

tfu_code tfu_scale_bias_act_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *x = &call->in[1], *scale = &call->in[2], *bias = &call->in[3];
  scale_bias_act_grad_args a = {.dx = call->out[0].data,
                                .dy = dy->data,
                                .x = x->data,
                                .scale = scale->data,
                                .bias = bias->data,
                                .scale_count = tfu_count(&scale->shape),
                                .bias_count = tfu_count(&bias->shape)};
  const size_t real = tfu_dtype_size(tfu_real(x->dtype));
  tfu_grid grid;
  TFU_TRY(tfu_walk_plan(call, channels(x, a.scale_count, a.bias_count), BACKWARD_BLOCKS, &a.walk, &grid));
  if (a.scale_count || a.bias_count) TFU_TRY(tfu_scratch(call, (size_t)(grid.y * 2 * a.walk.width) * real, &a.partial));
  TFU_TRY(tfu_launch(call, &backward, (int)call->attr[0].i, x->dtype, grid, &a));
  return tfu_fold_gpu(call, a.partial, grid.y, a.walk.width, 2, &call->out[1]);
}

/* ---- for other ops ---- */

tfu_code tfu_bias_act_launch(tfu_call *call, int activation, tfu_dtype dtype, int64_t n, int64_t cols, void *y,
                             const void *x, const void *bias) {
  scale_bias_act_args a = {.y = y, .x = x, .bias = bias, .bias_count = bias ? cols : 0};
  const int blocks = FORWARD_BLOCKS_PER_BYTE * (int)tfu_dtype_size(dtype);
  tfu_grid grid;
  TFU_TRY(tfu_walk_plan_of(call, n, dtype, cols, blocks, &a.walk, &grid));
  return tfu_launch(call, &forward, activation, dtype, grid, &a);
}

tfu_code tfu_act_grad_launch(tfu_call *call, int activation, tfu_dtype dtype, int64_t n, int64_t cols, void *dx,
                             const void *dy, const void *x, const tfu_tensor *dbias) {
  scale_bias_act_grad_args a = {.dx = dx, .dy = dy, .x = x};
  const tfu_tensor out[2] = {{.dtype = dbias->dtype, .shape.rank = 1}, *dbias}; /* no sums of dy * x */
  const int sums = tfu_count(&dbias->shape) > 0;
  tfu_grid grid;
  TFU_TRY(tfu_walk_plan_of(call, n, dtype, sums ? cols : 1, BACKWARD_BLOCKS, &a.walk, &grid));
  if (sums)
    TFU_TRY(tfu_scratch(call, (size_t)(grid.y * 2 * a.walk.width) * tfu_dtype_size(tfu_real(dtype)), &a.partial));
  TFU_TRY(tfu_launch(call, &backward, activation, dtype, grid, &a));
  return sums ? tfu_fold_gpu(call, a.partial, grid.y, a.walk.width, 2, out) : TFU_OK;
}
