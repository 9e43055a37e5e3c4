#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/generation/route.h"
#include "ops/generation/experts.h"

TFU_MODULE(route_experts);

tfu_code tfu_route_experts_gpu(tfu_call *call) {
  static tfu_kernel kernel = {.module = &module, .name = "route_experts"};
  const tfu_tensor *logits = &call->in[0];
  route_args a = {.logits = logits->data,
                  .weights = call->out[TFU_ROUTE_WEIGHTS].data,
                  .numbers = call->out[TFU_ROUTE_NUMBERS].data,
                  .rows = logits->shape.dim[0],
                  .experts = logits->shape.dim[1],
                  .top_k = (int)call->attr[TFU_ROUTE_TOP_K].i,
                  .normalized = call->attr[TFU_ROUTE_NORMALIZED].b};
  const tfu_grid grid = {.x = (unsigned)divide_up(a.rows, ROUTE_THREADS / 32), .threads = ROUTE_THREADS};
  return tfu_launch(call, &kernel, 0, logits->dtype, grid, &a);
}
