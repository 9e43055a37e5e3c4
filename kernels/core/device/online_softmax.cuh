/* online_softmax.cuh - online softmax: the maximum of many values and the sum of their exponentials relative to it, in
 * one look. When a larger value comes, the sum so far is scaled down to it. online_softmax is that of a thread, for
 * rows (kernels/core/device/rows.cuh); whoever keeps maximum and sum in a form of its own, as attention does for tiles
 * of scores and reductions do in their states, takes the two steps, softmax_shift and softmax_down, from here. */
#pragma once

#include "kernels/core/device/activations.cuh"
#include "kernels/core/device/rows.cuh"

template <typename R>
__device__ inline R infinity() {
  return (R)__int_as_float(0x7f800000);
}
__device__ inline float log_of(float x) { return ::logf(x); }
__device__ inline double log_of(double x) { return ::log(x); }
/* Some hundred instructions, once in a kernel. */
static __device__ __noinline__ double called_exp(double x) { return ::exp(x); }
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

template <typename R, int N>
__device__ inline R largest_of(const R (&x)[N]) {
  R high[N < 4 ? N : 4];
  UNROLLED(k, N) high[k % 4] = k < 4 ? x[k] : larger(high[k % 4], x[k]);
  UNROLL
  for (int k = 1; k < (N < 4 ? N : 4); k++) high[0] = larger(high[0], high[k]);
  return high[0];
}

/* The largest value of `width` lanes. */
template <typename R, typename W>
__device__ inline R lanes_max(R v, W width) {
  for_offsets(width, [&](int offset) { v = larger(v, __shfl_xor_sync(0xffffffffu, v, offset)); });
  return v;
}
#if __CUDA_ARCH__ >= 800
/* Floats in the order of integers: one instruction for a warp. */
__device__ inline float lanes_max(float v, whole_warp) {
  const int bits = __float_as_int(v), most = __reduce_max_sync(0xffffffffu, bits ^ (bits >> 31 & 0x7fffffff));
  return __int_as_float(most ^ (most >> 31 & 0x7fffffff));
}
#endif

/* What exponents are relative to: the maximum, but never minus infinity, whose difference with itself is NaN. */
template <typename R>
__device__ inline R softmax_shift(R max) {
  return max == -infinity<R>() ? 0 : max;
}
/* What a sum relative to max is multiplied with where the maximum becomes `high`, power(max, high); before a first
 * value there is nothing to scale. */
template <typename R, typename P>
__device__ inline R softmax_down(R max, R high, P power) {
  return max == -infinity<R>() ? 0 : power(max, high);
}

/* Of values x that count as x * factor, factor > 0. Exponents are of base 2 for 16-bit storage: one instruction each,
 * with log2(e) in the factor. */
template <typename T>
struct online_softmax {
  typedef acc<T> R;
  typedef typename math_of<T>::type math;
  enum { BASE_2 = sizeof(T) == 2 };
  R max, sum;
  R lost; /* what additions have rounded away of a thread's own sum */

  static __device__ online_softmax none() { return {-infinity<R>(), 0, 0}; }
  /* The factor for plain exponentials. */
  static __device__ R unit() { return BASE_2 ? (R)1.4426950408889634 : (R)1; }
  /* exp((x - shift) * factor / unit). */
  static __device__ R power(R x, R shift, R factor) {
    if constexpr (BASE_2) return math::exp2_of((x - shift) * factor);
    else if constexpr (sizeof(T) == 8) return called_exp((x - shift) * factor);
    else return math::exp_of((x - shift) * factor);
  }

  /* The same to half a unit and a bit, where it is not one of many in a sum: for float32, exp(f) of the rest f of a
   * division by log(2), by polynomial (relative error 4e-9). */
  static __device__ R accurate_power(R x, R shift, R factor) {
    if constexpr (sizeof(T) != 4) return power(x, shift, factor);
    else {
      const float v = (x - shift) * factor, n = rintf(v * 1.44269504f);
      const float f = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, v));
      float p = fmaf(f, 1.381457434e-3f, 8.368727751e-3f);
      p = fmaf(f, p, 4.166838899e-2f);
      p = fmaf(f, p, 1.666652113e-1f);
      p = fmaf(f, p, 4.999999404e-1f);
      p = fmaf(f * f, p, f) + 1;
      return v < -87 ? math::exp_of(v) : p * __int_as_float(((int)n + 127) << 23); /* small, infinite or NaN */
    }
  }

  __device__ R shift() const { return softmax_shift(max); }

  template <int N>
  __device__ void add(const R (&x)[N], R factor) {
    R e[N];
    rise(larger(max, largest_of(x)), factor);
    const R s = shift();
    UNROLLED(k, N) e[k] = power(x[k], s, factor);
    const R add = sum_of(e) - lost, next = sum + add;
    lost = (next - sum) - add;
    sum = next;
  }

  __device__ void join(const online_softmax &other, R factor) {
    const R high = larger(max, other.max);
    online_softmax low = other;
    rise(high, factor);
    low.rise(high, factor);
    sum += low.sum;
    lost += low.lost;
  }
  template <typename W>
  __device__ void join_lanes(W width, R factor) {
    rise(lanes_max(max, width), factor);
    if constexpr (BASE_2) return add_up().lanes(sum, width);
    two<R> both = {sum, lost};
    add_carefully().lanes(both, width);
    sum = both.a, lost = both.b;
  }
  /* The sum with what was carried along. */
  __device__ void settle() { sum -= lost; }

 private:
  /* Down to a larger maximum. A sum that is zero stays so; one that is NaN too. */
  __device__ void rise(R high, R factor) {
    if (high == max) return;
    const R down = softmax_down(max, high, [&](R from, R to) { return power(from, to, factor); });
    sum *= down;
    lost *= down;
    max = high;
  }
};

/* Joins them for row_team::all_reduce. */
template <typename T>
struct join_online_softmax {
  acc<T> factor;
  template <typename W>
  __device__ void lanes(online_softmax<T> &v, W width) const {
    v.join_lanes(width, factor);
  }
};
