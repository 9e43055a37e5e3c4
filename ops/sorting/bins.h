/* bins.h - how many bins there are: the first axis of an input `bins` of shape [size, 0], which has no elements. */
#ifndef TFUSE_BINS_H_
#define TFUSE_BINS_H_

#include "tfuse.h"

static inline tfu_code tfu_bins_of(const tfu_shape *bins, int64_t *size, tfu_error *err) {
  *size = TFU_UNKNOWN;
  if (bins->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, bins->rank == 2, "bins must be [size, 0], got %s", tfu_show(bins).text);
  *size = bins->dim[0];
  return TFU_OK;
}

#endif
