/* order.h - the order of a dtype's keys, for the host. */
#ifndef TFUSE_ORDER_H_
#define TFUSE_ORDER_H_

#include "kernels/sorting/keys.h"
#include "tfuse.h"

static inline tfu_order tfu_order_of(tfu_dtype dtype, int descending, int ties) {
  static const uint64_t infinity[] = {
      [TFU_F32] = 0x7f800000, [TFU_F16] = 0x7c00, [TFU_BF16] = 0x7f80, [TFU_F64] = 0x7ff0000000000000};
  const int is_float = dtype < TFU_FLOATS;
  return (tfu_order){.infinity = is_float ? infinity[dtype] : UINT64_MAX,
                     .flip = descending ? UINT64_MAX : 0,
                     .is_float = is_float,
                     .ties = ties};
}

/* The same of keys of at least 32 bits: those of 16 are in their upper half. */
static inline tfu_order tfu_wide_order_of(tfu_dtype dtype, int descending, int ties) {
  tfu_order o = tfu_order_of(dtype, descending, ties);
  if (tfu_dtype_size(dtype) == 2) o.infinity <<= 16;
  return o;
}

/* The order in which keys of so many bytes are their own. */
static inline tfu_order tfu_order_of_keys(size_t key) {
  return (tfu_order){.infinity = UINT64_MAX, .flip = (uint64_t)1 << (8 * key - 1)};
}

#endif
