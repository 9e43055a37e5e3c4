/* scan_linear.cuh - what steps of a linear recurrence take a state to, and how elements that lie side by side are
 * moved.
 */
#pragma once

#include "kernels/core/device/complex.cuh"
#include "kernels/core/device/pack.cuh"

/* A state s becomes a s + b. Where a is the product of many steps' factors, which may have become infinite, a state of
 * zero still gives b, as it does step by step. */
template <typename R>
struct affine {
  R a, b;
  __device__ R operator()(R s) const { return s == 0 ? b : a * s + b; }
};
/* After `first` another step, forward, or that of the gradient, a (s + b). */
template <typename R>
__device__ inline affine<R> then(affine<R> first, bool back, R a, R b) {
  return {a * first.a, back ? a * (first.b + b) : a * first.b + b};
}

/* N elements, as they lie in memory. Halves are converted in pairs. */
template <typename T, int N, bool HALVES = sizeof(T) == 2 && N % 2 == 0>
struct alignas(N * sizeof(T)) side_by_side {
  T stored[N];
  __device__ void widen(acc<T> (&v)[N]) const {
    UNROLLED(i, N) v[i] = (acc<T>)stored[i];
  }
  __device__ void narrow(const acc<T> (&v)[N]) {
    UNROLLED(i, N) stored[i] = (T)v[i];
  }
};
template <typename T, int N>
struct alignas(2 * N) side_by_side<T, N, true> {
  unsigned pairs[N / 2];
  __device__ void widen(float (&v)[N]) const {
    UNROLLED(i, N / 2) {
      const float2 two = pair_of<T>::widen(pairs[i]);
      v[2 * i] = two.x, v[2 * i + 1] = two.y;
    }
  }
  __device__ void narrow(const float (&v)[N]) {
    UNROLLED(i, N / 2) pairs[i] = pair_of<T>::narrow(v[2 * i], v[2 * i + 1]);
  }
};
