/* Numbers of 2, 4 or 8 bytes that are moved: from the places that a list says, or to them. */
#include "kernels/sorting/sort.h"

#include "kernels/core/device/pack.cuh"

/* Of 64 bits a division is long, and few need it. */
__device__ inline int64_t row_of(int64_t at, int64_t k) {
  return (at | k) >> 32 ? at / k : (int64_t)((uint32_t)at / (uint32_t)k);
}

__device__ inline void move_number(void *to, int64_t to_at, const void *from, int64_t at, int size) {
  if (size == 4) ((uint32_t *)to)[to_at] = ((const uint32_t *)from)[at];
  else if (size == 2) ((uint16_t *)to)[to_at] = ((const uint16_t *)from)[at];
  else ((uint64_t *)to)[to_at] = ((const uint64_t *)from)[at];
}

/* Named after a float, as all kernels are; it moves numbers of any size. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) move_f32(const move_args a) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  ONCE
  for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < a.n; at += step) {
    const int64_t row = row_of(at, a.k);
    const int place = a.places[row * a.stride + (at - row * a.k)];
    const int64_t other = row * a.cols + place;
    if (a.copied) a.copied[at] = place;
    if (place >= 0 && place < a.cols) move_number(a.to, a.put ? other : at, a.from, a.put ? at : other, a.size);
  }
}
