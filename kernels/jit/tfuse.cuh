/* tfuse.cuh - what tfuse's own kernels are made of, for kernels of yours: #include "tfuse.cuh" in a source for
 * tfuse.jit.raw. docs/jit_runtime.md has examples.
 *
 *   f16, bf16           storage types that convert to and from float; acc<T> is what T is computed in
 *   pack<T, N>          N elements in registers: p.load(from), p.get<R>(k), p.set(k, a, b), p.store(to)
 *   warp_sum(v), …      of all threads of a warp: sum, top (maximum, NaN if one is), or reduced by a function of two
 *   block_sum(v), …     the same of a block of whole warps, at most 1024 threads; all threads must call it
 *   tfu_philox(counter, key)   128 random bits that depend on these two numbers alone
 *   activation<T>::gelu(x), gelu_grad(x), …   every activation of tfuse and its derivative, as exact as T needs
 *   AT(x, i)            x[i]; compiled by tfuse.jit.check, it finds an i outside the tensor that x points into
 */
#pragma once

#include "jit_types.cuh"
#include "kernels/core/device/activations.cuh"
#include "kernels/core/philox.h"

template <typename T>
using activation = typename math_of<T>::type;

template <typename V, typename F>
__device__ inline V warp_reduce(V v, F join) {
  UNROLL
  for (int o = 16; o > 0; o /= 2) v = join(v, __shfl_xor_sync(~0u, v, o));
  return v;
}

/* `identity` is what joins without changing anything. */
template <typename V, typename F>
__device__ inline V block_reduce(V v, V identity, F join) {
  __shared__ V parts[32];
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int warps = blockDim.x * blockDim.y * blockDim.z / 32;
  v = warp_reduce(v, join);
  __syncthreads(); /* those before may still be read */
  if (thread % 32 == 0) parts[thread / 32] = v;
  __syncthreads();
  return warp_reduce(thread % 32 < warps ? parts[thread % 32] : identity, join);
}

template <typename V>
__device__ inline V warp_sum(V v) {
  return warp_reduce(v, [](V a, V b) { return a + b; });
}
template <typename V>
__device__ inline V block_sum(V v) {
  return block_reduce(v, (V)0, [](V a, V b) { return a + b; });
}
template <typename V>
__device__ inline V warp_top(V v) {
  return warp_reduce(v, [](V a, V b) { return a > b || a != a ? a : b; });
}
template <typename V>
__device__ inline V block_top(V v) {
  return block_reduce(v, v, [](V a, V b) { return a > b || a != a ? a : b; });
}

#ifndef TFU_CHECK
#define AT(x, i) ((x)[i])
#else /* bytes of all tensors. A kernel begins with all threads writing the same tfu_from, tfu_report and tfu_launch. \
       */
#define AT(x, i) tfu_at(x, i, __LINE__)
static __device__ const int64_t tfu_bytes[] = {TFU_CHECK};
enum { TFU_TENSORS = sizeof tfu_bytes / sizeof(int64_t) };
static __device__ const char *tfu_from[TFU_TENSORS];
static __device__ int64_t *tfu_report;
static __device__ unsigned long long tfu_launch, tfu_reported; /* numbers of launches: this, and the last that failed */

/* The first bad access of a launch is reported, and none touches memory of others. Not checked is an x that points into
 * no tensor, such as shared memory. */
template <typename T>
__device__ T &tfu_at(T *x, int64_t i, int line) {
  static __device__ unsigned long long nowhere[(sizeof(T) + 7) / 8];
  for (int t = 0; t < TFU_TENSORS; t++) {
    const int64_t before = (const char *)x - tfu_from[t], at = before / (int64_t)sizeof(T) + i;
    if (before && (uint64_t)before >= (uint64_t)tfu_bytes[t]) continue;
    if (at >= 0 && at < tfu_bytes[t] / (int64_t)sizeof(T)) break;
    const int64_t report[] = {line, t, at, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z};
    if (atomicExch(&tfu_reported, tfu_launch) != tfu_launch)
      for (int k = 0; k < 10; k++) tfu_report[k] = k ? report[k - 1] : (int64_t)tfu_launch;
    return (T &)nowhere;
  }
  return x[i];
}
#endif
