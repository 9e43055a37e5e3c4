/* philox.h - which elements dropout drops, for CPU and GPU alike: a counter-based generator, so element i of a tensor
 * is decided by seed and i alone, in any order, on any device, for every dtype.
 *
 * Philox 4x32 (Salmon et al., 2011) with 7 rounds, the fewest that pass the authors' tests. One counter gives 128 bits,
 * 16 for each of 8 elements: element i has bits 16 (i % 8) and up of counter i / 8, and is dropped if they are below
 * rate * 65536. */
#ifndef TFUSE_PHILOX_H_
#define TFUSE_PHILOX_H_

#include <stdint.h>

#ifdef TFU_DEVICE
#define TFU_PHILOX __device__ inline
#define TFU_PHILOX_UNROLL _Pragma("unroll")
#else
#define TFU_PHILOX static inline
#define TFU_PHILOX_UNROLL
#endif

typedef struct tfu_bits {
  uint32_t word[4];
} tfu_bits;

TFU_PHILOX tfu_bits tfu_philox(uint64_t counter, uint64_t key) {
  uint32_t a = (uint32_t)counter, b = (uint32_t)(counter >> 32), c = 0, d = 0;
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  TFU_PHILOX_UNROLL
  for (int round = 0; round < 7; round++) {
    const uint64_t p = (uint64_t)0xD2511F53u * a, q = (uint64_t)0xCD9E8D57u * c;
    a = (uint32_t)(q >> 32) ^ b ^ k0;
    c = (uint32_t)(p >> 32) ^ d ^ k1;
    b = (uint32_t)q;
    d = (uint32_t)p;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const tfu_bits bits = {{a, b, c, d}};
  return bits;
}

/* The 16 bits of element i, from the bits of counter i / 8. */
TFU_PHILOX uint32_t tfu_lane(const tfu_bits *bits, int i) { return bits->word[i % 8 / 2] >> 16 * (i % 2) & 0xffff; }

/* Elements whose 16 bits are below this are dropped. */
TFU_PHILOX uint32_t tfu_drop_below(float rate) { return (uint32_t)(rate * 65536 + 0.5f); }

#endif
