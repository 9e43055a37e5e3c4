/* rotation.cuh - the angles of rotary embeddings, and pairs rotated by them, for every kernel that does so.
 *
 * An angle is computed in turns, as a fraction of 64 bits: multiplying by the position drops whole turns by itself, so
 * an angle of a million turns is as accurate as one below a turn. */
#pragma once

#include "kernels/core/device/pack.cuh"
#include "kernels/core/rotation.h"

typedef unsigned long long fraction; /* of a turn, in units of 2^-64 */

/* What a pair is rotated by for each position. In float64 it is the angle itself, whose whole turns sincos() takes away
 * as exactly as they came: a fraction would have to have more digits than the base has. */
template <typename T>
struct angle_of {
  typedef fraction type;
};
template <>
struct angle_of<double> {
  typedef double type;
};
template <typename T>
using angle = typename angle_of<T>::type;

__device__ inline double radians(const rope_frequencies &f, int64_t i) {
  return f.scale * (f.given ? (double)f.given[i] : pow(f.base, -(double)i / (double)f.half));
}
/* The same to some digits less, 4e-15, which fractions do not have: pow() takes longer than all else where tokens are
 * few. */
__device__ inline double radians_soon(const rope_frequencies &f, int64_t i) {
  if (f.given || i >> TFU_ROPE_POWERS) return radians(f, i);
  double v = f.scale;
  UNROLLED(bit, TFU_ROPE_POWERS)
    if (i >> bit & 1) v *= f.powers[bit];
  return v;
}
/* Turns are radians / (2 pi). What they have beside whole turns is at most a half: times 2^63 it fits a signed number,
 * and twice that is the fraction. */
template <typename T>
__device__ inline angle<T> frequency(const rope_frequencies &f, int64_t i) {
  const double turns = radians_soon(f, i) * 0.15915494309189533577;
  return (fraction)(long long)((turns - rint(turns)) * 9223372036854775808.0) * 2;
}
template <>
__device__ inline double frequency<double>(const rope_frequencies &f, int64_t i) {
  return radians(f, i);
}

/* Results of 16 bits need no more than the fast functions give after exact reduction, some 5e-7. */
template <typename T>
__device__ inline void sine_cosine(angle<T> turns, acc<T> *sine, acc<T> *cosine) {
  const float x = (float)(int)(turns >> 32) * 4.6566128730773926e-10f; /* half turns, -1 to 1 */
  if (sizeof(T) == 2) {
    *sine = __sinf(x * 3.14159265358979f);
    *cosine = __cosf(x * 3.14159265358979f);
  } else {
    float s, c;
    sincospif(x, &s, &c);
    *sine = s, *cosine = c;
  }
}
template <>
__device__ inline void sine_cosine<double>(double radians, double *sine, double *cosine) {
  sincos(radians, sine, cosine);
}

template <typename T>
__device__ inline void rotate(acc<T> s, acc<T> c, acc<T> &x, acc<T> &y) {
  const acc<T> was = x;
  x = was * c - y * s;
  y = was * s + y * c;
}
template <typename T>
__device__ inline void rotate(angle<T> by, acc<T> &x, acc<T> &y) {
  acc<T> s, c;
  sine_cosine<T>(by, &s, &c);
  rotate<T>(s, c, x, y);
}
