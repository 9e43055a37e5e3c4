/* What is left of a linear layer when cuBLASLt has made the product and has no epilogue for the rest, or a slow one:
 * y = act(pre + bias) + residual, where y may be pre, and the sums of dy over its rows. Bound by memory traffic: each
 * tensor is read or written once. */
#include "kernels/products/linear.h"

#include "kernels/core/device/channels.cuh"

/* Of pre and residual, with bias as the weight. */
TFU_CHANNELS_ACT(linear_finish, 2, 1, 1, 0, 0, { y[0] = value(x[0] + w[0]) + x[1]; })

#define X(name) TFU_KERNEL_FOR_ACTIVATION(linear_finish, tfu_channels_args, name)
TFU_ACTIVATIONS(X)
#undef X

/* Elements col .. col + N of a row, as far as it goes. */
template <typename T, int N>
__device__ inline void add_part(const T *row, int64_t col, int64_t cols, acc<T> (&sum)[N]) {
  UNROLLED(k, N)
    if (col + k < cols) sum[k] += (acc<T>)row[col + k];
}

/* A thread sums a pack's columns down its rows, then the block's rows become one: next to nothing is written. The grid
 * has the columns along x and the rows along y. A block's threads are `teams` of `lanes`: those of a team have the
 * packs of a row side by side, and the teams of all blocks along y take the rows in turn, AHEAD of them at a time. */
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
      UNROLLED(i, AHEAD) bits[i] = *(const int4 *)((const T *)a.dy + (row + i * step) * a.cols + col);
      UNROLLED(i, AHEAD) {
        acc<T> v[N];
        widen_pack<T>(bits[i], v);
        UNROLLED(k, N) sum[k] += v[k];
      }
    }
  for (; row < a.rows; row += step) add_part((const T *)a.dy + row * a.cols, col, a.cols, sum);
  UNROLLED(k, N) sums[k][threadIdx.x] = sum[k];
  for (int half = teams / 2; half > 0; half /= 2) {
    __syncthreads();
    if (team >= half) continue;
    UNROLLED(k, N) sums[k][threadIdx.x] += sums[k][threadIdx.x + half * a.lanes];
  }
  if (team > 0) return;
  UNROLLED(k, N)
    if (col + k < a.cols) ((acc<T> *)a.partial)[blockIdx.y * a.cols + col + k] = sums[k][threadIdx.x];
}
TFU_KERNEL(linear_sums, linear_sums_args)
