#include "kernels/generation/experts.h"

#include "ops/generation/experts.h"
#include "ops/products/linear.h"

tfu_code tfu_expert_open(tfu_call *call, int64_t rows, expert_parts *parts) {
  const size_t bytes = (size_t)(rows * call->in[TFU_EXPERTS_DOWN].shape.dim[1]) * tfu_dtype_size(call->in[0].dtype);
  TFU_TRY(tfu_scratch(call, 2 * bytes, &parts->wide));
  TFU_TRY(tfu_scratch(call, bytes, &parts->inner));
  tfu_recycled_open(&parts->space, call);
  return TFU_OK;
}

/* Of kernels [experts, inputs, outputs] that of one expert. */
static tfu_tensor kernel_of(const tfu_tensor *kernels, int64_t e) {
  const int64_t *dim = kernels->shape.dim;
  return (tfu_tensor){.data = (char *)kernels->data + e * dim[1] * dim[2] * (int64_t)tfu_dtype_size(kernels->dtype),
                      .dtype = kernels->dtype,
                      .shape = {.rank = 2, .dim = {dim[1], dim[2]}}};
}

static tfu_tensor rows_of(void *data, tfu_dtype dtype, int64_t rows, int64_t width) {
  return (tfu_tensor){.data = data, .dtype = dtype, .shape = {.rank = 2, .dim = {rows, width}}};
}

static tfu_code multiply(expert_parts *parts, tfu_tensor x, tfu_tensor kernel, tfu_tensor y) {
  tfu_call *linear = tfu_part(&parts->space, &tfu_linear);
  linear->in[TFU_LINEAR_X] = x;
  linear->in[TFU_LINEAR_KERNEL] = kernel;
  linear->out[TFU_LINEAR_Y] = y;
  return parts->linear(linear);
}

tfu_code tfu_expert(tfu_call *call, expert_parts *parts, int64_t e, tfu_tensor x, tfu_tensor y) {
  const tfu_tensor *gate = &call->in[TFU_EXPERTS_GATE], *up = &call->in[TFU_EXPERTS_UP],
                   *down = &call->in[TFU_EXPERTS_DOWN];
  const int64_t rows = x.shape.dim[0], width = gate->shape.dim[2], inner = down->shape.dim[1];
  const tfu_tensor first = rows_of(parts->wide, x.dtype, rows, width),
                   made = rows_of(parts->inner, x.dtype, rows, inner);
  TFU_TRY(multiply(parts, x, kernel_of(gate, e), first));
  tfu_tensor second = {.dtype = x.dtype, .shape = {.rank = 1}};
  if (tfu_given(&up->shape)) {
    second = rows_of((char *)parts->wide + rows * inner * (int64_t)tfu_dtype_size(x.dtype), x.dtype, rows, inner);
    TFU_TRY(multiply(parts, x, kernel_of(up, e), second));
  }
  tfu_call *gated = tfu_part(&parts->space, &tfu_gated);
  gated->attr[0].i = call->attr[TFU_EXPERTS_ACTIVATION].i;
  gated->in[0] = first;
  gated->in[1] = second;
  gated->out[0] = made;
  TFU_TRY(parts->gated(gated));
  return multiply(parts, made, kernel_of(down, e), y);
}
