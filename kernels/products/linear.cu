/* What is left of a linear layer when cuBLASLt has made the product and has no epilogue for the rest, or a slow one:
 * y = act(pre + bias) + residual, where y may be pre, and the sums of dy over its rows. Bound by memory traffic: each
 * tensor is read or written once. */
#include "kernels/products/linear.h"

#include "kernels/core/device/activations.cuh"
#include "kernels/core/device/stream.cuh"

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

/* Elements col .. col + N of a row, as far as it goes. */
template <typename T, int N>
__device__ inline void add_part(const T *row, int64_t col, int64_t cols, acc<T> (&sum)[N]) {
  UNROLL
  for (int k = 0; k < N; k++)
    if (col + k < cols) sum[k] += (acc<T>)row[col + k];
}

/* A thread sums a pack's columns down its rows, then the block's rows become one: next to nothing is written. */
template <typename T>
__device__ inline void linear_sums(const linear_sums_args &a) {
  enum { N = packed<T>::N, AHEAD = 4 };
  __shared__ acc<T> sums[N][TFU_THREADS];
  const int teams = TFU_THREADS / a.lanes, team = threadIdx.x / a.lanes;
  const int64_t col = ((int64_t)blockIdx.x * a.lanes + threadIdx.x % a.lanes) * N;
  const int64_t step = (int64_t)gridDim.y * teams;
  int64_t row = (int64_t)blockIdx.y * teams + team;
  acc<T> sum[N] = {0};
  if (a.aligned && col < a.cols)
    for (; row + (AHEAD - 1) * step < a.rows; row += AHEAD * step) {
      int4 bits[AHEAD];
      UNROLL
      for (int i = 0; i < AHEAD; i++) bits[i] = *(const int4 *)((const T *)a.dy + (row + i * step) * a.cols + col);
      UNROLL
      for (int i = 0; i < AHEAD; i++) {
        acc<T> v[N];
        widen_pack<T>(bits[i], v);
        UNROLL
        for (int k = 0; k < N; k++) sum[k] += v[k];
      }
    }
  for (; row < a.rows; row += step) add_part((const T *)a.dy + row * a.cols, col, a.cols, sum);
  UNROLL
  for (int k = 0; k < N; k++) sums[k][threadIdx.x] = sum[k];
  for (int half = teams / 2; half > 0; half /= 2) {
    __syncthreads();
    if (team >= half) continue;
    UNROLL
    for (int k = 0; k < N; k++) sums[k][threadIdx.x] += sums[k][threadIdx.x + half * a.lanes];
  }
  if (team > 0) return;
  UNROLL
  for (int k = 0; k < N; k++)
    if (col + k < a.cols) ((acc<T> *)a.partial)[blockIdx.y * a.cols + col + k] = sums[k][threadIdx.x];
}
TFU_KERNEL(linear_sums, linear_sums_args)
