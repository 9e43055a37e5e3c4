/* pack.cuh - storage types and 16-byte packs for device code. T is storage; arithmetic is float, or double for double.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/core/walk.h"

/* On every loop over registers: an index that is not a constant would move them to memory. */
#define UNROLL _Pragma("unroll")

typedef __half f16;
typedef __nv_bfloat16 bf16;

/* acc<T>: the type that T is computed in. */
template <typename T>
struct acc_of {
  typedef float type;
};
template <>
struct acc_of<double> {
  typedef double type;
};
template <typename T>
using acc = typename acc_of<T>::type;

template <typename T>
__device__ inline acc<T> widen(T v) {
  return (acc<T>)v;
}
template <typename T>
__device__ inline T narrow(acc<T> v) {
  return (T)v;
}

template <typename T>
struct alignas(16) pack {
  enum { N = 16 / sizeof(T) };
  T v[N];
};

/* Elements at .. at + N of a tensor of n; what lies beyond n reads as zero and is not written. */
template <typename T>
__device__ inline pack<T> load_pack(const void *data, int64_t at, const tfu_walk &w) {
  const T *from = (const T *)data + at;
  if (w.aligned && at + pack<T>::N <= w.n) return *(const pack<T> *)from;
  pack<T> p;
  UNROLL for (int k = 0; k < pack<T>::N; k++) p.v[k] = at + k < w.n ? from[k] : narrow<T>(0);
  return p;
}
template <typename T>
__device__ inline void store_pack(void *data, int64_t at, const tfu_walk &w, const pack<T> &p) {
  T *to = (T *)data + at;
  if (w.aligned && at + pack<T>::N <= w.n) {
    *(pack<T> *)to = p;
    return;
  }
  UNROLL for (int k = 0; k < pack<T>::N; k++) if (at + k < w.n) to[k] = p.v[k];
}

/* This thread's first column of a joined row. */
template <typename T>
__device__ inline int64_t walk_column() {
  return ((int64_t)blockIdx.x * TFU_THREADS + threadIdx.x) * pack<T>::N;
}

/* The values that belong to columns col .. col + N: one per channel, one for all (count 1), or `otherwise` (count 0).
 */
template <typename T>
__device__ inline pack<T> load_channels(const void *data, int64_t count, int64_t col, float otherwise) {
  pack<T> p;
  int64_t c = count > 1 ? col % count : 0;
  UNROLL for (int k = 0; k < pack<T>::N; k++) {
    p.v[k] = count ? ((const T *)data)[c] : narrow<T>(otherwise);
    if (++c >= count) c = 0;
  }
  return p;
}

/* Stamps function<T>(args) as the kernels function_f32, _f16, _bf16 and _f64. */
#define TFU_KERNEL_AS_(label, args, ...) \
  extern "C" __global__ void __launch_bounds__(TFU_THREADS) label(const args a) { __VA_ARGS__(a); }
#define TFU_KERNEL(function, args)                      \
  TFU_KERNEL_AS_(function##_f32, args, function<float>) \
  TFU_KERNEL_AS_(function##_f16, args, function<f16>)   \
  TFU_KERNEL_AS_(function##_bf16, args, function<bf16>) \
  TFU_KERNEL_AS_(function##_f64, args, function<double>)
