/* complex.cuh - complex numbers in device code, stored as TensorFlow stores them: the real part first. */
#pragma once

#include "kernels/core/device/pack.cuh"

template <typename R>
struct alignas(2 * sizeof(R)) complex_of {
  R re, im;
  complex_of() = default;
  __device__ complex_of(R re, R im = 0) : re(re), im(im) {}
  __device__ friend complex_of operator+(complex_of a, complex_of b) { return {a.re + b.re, a.im + b.im}; }
  __device__ friend complex_of operator*(complex_of a, complex_of b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
  __device__ friend bool operator==(complex_of a, complex_of b) { return a.re == b.re && a.im == b.im; }
  __device__ void operator+=(complex_of b) { *this = *this + b; }
  __device__ void operator*=(complex_of b) { *this = *this * b; }
};
/* They are computed in as they are. */
template <typename R>
struct acc_of<complex_of<R>> {
  typedef complex_of<R> type;
};

/* Of a real number, that itself. */
template <typename R>
__device__ inline R conjugate(R v) {
  return v;
}
template <typename R>
__device__ inline complex_of<R> conjugate(complex_of<R> v) {
  return {v.re, -v.im};
}

/* Warp shuffles move one part after the other. */
#define TFU_SHUFFLES_PARTS(shuffle)                                                                \
  template <typename R>                                                                            \
  __device__ inline complex_of<R> shuffle(unsigned lanes, complex_of<R> v, int which, int width) { \
    return {shuffle(lanes, v.re, which, width), shuffle(lanes, v.im, which, width)};               \
  }
TFU_SHUFFLES_PARTS(__shfl_sync)
TFU_SHUFFLES_PARTS(__shfl_up_sync)
TFU_SHUFFLES_PARTS(__shfl_down_sync)

/* stamp(…, tag, T) for complex numbers, as TFU_TYPES has it for floats. */
#define TFU_COMPLEX_TYPES(stamp, ...) \
  stamp(__VA_ARGS__, c64, complex_of<float>) stamp(__VA_ARGS__, c128, complex_of<double>)
