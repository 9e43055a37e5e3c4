/* top_k.h - what the launch hands the device. */
#ifndef TFUSE_TOP_K_H_
#define TFUSE_TOP_K_H_

#include "kernels/sorting/keys.h"

/* Packs that a thread reads at a time. */
#define TFU_TOP_PACKS 4

typedef struct top_args {
  const void *x; /* numbers; keys where from_indices are given      */
  const uint32_t *from_indices;
  void *values; /* the numbers found; NULL: the keys, in `keys`   */
  void *keys;
  const void *numbers; /* where the values are taken from                */
  int32_t *indices;
  tfu_order order;
  int64_t rows, cols;  /* of x                                           */
  int64_t number_cols; /* of `numbers`                                   */
  int64_t part_cols;   /* of a part; the last has what is left           */
  int parts;           /* of a row                                       */
  int of_16_bits;      /* values                                         */
  int k;
  int enough; /* kept ones that are sorted before more are read; there is room for twice as many */
} top_args;

#endif
