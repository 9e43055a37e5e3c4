#include "kernels/rows/softmax.h"

#include "kernels/core/gpu/tunable.h"

TFU_MODULE(softmax);
/* The second for masks, for scales that are not positive and for rows of any kind. */
static tfu_kernel forward[] = {{.module = &module, .name = "softmax_plain", .variants = tfu_row_variants},
                               {.module = &module, .name = "softmax_general", .variants = tfu_row_variants}};
static tfu_kernel backward = {.module = &module, .name = "softmax_grad", .variants = tfu_row_variants};

/* By measurement on an H200, bfloat16. Forward at [16384, 8192] 16 waves are best: blocks of two rows even out what
 * long-lived ones do not, and of one, they start too often. Backward, a block for every row is at least as fast at
 * every length, and at 32,768 columns has 93 against 76% of the copy speed. */
TFU_TUNABLE(forward_waves, 16, 1, 64);
/* KiB of a row, KiB of its share for types of two bytes, twice as much for float32, and groups. On an H200, shares of
 * 64 and 128 KiB have 79 and 80% of the copy speed at 65,536 columns in bfloat16, 74 and 68 at 262,144; in float32 57
 * and 64, 49 and 57. */
TFU_TUNABLE(ring_from, 48, 16, 1024);
TFU_TUNABLE(ring_share, 64, 16, 128);
TFU_TUNABLE(ring_ahead, 1, 1, 12);
TFU_TUNABLE(backward_cluster, 2, 1, 8);

static tfu_code mask_kind(tfu_call *call, const tfu_tensor *x, const tfu_tensor *mask, int *kind) {
  *kind = !tfu_given(&mask->shape) ? TFU_MASK_NONE : mask->dtype == TFU_BOOL ? TFU_MASK_KEEP : TFU_MASK_ADD;
  TFU_REQUIRE(call->err, *kind != TFU_MASK_ADD || mask->dtype == x->dtype, "mask must be bool or %s like x, got %s",
              tfu_dtype_name(x->dtype), tfu_dtype_name(mask->dtype));
  return TFU_OK;
}

tfu_code tfu_softmax_gpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0], *mask = &call->in[1];
  softmax_args a = {.y = call->out[0].data,
                    .x = x->data,
                    .mask = mask->data,
                    .stretch = tfu_stretch_of(&mask->shape, &x->shape),
                    .scale = call->attr[0].f,
                    .log = call->attr[1].b};
  const tfu_row_job job = {.rows = tfu_rows(&x->shape),
                           .cols = tfu_cols(&x->shape),
                           .dtype = x->dtype,
                           .tensors = 1,
                           .aligned = tfu_aligned(call, tfu_count(&x->shape)) && (uintptr_t)mask->data % 16 == 0};
  TFU_TRY(mask_kind(call, x, mask, &a.mask_kind));
  const int general = a.mask_kind != TFU_MASK_NONE || !(a.scale > 0);
  const tfu_row_kernel kernel = {.kernel = &forward[general],
                                 .any = &forward[1],
                                 .has = TFU_HAS_RING | TFU_HAS_THREAD,
                                 .elements = TFU_SOFTMAX_ELEMENTS,
                                 .looks = 2,
                                 .threads = 1024,
                                 .waves = forward_waves(),
                                 .cluster = 1,
                                 .found = general ? 0 : 3 * tfu_dtype_size(tfu_real(x->dtype)), /* an online_softmax */
                                 .ring = {ring_from(), ring_share() * (x->dtype == TFU_F32 ? 2 : 1), ring_ahead()}};
  return tfu_launch_rows(call, &kernel, job, &a.rows, &a);
}

tfu_code tfu_softmax_grad_gpu(tfu_call *call) {
  const tfu_tensor *dy = &call->in[0], *y = &call->in[1];
  softmax_grad_args a = {
      .dx = call->out[0].data, .dy = dy->data, .y = y->data, .scale = call->attr[0].f, .log = call->attr[1].b};
  const tfu_row_job job = {.rows = tfu_rows(&y->shape),
                           .cols = tfu_cols(&y->shape),
                           .dtype = y->dtype,
                           .tensors = 2,
                           .aligned = tfu_aligned(call, tfu_count(&y->shape))};
  const tfu_row_kernel kernel = {.kernel = &backward,
                                 .any = &backward,
                                 .has = TFU_ALONE | TFU_HAS_THREAD,
                                 .elements = TFU_SOFTMAX_ELEMENTS,
                                 .looks = 2,
                                 .threads = 1024,
                                 .waves = 1,
                                 .cluster = backward_cluster(),
                                 .found = tfu_dtype_size(tfu_real(y->dtype))};
  return tfu_launch_rows(call, &kernel, job, &a.rows, &a);
}
