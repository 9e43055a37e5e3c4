/* exp_cpu.h - e^x in loops that vectorise: what activations, softmax and cross entropy share. */
#ifndef TFUSE_EXP_CPU_H_
#define TFUSE_EXP_CPU_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

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

/* e^r - 1 for |r| <= ln(2) / 2. */
static inline float exp_rest(float r) {
  const float s = r * r,
              q = (4.166685342e-2f + r * 8.363146345e-3f) + s * 1.390128716e-3f; /* short chains: latency counts */
  return r + s * ((4.999999955e-1f + r * 1.666657728e-1f) + s * q);
}

/* For x <= 0: e^x = 2^n e^r with |r| <= ln(2) / 2. Returns 2^n, or 0 below 2e-38, and leaves e^r - 1 in *m. Adding and
 * taking away 1.5 * 2^23 rounds to an integer that also stands in the low bits: no conversion, which NaN would make
 * undefined. Another 127 in there makes those bits the exponent of 2^n. Relative error of e^x: 6e-8. */
static inline float exp_parts(float x, float *m) {
  const float magic = 12582912.0f + 127;
  const float shifted = x * 1.44269504f + magic, n = shifted - magic;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  const uint32_t least = 0xc2ad3334u, infinity = 0xff800000u; /* -86.6 and -infinity */
  const int cut = bits_of(x) - least <= infinity - least;
  *m = cut ? 0 : exp_rest(r); /* r of -infinity is NaN */
  return from_bits(cut ? 0 : bits_of(shifted) << 23);
}
static inline float exp_of_f32(float x) {
  float m;
  const float power = exp_parts(x, &m);
  return power + power * m;
}
static inline double exp_of_f64(double x) { return exp(x); }

/* For any x. 2^n is two factors: n may be 128, or as low as -150, and one power of each has no number. */
static inline float exp_any_f32(float x) {
  const float magic = 12582912.0f, near = x > 89 ? 89 : x < -104 ? -104 : x; /* beyond these all is infinite, or 0 */
  const float shifted = near * 1.44269504f + magic, n = shifted - magic;
  const float m = exp_rest((near - n * 0.693145752f) - n * 1.42860677e-6f);
  const int32_t whole = (int32_t)(bits_of(shifted) - bits_of(magic)), half = whole >> 1;
  const float first = from_bits((uint32_t)(half + 127) << 23), second = from_bits((uint32_t)(whole - half + 127) << 23);
  return (first + first * m) * second;
}
static inline double exp_any_f64(double x) { return exp(x); }

#endif
