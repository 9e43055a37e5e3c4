/* What linear_cross_entropy needs besides products and the kernels of cross_entropy: the weighted sum of the losses,
 * sums of products rounded to their 16 bits, and a tensor times one number. */
#include "kernels/products/linear_cross_entropy.h"

#include "kernels/core/device/channels.cuh"

/* There are as many losses as rows: few enough for one block, and for double. The order of adding depends on n alone.
 */
template <typename T>
__device__ inline void linear_cross_entropy_total(const linear_cross_entropy_total_args &a) {
  __shared__ double sums[TFU_THREADS];
  const acc<T> *losses = (const acc<T> *)a.losses, *weights = (const acc<T> *)a.weights;
  double sum = 0;
  _Pragma("unroll 8") for (int64_t i = threadIdx.x; i < a.n; i += TFU_THREADS) sum += (double)losses[i] * weights[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = TFU_THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *(acc<T> *)a.total = (acc<T>)sums[0];
}
TFU_KERNEL(linear_cross_entropy_total, linear_cross_entropy_total_args)

/* All of a block reads before any of it writes: so one block may write over what it has read. */
template <typename T>
__device__ inline void linear_cross_entropy_narrow(const linear_cross_entropy_narrow_args &a) {
  enum { N = TFU_NARROW_ELEMENTS };
  const int64_t at = ((int64_t)blockIdx.x * TFU_THREADS + threadIdx.x) * N;
  const bool whole = at + N <= a.n;
  float v[N];
  if (whole) {
    UNROLL
    for (int k = 0; k < N; k += 4) {
      const float4 part = *(const float4 *)(a.from + at + k);
      v[k] = part.x, v[k + 1] = part.y, v[k + 2] = part.z, v[k + 3] = part.w;
    }
  } else {
    UNROLLED(k, N) v[k] = at + k < a.n ? a.from[at + k] : 0;
  }
  __syncthreads();
  if (whole) return store_bits((T *)a.to + at, narrow_pack<T>(v));
  UNROLLED(k, N)
    if (at + k < a.n) ((T *)a.to)[at + k] = (T)v[k];
}
TFU_HALVES(TFU_KERNEL_OF_, linear_cross_entropy_narrow, linear_cross_entropy_narrow_args)

#include "kernels/products/scale_linear_cross_entropy.h"
