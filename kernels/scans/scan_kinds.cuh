/* scan_kinds.cuh - what is scanned: the states of sums, products, maxima, linear recurrences and logarithms of sums
 * of exponentials (online softmax), and how they join.
 *
 * A state says all that matters of a stretch of values: its sum, its maximum and the like. join(a, b) is the state of a
 * stretch a with b after it. */
#pragma once

#include "kernels/core/device/pack.cuh"

template <typename R>
struct pair {
  R a, b;
};

/* A flag that is the same all the time, of which the compiler shall not know that: it would make a copy of a loop for
 * each of its values. */
__device__ inline bool hidden(int flag) {
  asm volatile("" : "+r"(flag));
  return flag;
}

/* ---- numbers ---- */

/* The type that numbers are computed in which are stored as T: a half is a float, others are what they are. */
template <typename T>
struct computed {
  typedef T type;
};
template <>
struct computed<f16> {
  typedef float type;
};
template <>
struct computed<bf16> {
  typedef float type;
};

/* Packs of integers, beside those of floats in pack.cuh. */
template <typename T>
__device__ inline void widen_pack(int4 bits, int32_t (&v)[4]) {
  v[0] = bits.x, v[1] = bits.y, v[2] = bits.z, v[3] = bits.w;
}
template <typename T>
__device__ inline int4 narrow_pack(const int32_t (&v)[4]) {
  return make_int4(v[0], v[1], v[2], v[3]);
}
__device__ inline int64_t joined(int low, int high) {
  return (int64_t)((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}
template <typename T>
__device__ inline void widen_pack(int4 bits, int64_t (&v)[2]) {
  v[0] = joined(bits.x, bits.y), v[1] = joined(bits.z, bits.w);
}
template <typename T>
__device__ inline int4 narrow_pack(const int64_t (&v)[2]) {
  return make_int4((int)v[0], (int)(v[0] >> 32), (int)v[1], (int)(v[1] >> 32));
}

template <typename R>
__device__ inline R lowest() {
  return -(R)__int_as_float(0x7f800000);
}
template <>
__device__ inline int32_t lowest<int32_t>() {
  return (int32_t)0x80000000;
}
template <>
__device__ inline int64_t lowest<int64_t>() {
  return (int64_t)0x8000000000000000;
}

/* Integers wrap around. */
template <typename R>
__device__ inline R plus(R a, R b) {
  return a + b;
}
template <>
__device__ inline int32_t plus(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a + (uint32_t)b);
}
template <>
__device__ inline int64_t plus(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a + (uint64_t)b);
}
template <typename R>
__device__ inline R times(R a, R b) {
  return a * b;
}
template <>
__device__ inline int32_t times(int32_t a, int32_t b) {
  return (int32_t)((uint32_t)a * (uint32_t)b);
}
template <>
__device__ inline int64_t times(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* ---- what is scanned ---- */

/* Each has the type T that numbers are stored in, the type that they are computed in, and the state. Of x and, where
 * there is one, a factor, of() is the state; value() is the result; nothing()
 * and no_factor() change nothing. */
template <typename T>
struct sum_scan {
  enum { FACTOR = 0 };
  typedef T stored;
  typedef typename computed<T>::type real, state;
  static __device__ real nothing() { return 0; }
  static __device__ real no_factor() { return 0; }
  static __device__ state none() { return 0; }
  static __device__ state of(real x, real) { return x; }
  static __device__ state join(state a, state b) { return plus(a, b); }
  static __device__ real value(state s) { return s; }
};

template <typename T>
struct prod_scan : sum_scan<T> {
  typedef typename computed<T>::type real, state;
  static __device__ real nothing() { return 1; }
  static __device__ state none() { return 1; }
  static __device__ state join(state a, state b) { return times(a, b); }
};

template <typename T>
struct max_scan : sum_scan<T> {
  typedef typename computed<T>::type real, state;
  static __device__ real nothing() { return lowest<real>(); }
  static __device__ state none() { return lowest<real>(); }
  static __device__ state join(state a, state b) { return top_of(a, b); }
};

/* log(sum of exp(x)): a is the maximum, b the sum of exp(x - a). Of two equal infinities the difference would be NaN.
 * Functions of doubles are long enough to be there once. */
__device__ inline float exp_of(float x) { return __expf(x); }
__device__ inline float log_of(float x) { return ::logf(x); }
__device__ __noinline__ inline double exp_of(double x) { return ::exp(x); }
__device__ __noinline__ inline double log_of(double x) { return ::log(x); }
template <typename T>
struct lse_scan {
  enum { FACTOR = 0 };
  typedef T stored;
  typedef typename computed<T>::type real;
  typedef pair<real> state;
  static __device__ real nothing() { return lowest<real>(); }
  static __device__ real no_factor() { return 0; }
  static __device__ state none() { return {lowest<real>(), 0}; }
  static __device__ state of(real x, real) { return {x, 1}; }
  static __device__ state join(state p, state q) {
    const bool first = p.a >= q.a;
    const real high = first ? p.a : q.a, low = first ? q.a : p.a;
    const real part = low == high ? (real)1 : exp_of(low - high);
    return {high, first ? p.b + q.b * part : p.b * part + q.b};
  }
  static __device__ real value(state s) { return s.a + log_of(s.b); }
};

/* y_i = a_i * y_{i-1} + x_i: what comes in is multiplied by a, and b is added. Products of many factors are computed in
 * double for floats, too: memory takes longer. */
template <typename T>
struct recurrence_scan {
  enum { FACTOR = 1 };
  typedef T stored;
  typedef double real;
  typedef pair<double> state;
  static __device__ real nothing() { return 0; }
  static __device__ real no_factor() { return 1; }
  static __device__ state none() { return {1, 0}; }
  static __device__ state of(real x, real factor) { return {factor, x}; }
  static __device__ state join(state p, state q) { return {p.a * q.a, q.a * p.b + q.b}; }
  static __device__ real value(state s) { return s.b; }
};
