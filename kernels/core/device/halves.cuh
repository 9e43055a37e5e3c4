/* halves.cuh - a walk over pairs of elements that lie half a row apart: rows of 2 * half elements, element i of the
 * first half with element i of the second. The walk is over one half's elements, with `half` as its channels: a
 * thread's pairs are then equally far apart, like everything in a walk. */
#pragma once

#include "kernels/core/device/pack.cuh"

/* Where element `at` of the walk has its first half in the larger tensor; the second is `half` elements on. */
__device__ inline int64_t first_half(int64_t at, int64_t half) { return at + at / half * half; }

/* Loads or stores elements at .. at + N of a half, one by one. */
template <typename T, typename R, int N>
__device__ inline void load_half_part(const T *data, int64_t at, int64_t half, const tfu_walk &w, R (&v)[N]) {
  UNROLL
  for (int k = 0; k < N; k++) v[k] = at + k < w.n ? (R)data[first_half(at + k, half)] : (R)0;
}
template <typename T, typename R, int N>
__device__ inline void store_half_part(T *data, int64_t at, int64_t half, const tfu_walk &w, const R (&v)[N]) {
  UNROLL
  for (int k = 0; k < N; k++)
    if (at + k < w.n) data[first_half(at + k, half)] = (T)v[k];
}
