/* The second half of every column sum: many partial sums per channel become one, in a fixed order. In double: there are
 * few of them, and the result keeps the accuracy of the first half. */
#include "kernels/core/pack.cuh"

template <typename T>
__device__ inline void fold(const tfu_fold_args &a) {
  __shared__ double sums[TFU_THREADS];
  const int lanes = TFU_THREADS / a.channels, lane = threadIdx.x / a.channels;
  const int64_t channel = (int64_t)blockIdx.x * a.channels + threadIdx.x % a.channels;
  const int64_t copies = a.width / a.count, entries = a.blocks * copies;
  double sum = 0;
  if (channel < a.count)
    for (int64_t e = lane; e < entries; e += lanes)
      sum += ((const acc<T> *)a.from)[e / copies * a.stride + e % copies * a.count + channel];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) sums[threadIdx.x] += sums[threadIdx.x + half * a.channels];
    __syncthreads();
  }
  if (lane == 0 && channel < a.count) ((T *)a.out)[channel] = (T)(acc<T>)sums[threadIdx.x];
}
TFU_KERNEL(fold, tfu_fold_args)
