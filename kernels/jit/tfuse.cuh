/* tfuse.cuh - what tfuse's own kernels are made of, for kernels of yours: #include "tfuse.cuh" in a source for
 * tfuse.jit.raw. docs/jit_runtime.md has examples.
 *
 *   f16, bf16           storage types that convert to and from float; acc<T> is what T is computed in
 *   pack<T, N>          N elements in registers: p.load(from), p.get<R>(k), p.set(k, a, b), p.store(to)
 *   warp_sum(v), …      of all threads of a warp: sum, top (maximum, NaN if one is), or reduced by a function of two
 *   block_sum(v), …     the same of a block of whole warps, at most 1024 threads; all threads must call it
 *   tfu_philox(counter, key)   128 random bits that depend on these two numbers alone
 *   activation<T>::gelu(x), gelu_grad(x), …   every activation of tfuse and its derivative, as exact as T needs
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
