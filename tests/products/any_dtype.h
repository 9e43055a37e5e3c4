/* any_dtype.h - numbers of any float dtype, one at a time, for what stands in for a GPU. */
#ifndef TFUSE_ANY_DTYPE_H_
#define TFUSE_ANY_DTYPE_H_

#include "kernels/core/cpu/cpu.h"

/* Called once per term of every product: under a sanitizer, a stack of their own would take most of a test's time. */
#define PLAIN __attribute__((no_sanitize_address))

PLAIN static inline double at(const void *data, tfu_dtype dtype, int64_t i) {
  float buffer;
  return dtype == TFU_F64 ? ((const double *)data)[i] : *tfu_load_f32(data, dtype, i, 1, &buffer);
}

PLAIN static inline void put(void *data, tfu_dtype dtype, int64_t i, double v) {
  const float f = (float)v;
  if (dtype == TFU_F64) ((double *)data)[i] = v;
  else tfu_store_f32(data, dtype, i, 1, &f);
}

#endif
