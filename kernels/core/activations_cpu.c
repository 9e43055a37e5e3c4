/* activations_cpu.c - the table of activations on the CPU: one vectorised loop per activation and arithmetic type. */
#ifndef REAL
#include <math.h>

#include "kernels/core/cpu.h"

/* Comparisons of bits as integers: those of floats cost the vector unit ten instructions where NaN must survive. */
static inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* For x <= 0: e^x = 2^n e^r with |r| <= ln(2) / 2. Returns 2^n, or 0 below 2e-38, and leaves e^r - 1 in *m. Adding and
 * taking away 1.5 * 2^23 rounds to an integer that also stands in the low bits: no conversion, which NaN would make
 * undefined. Relative error of e^x: 6e-8. */
static inline float exp_parts(float x, float *m) {
  const float magic = 12582912.0f;
  const float shifted = x * 1.44269504f + magic, n = shifted - magic;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  const float s = r * r,
              q = (4.166685342e-2f + r * 8.363146345e-3f) + s * 1.390128716e-3f; /* short chains: latency counts */
  const uint32_t least = 0xc2ad3334u, infinity = 0xff800000u;                    /* -86.6 and -infinity */
  const int cut = bits_of(x) - least <= infinity - least;
  *m = cut ? 0 : r + s * ((4.999999955e-1f + r * 1.666657728e-1f) + s * q); /* r of -infinity is NaN */
  return from_bits(cut ? 0 : (bits_of(shifted) + 127) << 23);
}
static inline float exp_of_f32(float x) {
  float m;
  const float power = exp_parts(x, &m);
  return power + power * m;
}
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

static inline double exp_of_f64(double x) { return exp(x); }
static inline double expm1_of_f64(double x) { return expm1(x); }
static inline double log1p_of_f64(double x) { return log1p(x); }
static inline double erfc_of_f64(double x) { return erfc(x); }

#define FUNCTION static inline
#define TFU_SELF "kernels/core/activations_cpu.c"
#include "kernels/core/stamp.h"

#define X(name) [TFU_ACT_##name] = {value_##name##_f32, grad_##name##_f32, value_##name##_f64, grad_##name##_f64},
const tfu_activation tfu_activations[TFU_ACTS] = {TFU_ACTIVATIONS(X)};

#else
static inline REAL FN(divide)(REAL a, REAL b) { return a / b; }
static inline REAL FN(gauss_of)(REAL x) { return FN(exp_of)((REAL)-0.5 * x * x); }

#define BITS ((int)sizeof(REAL) * 8)
#include "kernels/core/activation_math.h"
#undef BITS

#define LOOP(name, function)                                                                  \
  static void FN(name)(REAL * v, const REAL *x, const REAL *scale, const REAL *bias, int n) { \
    TFU_VECTORISE                                                                             \
    for (int i = 0; i < n; i++) v[i] = FN(function)(x[i] * scale[i] + bias[i]);               \
  }
#define X(name) LOOP(value_##name, name) LOOP(grad_##name, name##_grad)
TFU_ACTIVATIONS(X)
#undef X
#undef LOOP
#endif
