#include "kernels/elementwise/gated.h"

#include "activations.h"

TFU_MODULE(gated);

static const char *const names[TFU_ACTS] = TFU_ACTIVATION_NAMES;
static tfu_kernel forward = {.module = &module, .name = "gated", .variants = names};
static tfu_kernel backward = {.module = &module, .name = "gated_grad", .variants = names};

enum { BLOCKS = 64 }; /* per multiprocessor */

/* The second half of a, or b; *half is 0 for b. */
static void *other(const tfu_tensor *a, const tfu_tensor *b, int64_t *half) {
  *half = tfu_given(&b->shape) ? 0 : tfu_cols(&a->shape) / 2;
  return *half ? (char *)a->data + (size_t)*half * tfu_dtype_size(a->dtype) : b->data;
}

/* A walk over the elements of y (or dy). Halves of an odd size do not begin where packs do. */
static tfu_code plan(tfu_call *call, const tfu_tensor *y, int64_t half, tfu_walk *walk, tfu_grid *grid) {
  TFU_TRY(tfu_walk_plan_of(call, tfu_count(&y->shape), y->dtype, half ? half : 1, BLOCKS, walk, grid));
  const int64_t count = tfu_count(&y->shape) * (half ? 2 : 1);
  walk->aligned = walk->aligned && tfu_aligned(call, count) && half * tfu_dtype_size(y->dtype) % 16 == 0;
  return TFU_OK;
}

tfu_code tfu_gated_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0];
  gated_args a = {.y = call->out[0].data, .a = x->data};
  tfu_grid grid;
  a.b = other(x, &call->in[1], &a.half);
  TFU_TRY(plan(call, &call->out[0], a.half, &a.walk, &grid));
  return tfu_launch(call, &forward, (int)call->attr[0].i, x->dtype, grid, &a);
}

tfu_code tfu_gated_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *x = &call->in[1];
  gated_grad_args a = {.da = call->out[0].data, .dy = dy->data, .a = x->data};
  int64_t half;
  tfu_grid grid;
  a.b = other(x, &call->in[2], &a.half);
  a.db = other(&call->out[0], &call->out[1], &half);
  TFU_TRY(plan(call, dy, a.half, &a.walk, &grid));
  return tfu_launch(call, &backward, (int)call->attr[0].i, x->dtype, grid, &a);
}
