/* pool.cuh - what the kernels of pooling share: a unit is 8 channels at one position, in registers. */
#pragma once

#include "kernels/convolution/pool.h"
#include "kernels/core/device/pack.cuh"

enum { UNIT = TFU_POOL_UNIT };

template <typename T>
__device__ inline void load_unit(const void *tensor, int64_t at, int left, int aligned, acc<T> (&v)[UNIT]) {
  enum { N = packed<T>::N };
  const T *from = (const T *)tensor + at;
  UNROLL
  for (int first = 0; first < UNIT; first += N) {
    acc<T> part[N];
    if (aligned) {
      widen_pack<T>(*(const int4 *)(from + first), part);
    } else {
      UNROLLED(k, N) part[k] = first + k < left ? (acc<T>)from[first + k] : (acc<T>)0;
    }
    UNROLLED(k, N) v[first + k] = part[k];
  }
}

template <typename T>
__device__ inline void store_unit(void *tensor, int64_t at, int left, int aligned, const acc<T> (&v)[UNIT]) {
  enum { N = packed<T>::N };
  T *to = (T *)tensor + at;
  UNROLL
  for (int first = 0; first < UNIT; first += N) {
    acc<T> part[N];
    UNROLLED(k, N) part[k] = v[first + k];
    if (aligned) {
      store_bits(to + first, narrow_pack<T>(part));
    } else {
      UNROLLED(k, N)
        if (first + k < left) to[first + k] = (T)part[k];
    }
  }
}

template <typename T>
__device__ inline void divide_unit(int64_t by, acc<T> (&v)[UNIT]) {
  if (by & (by - 1)) {
    UNROLLED(k, UNIT) v[k] /= (acc<T>)by;
  } else { /* a power of two, whose inverse is exact */
    const acc<T> share = 1 / (acc<T>)by;
    UNROLLED(k, UNIT) v[k] *= share;
  }
}
