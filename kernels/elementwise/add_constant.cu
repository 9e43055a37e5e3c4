/* x + constant, and the first half of the sum of dy: one partial sum per block of threads and column. */
#include "kernels/core/device/map.cuh"
/* Lines of its macros: */
#include "kernels/elementwise/add_constant.h"

template <typename T>
__device__ inline void add_constant_grad(const tfu_map_args &a) {
  enum { N = packed<T>::N };
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  acc<T> dy[N], sum[N] = {0};
  for (; is_whole<T>(at, a.walk); at += step) {
    widen_pack<T>(*(const int4 *)((const T *)a.in[0] + at), dy);
    UNROLL
    for (int k = 0; k < N; k++) sum[k] += dy[k];
  }
  for (; at < a.walk.n; at += step) {
    load_part((const T *)a.in[0], at, a.walk, dy);
    UNROLL
    for (int k = 0; k < N; k++) sum[k] += dy[k];
  }
  UNROLL
  for (int k = 0; k < N; k++) ((acc<T> *)a.y)[blockIdx.y * a.walk.width + col + k] = sum[k];
}
TFU_KERNEL(add_constant_grad, tfu_map_args)
