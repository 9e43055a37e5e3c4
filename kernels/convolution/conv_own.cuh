/* conv_own.cuh - what the rungs of conv_own.h share: where a window lies in x, and the epilogue that finishes a result.
 */
#pragma once

#include "kernels/convolution/conv_own.h"
#include "kernels/core/device/pack.cuh"

/* Terms that are summed on their own before their sum is added to the rest: one long chain loses digits in float32. */
enum { CHAIN = 16 };

__device__ inline int64_t volume(const int64_t (&sizes)[CONV_AXES]) { return sizes[0] * sizes[1] * sizes[2]; }

/* A position of an image: its number in the batch and where it is along the three axes. */
struct coordinates {
  int64_t n, at[CONV_AXES];
  __device__ coordinates(int64_t index, const int64_t (&sizes)[CONV_AXES]) {
    at[2] = index % sizes[2], index /= sizes[2];
    at[1] = index % sizes[1], index /= sizes[1];
    at[0] = index % sizes[0], n = index / sizes[0];
  }
};

/* The position of x that tap `tap` of the window at `o` sees, as an index of its pixels; -1 where that is outside. */
__device__ inline int64_t pixel_of_x(const conv_shape &s, const coordinates &o, const int64_t (&tap)[CONV_AXES]) {
  int64_t index = o.n;
  bool inside = true;
  UNROLLED(a, CONV_AXES) {
    const int64_t i = o.at[a] * s.stride[a] - s.before[a] + tap[a] * s.dilation[a];
    inside &= i >= 0 && i < s.in[a];
    index = index * s.in[a] + i;
  }
  return inside ? index : -1;
}

/* The position of y whose tap `tap` sees x at `i`; -1 where there is none. */
__device__ inline int64_t pixel_of_y(const conv_shape &s, const coordinates &i, const int64_t (&tap)[CONV_AXES]) {
  int64_t index = i.n;
  bool inside = true;
  UNROLLED(a, CONV_AXES) {
    const int64_t from = i.at[a] + s.before[a] - tap[a] * s.dilation[a], o = from / s.stride[a];
    inside &= from >= 0 && from == o * s.stride[a] && o < s.out[a];
    index = index * s.out[a] + o;
  }
  return inside ? index : -1;
}

/* y = act(sum + residual + bias), N neighbours of one position from output k on, which are element `to` of y. What is
 * read and written is aligned to all N. */
template <typename T, int N>
__device__ inline void finish(const conv_args &a, int64_t to, int64_t k, const acc<T> (&sum)[N]) {
  struct alignas(N * sizeof(T)) results {
    T v[N];
  } y, more;
  if (a.residual) more = *(const results *)((const T *)a.residual + to);
  UNROLLED(i, N) {
    acc<T> v = sum[i];
    if (a.residual) v += (acc<T>)more.v[i];
    if (a.bias) v += (acc<T>)((const T *)a.bias)[k + i];
    y.v[i] = (T)(a.relu && v < 0 ? 0 : v);
  }
  *(results *)((T *)a.y + to) = y;
}
