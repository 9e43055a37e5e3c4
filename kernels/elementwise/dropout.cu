/* y = x / (1 - rate) where philox.h keeps the element, else 0. */
#include "kernels/elementwise/dropout.h"

#include "kernels/core/device/drop.cuh"
#include "kernels/core/device/walk.cuh"

template <typename T>
__device__ inline void dropout(const dropout_args &a) {
  typedef pack_walk<T, 1, 1> walk_type;
  __shared__ typename walk_type::ring ring;
  const int64_t col = walk_column<T>();
  if (col >= a.walk.width) return;
  walk_type walk(a.walk, col, &a.x, 0, ring);
  const dropping drop(a.seed, a.rate);
  walk.run(&a.y, [&](int64_t at, int, typename walk_type::inputs x, typename walk_type::outputs y) {
    UNROLLED(k, packed<T>::N) y[0][k] = x[0][k];
    drop(at, y[0]);
  });
}
TFU_KERNEL(dropout, dropout_args)
