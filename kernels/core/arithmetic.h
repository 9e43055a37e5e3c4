/* arithmetic.h - what the host computes of sizes. */
#ifndef TFUSE_ARITHMETIC_H_
#define TFUSE_ARITHMETIC_H_

#include <stdint.h>

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* The least power of two that is not less than n, but at most 2^30. */
static inline int power_above(int64_t n) {
  int p = 1;
  while (p < n && p < 1 << 30) p *= 2;
  return p;
}

#endif
