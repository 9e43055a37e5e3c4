/* activations_cpu.c - the table of activations on the CPU: one vectorised loop per activation and arithmetic type. */
#ifndef REAL
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/exp_cpu.h"

static inline float expm1_of_f32(float x) {
  float m;
  const float power = exp_parts(x, &m);
  return power * m + (power - 1);
}
static inline float positive_of_f32(float x) {
  const uint32_t bits = bits_of(x);
  return from_bits(bits - 0x80000000u <= 0x7f800000u ? 0 : bits); /* -0 to -infinity */
}
/* A quotient of polynomials in x^2, relative error 2e-8 up to `most`, 8.20001, where it rounds to 1. Half the work of
 * one through exp. */
static inline float tanh_of_f32(float x) {
  const uint32_t sign = bits_of(x) & 0x80000000u, size = bits_of(x) ^ sign, one = 0x3f800000u, most = 0x4103333eu;
  const float a = from_bits(size < most ? size : most), z = a * a;
  const float low = 9.756966884e-6f + z * (-1.430465718e-8f + z * 2.235484195e-11f);
  const float top = a * (9.999999758e-1f + z * (1.296765413e-1f + z * (2.973211239e-3f + z * low)));
  const uint32_t t = bits_of(top / (1 + z * (4.630096576e-1f + z * (2.397675668e-2f + z * 2.354169431e-4f))));
  return from_bits(sign | (size > 0x7f800000u ? size : t < one ? t : one));
}
static inline double positive_of_f64(double x) { return x < 0 ? 0 : x; }
static inline double tanh_of_f64(double x) { return tanh(x); }
static inline float abs_of_f32(float x) { return fabsf(x); }
static inline double abs_of_f64(double x) { return fabs(x); }
/* float has its own series for these two */
static inline float log1p_of_f32(float x) { return log1pf(x); }
static inline float erfc_of_f32(float x) { return erfcf(x); }

static inline double expm1_of_f64(double x) { return expm1(x); }
static inline double log1p_of_f64(double x) { return log1p(x); }
static inline double erfc_of_f64(double x) { return erfc(x); }

#define FUNCTION static inline
#define TFU_SELF "kernels/core/cpu/activations_cpu.c"
#include "kernels/core/cpu/stamp.h"

#define X(name) [TFU_ACT_##name] = {value_##name##_f32, grad_##name##_f32, value_##name##_f64, grad_##name##_f64},
const tfu_activation tfu_activations[TFU_ACTS] = {TFU_ACTIVATIONS(X)};

#else
static inline REAL FN(divide)(REAL a, REAL b) { return a / b; }
static inline REAL FN(gauss_of)(REAL x) { return FN(exp_of)((REAL)-0.5 * x * x); }

#define BITS ((int)sizeof(REAL) * 8)
#include "kernels/core/activation_math.h"
#undef BITS

#define LOOP(name, function)                                                                        \
  TFU_WIDE(static, FN(name), (REAL * v, const REAL *x, const REAL *scale, const REAL *bias, int n), \
           (v, x, scale, bias, n), TFU_VECTORISED(i, n) v[i] = FN(function)(x[i] * scale[i] + bias[i]);)
#define X(name) LOOP(value_##name, name) LOOP(grad_##name, name##_grad)
TFU_ACTIVATIONS(X)
#undef X
#undef LOOP
#endif
