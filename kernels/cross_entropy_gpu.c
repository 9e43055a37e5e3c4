#include "kernels/cross_entropy.h"

TFU_MODULE(cross_entropy);

/* By measurement on an H200 at [8192, 50304], bfloat16: at 1, 4, 16 waves forward reaches 94, 101, 97% of the copy
 * speed, backward 74, 85, 92%. */
enum { FORWARD_WAVES = 4, BACKWARD_WAVES = 16 };

static tfu_code plan(tfu_call *call, int tensors, int looks, int separate, tfu_row_plan *rows, tfu_grid *grid,
                     int *variant) {
  const tfu_tensor *x = &call->in[0];
  const tfu_row_wish wish = {.rows = tfu_rows(&x->shape),
                             .cols = tfu_cols(&x->shape),
                             .dtype = x->dtype,
                             .tensors = tensors,
                             .elements = TFU_CROSS_ENTROPY_ELEMENTS,
                             .looks = looks,
                             .separate = separate,
                             .waves = separate ? BACKWARD_WAVES : FORWARD_WAVES,
                             .aligned = tfu_aligned(call, tfu_count(&x->shape))};
  return tfu_plan_rows(call, &wish, rows, grid, variant);
}

static tfu_code forward(tfu_call *call, tfu_kernel *kernel, int sparse) {
  const tfu_tensor *x = &call->in[0], *second = &call->in[1];
  cross_entropy_args a = {.x = x->data,
                          .loss = call->out[0].data,
                          .stats = call->out[1].data,
                          .smoothing = call->attr[0].f,
                          .z_loss = call->attr[1].f};
  tfu_grid grid;
  int variant;
  *(sparse ? &a.labels : &a.targets) = second->data;
  a.ignore = sparse ? call->attr[2].i : 0;
  a.wide = second->dtype == TFU_I64;
  TFU_TRY(plan(call, sparse ? 1 : 2, sparse ? 1 : 2, 0, &a.rows, &grid, &variant));
  return tfu_launch(call, kernel, variant, x->dtype, grid, &a);
}

static tfu_code backward(tfu_call *call, tfu_kernel *kernel, int sparse) {
  const tfu_tensor *x = &call->in[0], *second = &call->in[1];
  cross_entropy_grad_args a = {.dx = call->out[0].data,
                               .x = x->data,
                               .stats = call->in[2].data,
                               .dloss = call->in[3].data,
                               .smoothing = call->attr[0].f,
                               .z_loss = call->attr[1].f};
  tfu_grid grid;
  int variant;
  *(sparse ? &a.labels : &a.targets) = second->data;
  a.ignore = sparse ? call->attr[2].i : 0;
  a.wide = second->dtype == TFU_I64;
  TFU_TRY(plan(call, sparse ? 1 : 2, 1, 1, &a.rows, &grid, &variant));
  return tfu_launch(call, kernel, variant, x->dtype, grid, &a);
}

#define ENTRY(stem, direction, sparse)                                                           \
  tfu_code tfu_##stem##_gpu(tfu_call *call) {                                                    \
    static tfu_kernel kernel = {.module = &module, .name = #stem, .variants = tfu_row_variants}; \
    return direction(call, &kernel, sparse);                                                     \
  }
ENTRY(sparse_cross_entropy, forward, 1)
ENTRY(sparse_cross_entropy_grad, backward, 1)
ENTRY(cross_entropy, forward, 0)
ENTRY(cross_entropy_grad, backward, 0)
