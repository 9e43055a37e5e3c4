/* x + constant, and the first half of the sum of dy: one partial sum per block of threads and column. */
#include "kernels/core/map.cuh"

#include "kernels/add_constant.h"

template <typename T>
__device__ inline void add_constant_grad(const tfu_map_args &a) {
  enum { N = pack<T>::N, DEPTH = 4 };
  const int64_t col = walk_column<T>(), step = (int64_t)gridDim.y * a.walk.width;
  if (col >= a.walk.width) return;
  acc<T> sum[N] = {0};
  for (int64_t at = blockIdx.y * a.walk.width + col; at < a.walk.n; at += DEPTH * step) {
    pack<T> dy[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; d++) if (at + d * step < a.walk.n) dy[d] =
        load_pack<T>(a.in[0], at + d * step, a.walk);
    UNROLL for (int d = 0; d < DEPTH; d++) if (at + d * step < a.walk.n) UNROLL for (int k = 0; k < N; k++) sum[k] +=
        widen(dy[d].v[k]);
  }
  UNROLL for (int k = 0; k < N; k++)((acc<T> *)a.y)[blockIdx.y * a.walk.width + col + k] = sum[k];
}
TFU_KERNEL(add_constant_grad, tfu_map_args)
