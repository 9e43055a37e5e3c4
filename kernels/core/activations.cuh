/* activations.cuh - the table of activations on the GPU.
 *
 * Arithmetic for 16-bit storage takes the hardware's fast exp and division, whose error (some 1e-6) is far below what
 * the storage keeps; float32 and float64 take the exact ones. */
#pragma once

#include "activations.h"
#include "kernels/core/pack.cuh"

#define FUNCTION static __device__ inline
#define FN(name) name
#define LOG1P(x) ::log1p(x)
#define ERFC(x) ::erfc(x)

#define REAL float
#define EXP(x) __expf(x)
#define EXPM1(x) ::expm1f(x)
#define DIV(a, b) __fdividef(a, b)
struct math_16_bit {
#include "kernels/core/activation_math.h"
};
#undef EXP
#undef DIV
#define EXP(x) ::expf(x)
#define DIV(a, b) ((a) / (b))
struct math_float {
#include "kernels/core/activation_math.h"
};
#undef REAL
#undef EXP
#undef EXPM1
#define REAL double
#define EXP(x) ::exp(x)
#define EXPM1(x) ::expm1(x)
struct math_double {
#include "kernels/core/activation_math.h"
};
#undef REAL
#undef EXP
#undef EXPM1
#undef DIV
#undef LOG1P
#undef ERFC
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

/* An activation as a type: act_relu::value<T>(v), act_relu::grad<T>(v). */
#define X(name)                                       \
  struct act_##name {                                 \
    template <typename T>                             \
    static __device__ inline acc<T> value(acc<T> v) { \
      return math_of<T>::type::name(v);               \
    }                                                 \
    template <typename T>                             \
    static __device__ inline acc<T> grad(acc<T> v) {  \
      return math_of<T>::type::name##_grad(v);        \
    }                                                 \
  };
TFU_ACTIVATIONS(X)
#undef X

/* Stamps function<T, activation>(args) as the kernels function_<activation>_<dtype>. */
#define TFU_KERNEL_PER_ACTIVATION_(function, args, name)                     \
  TFU_KERNEL_AS_(function##_##name##_f32, args, function<float, act_##name>) \
  TFU_KERNEL_AS_(function##_##name##_f16, args, function<f16, act_##name>)   \
  TFU_KERNEL_AS_(function##_##name##_bf16, args, function<bf16, act_##name>) \
  TFU_KERNEL_AS_(function##_##name##_f64, args, function<double, act_##name>)
