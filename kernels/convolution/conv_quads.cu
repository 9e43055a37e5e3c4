/* Images and kernels in quads (conv_quads.h): 16-bit elements, of any type, are moved. Bound by memory: a thread writes
 * a pack, one row of a quad; what it reads of x its neighbours find in the cache. */
#include "kernels/convolution/conv_quads.h"

#include "kernels/core/device/pack.cuh"

/* Takes the innermost coordinate, of so many, off a unit's number. */
__device__ inline uint32_t digit(uint32_t &rest, uint32_t size) {
  const uint32_t outer = rest / size, found = rest - outer * size;
  rest = outer;
  return found;
}

__device__ inline void conv_quads_image(const conv_quads_args &a) {
  for (uint32_t unit = blockIdx.x * TFU_THREADS + threadIdx.x; unit < a.units; unit += gridDim.x * TFU_THREADS) {
    uint32_t rest = unit;
    const int half = (int)digit(rest, 2);
    const uint32_t j = digit(rest, a.quad_cols), i = digit(rest, a.quad_rows);
    const uint16_t *image = (const uint16_t *)a.from + (int64_t)rest * a.rows * a.cols;
    alignas(16) uint16_t v[CONV_QUAD_HALF];
    UNROLLED(e, CONV_QUAD_HALF) {
      const int64_t at = conv_quads_source(&a, i, j, half, e);
      v[e] = at < 0 ? (uint16_t)0 : image[at];
    }
    ((int4 *)a.to)[unit] = *(const int4 *)v;
  }
}

__device__ inline void conv_quads_kernel(const conv_quads_args &a) {
  const uint16_t *from = (const uint16_t *)a.from;
  uint16_t *to = (uint16_t *)a.to;
  for (uint32_t unit = blockIdx.x * TFU_THREADS + threadIdx.x; unit < a.units; unit += gridDim.x * TFU_THREADS) {
    uint32_t rest = unit;
    const uint32_t output = digit(rest, a.inner);
    const int e = (int)digit(rest, CONV_QUAD_HALF), half = (int)digit(rest, 2);
    const uint32_t j = digit(rest, a.quad_cols);
    const int64_t at = conv_quads_source(&a, rest, j, half, e);
    const int64_t position = at < 0 ? 0 : at * a.inner + output;
    if (!a.back) to[unit] = at < 0 ? (uint16_t)0 : from[position];
    else if (at >= 0) to[position] = from[unit];
  }
}

TFU_KERNEL_AS_(conv_quads_image_b16, conv_quads_args, conv_quads_image)
TFU_KERNEL_AS_(conv_quads_kernel_b16, conv_quads_args, conv_quads_kernel)
