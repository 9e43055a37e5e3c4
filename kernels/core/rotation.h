/* rotation.h - the frequencies of rotary embeddings, for host and device. */
#ifndef TFUSE_ROTATION_H_
#define TFUSE_ROTATION_H_

#include <stdint.h>

enum { TFU_ROPE_POWERS = 10 }; /* of heads with more than twice 2^10 elements, frequencies are computed one by one */

/* Pair i of a head is rotated by position * scale * base^(-i / half), or position * scale * given[i]. */
typedef struct rope_frequencies {
  const float *given;             /* frequencies of pairs; NULL: powers of the base             */
  int64_t half;                   /* pairs of a head that are rotated                          */
  double scale, base;             /* of positions (negative: rotates back); of the wavelengths */
  double powers[TFU_ROPE_POWERS]; /* base^(-2^i / half)                                        */
} rope_frequencies;

#ifndef TFU_DEVICE
#include <math.h>

static inline rope_frequencies rope_frequencies_of(const float *given, double base, double scale, int64_t half) {
  rope_frequencies f = {.given = given, .half = half, .scale = scale, .base = base};
  for (int i = 0; i < TFU_ROPE_POWERS; i++) f.powers[i] = pow(base, -(double)(1 << i) / (double)half);
  return f;
}
#endif

#endif
