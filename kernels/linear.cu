/* What is left of a linear layer when cuBLASLt has made the product and has no epilogue for the rest, or a slow one:
 * y = act(pre + bias) + residual, where y may be pre, and the sums of dy over its rows. Bound by memory traffic: each
 * tensor is read or written once. */
#include "kernels/linear.h"

#include "kernels/core/activations.cuh"
#include "kernels/core/stream.cuh"

/* An absent bias is -0: x + -0 is x, even for x = -0. */
template <typename T, typename ACT>
__device__ inline void finish(const acc<T> (&bias)[packed<T>::N], const acc<T> (&residual)[packed<T>::N],
                              acc<T> (&v)[packed<T>::N]) {
  UNROLL
  for (int k = 0; k < packed<T>::N; k++) v[k] = ACT::template value<T>(v[k] + bias[k]) + residual[k];
}

template <typename T, typename ACT>
__device__ inline void linear_finish(const linear_finish_args &a) {
  __shared__ typename pack_stream<T, 2>::ring ring;
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  acc<T> v[packed<T>::N], residual[packed<T>::N], bias[packed<T>::N];
  const int rows = whole_rows<T>(col, a.walk);
  pack_stream<T, 2> stream(a.walk, at, rows, ring, a.pre, a.residual);
  load_channels((const T *)a.bias, a.bias_count, col, (acc<T>)-0.0, bias);
  for (int row = blockIdx.y; row < rows; row += gridDim.y, at += step) {
    int4 bits[2];
    stream.next(bits);
    widen_pack<T>(bits[0], v);
    widen_pack<T>(bits[1], residual);
    finish<T, ACT>(bias, residual, v);
    store_bits((T *)a.y + at, narrow_pack<T>(v));
  }
  for (; at < a.walk.n; at += step) {
    load_part((const T *)a.pre, at, a.walk, v);
    load_part((const T *)a.residual, at, a.walk, residual);
    finish<T, ACT>(bias, residual, v);
    store_part((T *)a.y, at, a.walk, v);
  }
}

#define X(name) TFU_KERNEL_FOR_ACTIVATION(linear_finish, linear_finish_args, name)
TFU_ACTIVATIONS(X)
#undef X

template <typename T>
__device__ inline void linear_sums(const linear_sums_args &a) {
  __shared__ typename pack_stream<T, 1>::ring ring;
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  acc<T> v[packed<T>::N], sum[packed<T>::N] = {0};
  const int rows = whole_rows<T>(col, a.walk);
  pack_stream<T, 1> stream(a.walk, at, rows, ring, a.dy);
  for (int row = blockIdx.y; row < rows; row += gridDim.y, at += step) {
    int4 bits[1];
    stream.next(bits);
    widen_pack<T>(bits[0], v);
    UNROLL
    for (int k = 0; k < packed<T>::N; k++) sum[k] += v[k];
  }
  for (; at < a.walk.n; at += step) {
    load_part((const T *)a.dy, at, a.walk, v); /* zero beyond the end */
    UNROLL
    for (int k = 0; k < packed<T>::N; k++) sum[k] += v[k];
  }
  acc<T> *mine = (acc<T> *)a.partial + blockIdx.y * a.walk.width + col;
  UNROLL
  for (int k = 0; k < packed<T>::N; k++) mine[k] = sum[k];
}
TFU_KERNEL(linear_sums, linear_sums_args)
