/* tensors_walk.h - tables of tensors, device side: which chunk a block has, four elements at a time, sums of a block.
 */
#pragma once

#include "kernels/core/device/pack.cuh"
#include "kernels/lists/tensors.h"

typedef struct tensors_chunk {
  int tensor;         /* in the table */
  int64_t begin, end; /* elements     */
} tensors_chunk;

__device__ inline tensors_chunk chunk_of_block(const tensors_table &t) {
  int low = 0, high = t.tensors;
  while (high - low > 1) { /* the last tensor that does not begin later; one without elements begins with the next */
    const int middle = (low + high) / 2;
    if (t.first[middle] <= (int)blockIdx.x) low = middle;
    else high = middle;
  }
  const int64_t begin = (int64_t)(blockIdx.x - t.first[low]) * TENSORS_CHUNK, n = t.count[low];
  return {low, begin, begin + TENSORS_CHUNK < n ? begin + TENSORS_CHUNK : n};
}

/* Four elements, which begin on a boundary of four. */
template <typename T>
__device__ inline void load4(const T *from, float (&v)[4]) {
  const uint2 bits = *(const uint2 *)from;
  const float2 a = pair_of<T>::widen(bits.x), b = pair_of<T>::widen(bits.y);
  v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
}
template <>
__device__ inline void load4(const float *from, float (&v)[4]) {
  widen_pack<float>(*(const int4 *)from, v);
}
__device__ inline void load4(const double *from, double (&v)[4]) {
  const double2 a = *(const double2 *)from, b = *(const double2 *)(from + 2);
  v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
}

template <typename T>
__device__ inline void store4(T *to, const float (&v)[4]) {
  *(uint2 *)to = make_uint2(pair_of<T>::narrow(v[0], v[1]), pair_of<T>::narrow(v[2], v[3]));
}
template <>
__device__ inline void store4(float *to, const float (&v)[4]) {
  store_bits(to, narrow_pack<float>(v));
}
__device__ inline void store4(double *to, const double (&v)[4]) {
  *(double2 *)to = make_double2(v[0], v[1]);
  *(double2 *)(to + 2) = make_double2(v[2], v[3]);
}

/* The sum over a block, in an order that is always the same; thread 0 has it. */
__device__ inline double block_sum(double v) {
  __shared__ double part[TFU_THREADS / 32];
  UNROLL
  for (int k = 16; k > 0; k /= 2) v += __shfl_down_sync(~0u, v, k);
  __syncthreads(); /* an earlier sum has been read */
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0;
  for (int k = 0; k < TFU_THREADS / 32; k++) v += part[k];
  return v;
}

/* The sum of `n` values, `stride` apart, by a whole block. */
__device__ inline double block_fold(const double *values, int64_t n, int stride) {
  double v = 0;
  for (int64_t i = threadIdx.x; i < n; i += TFU_THREADS) v += values[i * stride];
  return block_sum(v);
}

/* The table stays where it is, in constant memory: each thread would copy all of it to memory of its own. */
#define TENSORS_KERNEL(function, args) TFU_KERNEL(function, __grid_constant__ args)
/* For the types of arithmetic alone. */
#define TENSORS_KERNEL_REAL(function, args)                               \
  TFU_KERNEL_AS_(function##_f32, __grid_constant__ args, function<float>) \
  TFU_KERNEL_AS_(function##_f64, __grid_constant__ args, function<double>)
