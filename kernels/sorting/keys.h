/* keys.h - numbers as unsigned keys whose order is that of the numbers. Read by host and device, once for each size:
 * KEY is the unsigned type, and KEYED(name) a name for it.
 *
 * Of floats NaN, of either sign, is greater than all others and comes back as one NaN. -0.0 is less than 0.0 where the
 * keys are all there is, and their equal (`ties`) where indices are asked for, so that the lower index comes first.
 * `flip` is all ones where the greatest number is to have the least key. */
#ifndef KEY
#ifndef TFUSE_KEYS_H_
#define TFUSE_KEYS_H_

#include <stdint.h>

/* How keys are made of numbers. */
typedef struct tfu_order {
  uint64_t infinity; /* its bits; all ones for integers, so that nothing is more */
  uint64_t flip;
  int is_float, ties;
} tfu_order;

#define TFU_SELF "kernels/sorting/keys.h"
#include "kernels/sorting/by_key.h"
#undef TFU_SELF

#endif
#else

static inline KEY KEYED(tfu_to_key)(KEY bits, tfu_order o) {
  const KEY sign = (KEY)((KEY)1 << (8 * sizeof(KEY) - 1)), magnitude = (KEY)(bits & (KEY)~sign);
  KEY key = (KEY)(bits ^ (o.is_float && (bits & sign) ? (KEY) ~(KEY)0 : sign));
  if (magnitude > (KEY)o.infinity) key = (KEY) ~(KEY)0;
  if (o.ties && magnitude == 0 && o.is_float) key = sign;
  return (KEY)(key ^ (KEY)o.flip);
}

static inline KEY KEYED(tfu_from_key)(KEY key, tfu_order o) {
  const KEY sign = (KEY)((KEY)1 << (8 * sizeof(KEY) - 1));
  key = (KEY)(key ^ (KEY)o.flip);
  return (KEY)(key ^ (o.is_float && !(key & sign) ? (KEY) ~(KEY)0 : sign));
}
#endif
