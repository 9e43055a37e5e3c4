#include "kernels/core/gpu/channels.h"

TFU_MODULE(gated);

static tfu_kernel forward = TFU_ACTIVATION_KERNEL("gated");
static tfu_kernel backward = TFU_ACTIVATION_KERNEL("gated_grad");

/* The second half of a, or b; *half is 0 for b. */
static void *other(const tfu_tensor *a, const tfu_tensor *b, int64_t *half) {
  *half = tfu_given(&b->shape) ? 0 : tfu_cols(&a->shape) / 2;
  return *half ? (char *)a->data + (size_t)*half * tfu_dtype_size(a->dtype) : b->data;
}

/* A walk over the elements of y, or dy. */
static tfu_code launch(tfu_call *call, tfu_kernel *kernel, const tfu_channels *op, const tfu_tensor *y,
                       tfu_channels_args *a) {
  const int activation = (int)call->attr[0].i;
  return tfu_channels_launch(call, kernel, activation, op, y->dtype, tfu_count(&y->shape), a->half ? a->half : 1, a,
                             NULL);
}

tfu_code tfu_gated_gpu(tfu_call *call) {
  static const tfu_channels op = TFU_CHANNELS_OP(2, 0, 1, 0); /* a and b; y */
  const tfu_tensor *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
  tfu_channels_args args = {.x = {a->data}, .y = {y->data}};
  args.x[1] = other(a, b, &args.half);
  return launch(call, &forward, &op, y, &args);
}

tfu_code tfu_gated_grad_gpu(tfu_call *call) {
  static const tfu_channels op = TFU_CHANNELS_OP(3, 0, 2, 0); /* dy, a and b; da and db */
  const tfu_tensor *dy = &call->in[0], *a = &call->in[1], *b = &call->in[2], *da = &call->out[0], *db = &call->out[1];
  tfu_channels_args args = {.x = {dy->data, a->data}, .y = {da->data}};
  args.x[2] = other(a, b, &args.half);
  args.y[1] = other(da, db, &args.half);
  return launch(call, &backward, &op, dy, &args);
}
