/* The second half of every column sum (a fold, or two-pass reduction): many partial sums per
 * channel become one, in a fixed order. In double: there are few of them, and the result keeps the accuracy of the
 * first half.
 *
 * The partial sums are [blocks][quantities][width]. Where rows were joined, a row of `width` has several copies of the
 * channels one after the other, so an entry of a channel is a block and a copy. The grid has a row of blocks for each
 * quantity. A block of threads has some neighbouring channels, so that its reads lie side by side; the threads of a
 * channel (lanes) take its entries in turn, and their sums are added by halves. */
#include "kernels/core/device/pack.cuh"

template <typename T>
__device__ inline void fold(const tfu_fold_args &a) {
  __shared__ double sums[TFU_THREADS];
  const int64_t count = a.count[blockIdx.y];
  int channels = a.channels; /* that this block sums, each by several lanes */
  while (channels / 2 >= count && channels > 1) channels /= 2;
  const int lanes = TFU_THREADS / channels, lane = threadIdx.x / channels;
  const int64_t channel = (int64_t)blockIdx.x * channels + threadIdx.x % channels;
  double sum = 0;
  if (channel < count) {
    const int64_t copies = a.width / count, entries = a.blocks * copies;
    const acc<T> *from = (const acc<T> *)a.from + blockIdx.y * a.width + channel;
    _Pragma("unroll 4") for (int64_t e = lane; e < entries; e += lanes) sum +=
        from[copies == 1 ? e * a.quantities * a.width : e / copies * a.quantities * a.width + e % copies * count];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = lanes / 2; half > 0; half /= 2) {
    if (lane < half) sums[threadIdx.x] += sums[threadIdx.x + half * channels];
    __syncthreads();
  }
  if (lane == 0 && channel < count) ((T *)a.out[blockIdx.y])[channel] = (T)(acc<T>)sums[threadIdx.x];
}
TFU_KERNEL(fold, tfu_fold_args)
