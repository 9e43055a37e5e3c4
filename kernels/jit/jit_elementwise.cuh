/* jit_elementwise.cuh - the walk of elementwise jit kernels: a thread takes JIT_UNROLL packs of JIT_N elements, so far
 * apart that a block reads whole lines, and all its loads are on their way before the first is used. */
#pragma once

#include "jit_tensors.cuh"

template <int N>
struct jit_elements {
  jit_inputs<N, 0, JIT_TYPES_IN> in;

  __device__ void load(const jit_args &a, int64_t at) { in.load(a, jit_place(a, at), 0); }
  __device__ void finish(const jit_args &a, int64_t at) const {
    R values[JIT_OUTPUTS][N];
    UNROLLED(k, N) {
      R x[JIT_INPUTS], y[JIT_OUTPUTS];
      in.get(k, x);
      JIT_CALL(JIT_NAME, _body)(JIT_ARGS_X, JIT_ARGS_Y);
      UNROLLED(o, JIT_OUTPUTS) values[o][k] = y[o];
    }
    jit_outputs<N, 0, JIT_TYPES_OUT>::store(a, at, values);
  }
};

extern "C" __global__ void __launch_bounds__(JIT_THREADS) JIT_ENTRY(const jit_args a) {
  const int64_t first = (int64_t)blockIdx.x * (JIT_THREADS * JIT_UNROLL) + threadIdx.x, packs = a.n / JIT_N;
  jit_elements<JIT_N> e[JIT_UNROLL];
  UNROLLED(u, JIT_UNROLL)
    if (first + u * JIT_THREADS < packs) e[u].load(a, (first + u * JIT_THREADS) * JIT_N);
  UNROLLED(u, JIT_UNROLL)
    if (first + u * JIT_THREADS < packs) e[u].finish(a, (first + u * JIT_THREADS) * JIT_N);
  if (JIT_N > 1 && blockIdx.x == 0 && packs * JIT_N + threadIdx.x < a.n) { /* less than a pack is left */
    jit_elements<1> one;
    one.load(a, packs * JIT_N + threadIdx.x);
    one.finish(a, packs * JIT_N + threadIdx.x);
  }
}
