/* batch_norm_signs.h - y's signs (ops/convolution/batch_norm.c) on the CPU: a byte for each pack of elements, from a
 * flag for each element and back. */
#ifndef TFUSE_BATCH_NORM_SIGNS_H_
#define TFUSE_BATCH_NORM_SIGNS_H_

#include <stdint.h>
#include <string.h>

/* Elements of a pack are at most so many. */
enum { BATCH_NORM_PACK = 8 };

/* What a pack has, where it is a constant: then a pack is one load or store. */
#define BATCH_NORM_BY_PACK(pack, call) ((pack) == 8 ? call(8) : (pack) == 4 ? call(4) : call(2))

/* Flags are 0 or 1; those of the last pack are all there. Flag j is bit 8 * j of a number, and comes to bit 56 + j of
 * the product, where no other one comes. */
static inline void tfu_join_flags_of(const uint8_t *flags, int packs, int pack, uint8_t *signs) {
  for (int p = 0; p < packs; p++) {
    uint64_t all = 0;
    memcpy(&all, flags + p * pack, (size_t)pack);
    signs[p] = (uint8_t)(all * 0x0102040810204080u >> 56);
  }
}
static inline void tfu_join_flags(const uint8_t *flags, int packs, int pack, uint8_t *signs) {
#define CALL(pack) tfu_join_flags_of(flags, packs, pack, signs)
  BATCH_NORM_BY_PACK(pack, CALL);
#undef CALL
}

/* Flags are 0, or else not; of whole packs. Byte j of the product keeps bit j. */
static inline void tfu_split_flags_of(const uint8_t *signs, int packs, int pack, uint8_t *flags) {
  for (int p = 0; p < packs; p++) {
    const uint64_t all = signs[p] * 0x0101010101010101u & 0x8040201008040201u;
    memcpy(flags + p * pack, &all, (size_t)pack);
  }
}
static inline void tfu_split_flags(const uint8_t *signs, int packs, int pack, uint8_t *flags) {
#define CALL(pack) tfu_split_flags_of(signs, packs, pack, flags)
  BATCH_NORM_BY_PACK(pack, CALL);
#undef CALL
}

#endif
