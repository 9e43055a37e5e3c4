/* activations.cuh - the table of activations on the GPU, in three precisions. */
#pragma once

#include "activations.h"
#include "kernels/core/device/pack.cuh"

/* For results that are rounded to 16 bits: one instruction each for 2^x and 1 / x, whose relative error (some 1e-6) is
 * far below what the storage keeps; results below 1e-38 are zero. */
struct primitives_16_bit {
  static __device__ inline float abs_of(float x) { return fabsf(x); }
  static __device__ inline float positive_of(float x) { return x < 0 ? 0 : x; }
  static __device__ inline float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ inline float exp_of(float x) { return exp2_of(x * 1.44269504f); }
  static __device__ inline float gauss_of(float x) { return exp2_of(x * (x * -0.72134752f)); }
  static __device__ inline float expm1_of(float x) { /* near 0 the series, where the difference would cancel */
    const float near = x * (1 + x * (0.5f + x * (1.0f / 6 + x * (1.0f / 24)))), far = exp_of(x) - 1;
    return x * x < 0.01f ? near : far;
  }
  static __device__ inline float divide(float a, float b) { return a * reciprocal(b); }
  static __device__ inline float tanh_of(float x) { /* tanh(|x|) = -m / (m + 2) with m = exp(-2 |x|) - 1 */
    const float m = expm1_of(-2 * fabsf(x));
    return copysignf(divide(m, m + 2), x);
  }
  static __device__ inline float log1p_of(float x) { return ::log1pf(x); }
  static __device__ inline float erfc_of(float x) { return ::erfcf(x); }
};

struct primitives_float : primitives_16_bit {
  static __device__ inline float exp_of(float x) { return ::expf(x); }
  static __device__ inline float gauss_of(float x) { return ::expf(-0.5f * x * x); }
  static __device__ inline float expm1_of(float x) { return ::expm1f(x); }
  static __device__ inline float tanh_of(float x) { return ::tanhf(x); }
  /* To half a unit and a bit, without the branch that an exact division takes for extreme b. */
  static __device__ inline float divide(float a, float b) {
    const float r = reciprocal(b), q = a * r;
    return fmaf(fmaf(-b, q, a), r, q);
  }
};

struct primitives_double {
  static __device__ inline double abs_of(double x) { return fabs(x); }
  static __device__ inline double positive_of(double x) { return x < 0 ? 0 : x; }
  static __device__ inline double tanh_of(double x) { return ::tanh(x); }
  static __device__ inline double exp_of(double x) { return ::exp(x); }
  static __device__ inline double gauss_of(double x) { return ::exp(-0.5 * x * x); }
  static __device__ inline double expm1_of(double x) { return ::expm1(x); }
  static __device__ inline double divide(double a, double b) { return a / b; }
  static __device__ inline double log1p_of(double x) { return ::log1p(x); }
  static __device__ inline double erfc_of(double x) { return ::erfc(x); }
};

#define FUNCTION static __device__ inline
#define FN(name) name
#define REAL float
#define BITS 16
struct math_16_bit : primitives_16_bit {
#include "kernels/core/activation_math.h"
};
#undef BITS
#define BITS 32
struct math_float : primitives_float {
#include "kernels/core/activation_math.h"
};
#undef BITS
#undef REAL
#define REAL double
#define BITS 64
struct math_double : primitives_double {
#include "kernels/core/activation_math.h"
};
#undef BITS
#undef REAL
#undef FN
#undef FUNCTION

template <typename T>
struct math_of {
  typedef math_16_bit type;
};
template <>
struct math_of<float> {
  typedef math_float type;
};
template <>
struct math_of<double> {
  typedef math_double type;
};

/* An activation as an object: act.value<T>(v), act.grad<T>(v). Which it is, is part of the type. */
#define X(name)                                \
  struct act_##name {                          \
    int unused;                                \
    template <typename T>                      \
    __device__ acc<T> value(acc<T> v) const {  \
      return math_of<T>::type::name(v);        \
    }                                          \
    template <typename T>                      \
    __device__ acc<T> grad(acc<T> v) const {   \
      return math_of<T>::type::name##_grad(v); \
    }                                          \
  };
TFU_ACTIVATIONS(X)
#undef X

/* Any activation, TFU_ACT_…, in float64: one copy of its long formulas serves all kernels of a module. */
static __device__ __noinline__ double any_value(int which, double v) {
  switch (which) {
#define X(name) \
  case TFU_ACT_##name: return math_double::name(v);
    TFU_ACTIVATIONS(X)
#undef X
  }
  return v;
}
static __device__ __noinline__ double any_grad(int which, double v) {
  switch (which) {
#define X(name) \
  case TFU_ACT_##name: return math_double::name##_grad(v);
    TFU_ACTIVATIONS(X)
#undef X
  }
  return v;
}
struct act_any {
  int which;
  template <typename T>
  __device__ double value(double v) const {
    return any_value(which, v);
  }
  template <typename T>
  __device__ double grad(double v) const {
    return any_grad(which, v);
  }
};

/* Stamps function<T, activation>(args) as the kernels function_<activation>_<dtype> of all but float64. */
#define TFU_ACTIVATION_KERNEL_OF_(function, args, name, tag, T) \
  TFU_KERNEL_AS_(function##_##name##_##tag, args, function<T, act_##name>)
#define TFU_KERNEL_FOR_ACTIVATION(function, args, name) TFU_SINGLES(TFU_ACTIVATION_KERNEL_OF_, function, args, name)
