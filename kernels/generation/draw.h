/* draw.h - how a word is drawn (ops/generation/sample_logits.c), for CPU and GPU alike. */
#ifndef TFUSE_DRAW_H_
#define TFUSE_DRAW_H_

#ifndef TFU_DEVICE
#include <math.h>
#include <string.h>
#endif

#include "kernels/core/philox.h"

/* Sums of probabilities are whole numbers, which add up to the same in any order: the most likely word has 2^34. */
TFU_PHILOX uint64_t sample_mass(float x, float most, float temperature) {
  return (uint64_t)(expf((x - most) / temperature) * 17179869184.0f);
}

/* Numbers in the order of floats; NaN is below all. */
TFU_PHILOX uint32_t sample_key(float x) {
  uint32_t bits;
#ifdef TFU_DEVICE
  bits = __float_as_uint(x);
#else
  memcpy(&bits, &x, sizeof bits);
#endif
  return x != x ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The score of word i, whose largest is drawn. */
TFU_PHILOX float sample_score(float x, float most, float temperature, uint64_t seed, uint64_t step, uint32_t i) {
  const tfu_bits bits = tfu_philox(step << 32 | i / 4, seed);
  const uint32_t word = bits.word[i % 4];
  /* -log(u) for u = (word + 1/2) / 2^32, whichever end that is near. */
  const float e =
      word >> 31 ? -log1pf(-((float)~word + 0.5f) * 2.3283064e-10f) : -logf(((float)word + 0.5f) * 2.3283064e-10f);
  return (x - most) / temperature - logf(e);
}

#endif
