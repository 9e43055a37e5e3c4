/* divisor.h - division on the device by a number that the host knows: n / by = (high half of n * factor + n) >> shift,
 * for n < 2^31. */
#ifndef TFUSE_DIVISOR_H_
#define TFUSE_DIVISOR_H_

#include <stdint.h>

typedef struct tfu_divisor {
  uint32_t by, factor, shift;
} tfu_divisor;

#ifdef TFU_DEVICE
__device__ inline uint32_t divide(uint32_t n, const tfu_divisor &d) { return (__umulhi(n, d.factor) + n) >> d.shift; }
#else
static inline tfu_divisor divisor_of(int64_t by) {
  tfu_divisor d = {.by = (uint32_t)by};
  while ((int64_t)1 << d.shift < by) d.shift++;
  d.factor = (uint32_t)((((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)by)) / (uint64_t)by + 1);
  return d;
}
#endif

#endif
