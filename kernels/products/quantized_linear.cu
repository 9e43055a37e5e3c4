/* Kernels of 8 and 4 bits as matrices that any product takes. */
#include "kernels/products/quantized_linear.h"

#include "kernels/core/device/pack.cuh"

/* An element of w for each thread: neighbours are columns. */
template <typename T>
__device__ inline void dequantize(const dequantize_args &a) {
  typedef acc<T> R;
  const quantized_kernel &k = a.kernel;
  const auto scale = [&](int64_t at) { return k.wide ? ((const R *)k.scale)[at] : (R)((const T *)k.scale)[at]; };
  const int64_t o = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (o >= k.outputs) return;
  for (int64_t i = blockIdx.y; i < k.inputs; i += gridDim.y) {
    const int64_t g = quant_group(&k, i);
    R v;
    if (k.order == QUANT_TILES) {
      v = ((R)quant_at(&k, i, o) - scale((2 * g + 1) * k.outputs + o)) * scale(2 * g * k.outputs + o);
    } else {
      const int64_t at = quant_scale_at(&k, g, o);
      v = (R)(quant_at(&k, i, o) - (k.zero ? quant_value(k.zero[at], 8, k.is_signed) : 0));
      v = k.divide ? v / scale(at) : v * scale(at);
    }
    if (k.input_scale) v /= (R)((const T *)k.input_scale)[i];
    ((T *)a.w)[i * k.outputs + o] = (T)v;
  }
}
TFU_KERNEL(dequantize, dequantize_args)
