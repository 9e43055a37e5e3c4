/* y = x / (1 - rate) where philox.h keeps the element, else 0. */
#include "kernels/elementwise/dropout.h"

#include "kernels/core/device/drop.cuh"
#include "kernels/core/device/stream.cuh"

template <typename T>
__device__ inline void dropout(const dropout_args &a) {
  __shared__ typename pack_stream<T, 1>::ring ring;
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  const int rows = whole_rows<T>(col, a.walk);
  pack_stream<T, 1> stream(a.walk, at, rows, ring, a.x);
  const dropping drop(a.seed, a.rate);
  acc<T> v[packed<T>::N];
  for (int row = blockIdx.y; row < rows; row += gridDim.y, at += step) {
    int4 bits[1];
    stream.next(bits);
    widen_pack<T>(bits[0], v);
    drop(at, v);
    store_bits((T *)a.y + at, narrow_pack<T>(v));
  }
  for (; at < a.walk.n; at += step) {
    load_part((const T *)a.x, at, a.walk, v);
    drop(at, v);
    store_part((T *)a.y, at, a.walk, v);
  }
}
TFU_KERNEL(dropout, dropout_args)
