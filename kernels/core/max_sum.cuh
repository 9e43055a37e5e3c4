/* max_sum.cuh - the maximum of many values and the sum of their exponentials relative to it, in one look: when a larger
 * value comes, the sum so far is scaled down to it. */
#pragma once

#include "kernels/core/activations.cuh"
#include "kernels/core/rows.cuh"

template <typename R>
__device__ inline R infinity() {
  return (R)__int_as_float(0x7f800000);
}
__device__ inline float log_of(float x) { return ::logf(x); }
__device__ inline double log_of(double x) { return ::log(x); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }

/* a / b from b's rounded inverse: corrected by what a product of the two misses, except where 16 bits would not show
 * it. */
template <typename T>
__device__ inline acc<T> quotient(acc<T> a, acc<T> b, acc<T> inverse) {
  const acc<T> q = a * inverse;
  if (sizeof(T) == 2) return q;
  const acc<T> rest = fma(-b, q, a);
  return rest == rest ? fma(rest, inverse, q) : q; /* NaN where an infinity is involved */
}

/* The largest value of a warp's lanes. Floats in the order of integers: one instruction on newer GPUs. */
__device__ inline float warp_max(float v) {
#if __CUDA_ARCH__ >= 800
  const int bits = __float_as_int(v), most = __reduce_max_sync(0xffffffffu, bits ^ (bits >> 31 & 0x7fffffff));
  return __int_as_float(most ^ (most >> 31 & 0x7fffffff));
#else
  for_offsets(32, [&](int offset) { v = larger(v, __shfl_xor_sync(0xffffffffu, v, offset)); });
  return v;
#endif
}
__device__ inline double warp_max(double v) {
  for_offsets(32, [&](int offset) { v = larger(v, __shfl_xor_sync(0xffffffffu, v, offset)); });
  return v;
}

/* Exponents are of base 2 for 16-bit storage: one instruction each, with the factor log2(e) in the scale. */
template <typename T>
struct max_sum {
  typedef acc<T> R;
  typedef typename math_of<T>::type math;
  enum { BASE_2 = sizeof(T) == 2 };
  R max, sum;

  static __device__ max_sum none() { return {-infinity<R>(), 0}; }
  static __device__ R power(R x) {
    if constexpr (BASE_2) return math::exp2_of(x);
    else return math::exp_of(x);
  }
  /* The factor that values come with already. */
  static __device__ R unit() { return BASE_2 ? (R)1.4426950408889634 : (R)1; }

  /* What exponents are relative to: the maximum, but never minus infinity, whose difference with itself is NaN. */
  __device__ R shift() const { return max == -infinity<R>() ? 0 : max; }
  /* The same without the unit. Exact where the maximum was a 16-bit value: rounding brings it back. */
  __device__ R natural_shift() const {
    if constexpr (BASE_2) return (R)(T)(shift() * (1 / unit()));
    else return shift();
  }

  template <int N>
  __device__ void add(const R (&x)[N]) {
    R high = max;
    UNROLL
    for (int k = 0; k < N; k++) high = larger(high, x[k]);
    rise(high);
    const R s = shift();
    R e[N];
    UNROLL
    for (int k = 0; k < N; k++) e[k] = power(x[k] - s);
    sum += sum_of(e);
  }

  static __device__ void lanes(max_sum &v, int width) {
    R high = v.max;
    if (width == 32) high = warp_max(high);
    else for_offsets(width, [&](int offset) { high = larger(high, __shfl_xor_sync(0xffffffffu, high, offset)); });
    v.rise(high);
    add_up::lanes(v.sum, width);
  }

 private:
  /* Down to a larger maximum. A sum that is zero stays so; one that is NaN too. */
  __device__ void rise(R high) {
    if (high == max) return;
    sum *= power(max - high);
    max = high;
  }
};
