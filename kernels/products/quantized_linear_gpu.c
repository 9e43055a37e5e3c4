/* quantized_linear on the GPU: w in the type of x, in scratch, and the product of Linear. */
#include "kernels/products/quantized_linear.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "ops/products/quantized_linear.h"

TFU_MODULE(quantized_linear);

static tfu_code dequantize(tfu_call *call, const quantized_kernel *k, const tfu_tensor *w) {
  static tfu_kernel kernel = {.module = &module, .name = "dequantize"};
  dequantize_args a = {.kernel = *k, .w = w->data};
  const tfu_grid grid = {.x = (unsigned)divide_up(k->outputs, TFU_THREADS),
                         .y = (unsigned)(k->inputs < 65535 ? k->inputs : 65535),
                         .threads = TFU_THREADS};
  return tfu_launch(call, &kernel, 0, w->dtype, grid, &a);
}

tfu_code tfu_quantized_linear_gpu(tfu_call *call) {
  static const quantized_parts parts = {.dequantize = dequantize, .linear = tfu_linear_gpu};
  return tfu_quantized_linear_by_parts(call, &parts);
}

tfu_code tfu_quantized_linear_grad_gpu(tfu_call *call) {
  static const quantized_parts parts = {.dequantize = dequantize, .linear_grad = tfu_linear_grad_gpu};
  return tfu_quantized_linear_grad_by_parts(call, &parts);
}
