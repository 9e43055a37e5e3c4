/* radix_cpu.h - keys in order, on the CPU: a stable radix sort by digits of 8 bits. */
#ifndef KEY
#ifndef TFUSE_RADIX_CPU_H_
#define TFUSE_RADIX_CPU_H_

#include "kernels/core/cpu/cpu.h"
#include "kernels/sorting/order.h"

#define TFU_SELF "kernels/sorting/radix_cpu.h"
#include "kernels/sorting/by_key.h"
#undef TFU_SELF

/* Numbers of room that tfu_radix_together needs, and from how many keys on it is the faster. */
int64_t tfu_radix_counts(void);
enum { TFU_LONG_LINE = 1 << 17 };

#endif
#else

/* n keys, and an index that comes with each unless indices are NULL, with as much room again. Sorting may change the
 * two buffers' roles: what is sorted, and what the sort leaves, is in keys and indices, the rest in other_…. */
typedef struct KEYED(tfu_line) {
  KEY *keys, *other_keys;
  uint32_t *indices, *other_indices;
  int64_t n;
} KEYED(tfu_line);

/* Sorts by the keys, least first; those of one key stay in the order they have. */
void KEYED(tfu_radix)(KEYED(tfu_line) * line);
/* The same for a long line, by all threads. Needs room for tfu_radix_counts() numbers. */
void KEYED(tfu_radix_together)(KEYED(tfu_line) * line, int64_t *counts);
#endif
