/* float8.h - numbers of 8 bits: a sign, an exponent and a fraction.
 *
 *   e4m3  4 bits of exponent, 3 of fraction: up to 448, steps of 2^-9 below 2^-6; no infinity, and one NaN, 127
 *   e5m2  5 bits of exponent, 2 of fraction: up to 57344, steps of 2^-16 below 2^-14; infinity is 124
 *
 * Numbers are rounded to the nearest, of two to the even one, and to the largest where they are beyond it. NaN stays
 * NaN. */
#ifndef TFUSE_FLOAT8_H_
#define TFUSE_FLOAT8_H_

#include <stdint.h>

typedef struct float8_format {
  int fraction, least; /* bits of the fraction, and the exponent of the least normal number */
  float largest;
} float8_format;

/* What the largest number of a row is multiplied with to be the row's scale in e4m3. */
static const float float8_row_f32 = 1 / 448.0f;
static const double float8_row_f64 = 1 / 448.0;

#ifdef TFU_DEVICE
#define FLOAT8_INLINE __device__ inline
FLOAT8_INLINE unsigned float8_bits(float v) { return __float_as_uint(v); }
FLOAT8_INLINE float float8_float(unsigned bits) { return __uint_as_float(bits); }
#else
#include <math.h>
#include <string.h>
#define FLOAT8_INLINE static inline
FLOAT8_INLINE unsigned float8_bits(float v) {
  unsigned bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
FLOAT8_INLINE float float8_float(unsigned bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
#endif

FLOAT8_INLINE float8_format float8_of(int e5m2) {
  const float8_format e4 = {3, -6, 448}, e5 = {2, -14, 57344};
  return e5m2 ? e5 : e4;
}

/* The number that a code is. */
FLOAT8_INLINE float float8_value(unsigned code, int e5m2) {
  const float8_format f = float8_of(e5m2);
  const unsigned magnitude = code & 127, sign = (code & 128) << 24;
  if (e5m2 ? magnitude >= 124 : magnitude == 127) /* infinity or NaN */
    return float8_float(sign | 0x7f800000u | (magnitude & 3) << 21);
  if (magnitude >> f.fraction == 0) { /* steps of 2^(least - fraction) */
    const float step = float8_float((unsigned)(127 + f.least - f.fraction) << 23);
    return float8_float(float8_bits((float)magnitude * step) | sign);
  }
  return float8_float(sign | ((magnitude << (23 - f.fraction)) + ((unsigned)(126 + f.least) << 23)));
}

/* The code of a number. */
FLOAT8_INLINE unsigned float8_code(float v, int e5m2) {
  const float8_format f = float8_of(e5m2);
  const unsigned bits = float8_bits(v), sign = bits >> 24 & 128, magnitude = bits & 0x7fffffffu;
  const float a = float8_float(magnitude);
  if (magnitude > 0x7f800000u) return sign | 127;
  if (a >= f.largest) return sign | (e5m2 ? 123 : 126);
  if (a < float8_float((unsigned)(127 + f.least) << 23)) /* 8 or 4 steps are the code of the least normal number */
    return sign | (unsigned)rintf(a * float8_float((unsigned)(127 - f.least + f.fraction) << 23));
  const int cut = 23 - f.fraction;
  const unsigned rounded = (magnitude + (1u << (cut - 1)) - 1 + (magnitude >> cut & 1)) >> cut;
  return sign | (rounded - ((unsigned)(126 + f.least) << f.fraction));
}

#endif
