/* advance on the GPU: a thread for each sequence. */
#include "kernels/generation/advance.h"

#include "kernels/core/device/pack.cuh"

__device__ inline void advance(const advance_args &a) {
  const int64_t b = (int64_t)blockIdx.x * ADVANCE_THREADS + threadIdx.x;
  if (b < a.batch) advance_one(&a, b);
}
TFU_STAMP((ADVANCE_THREADS), advance_any, advance_args, advance)
