/* radix.h - rows in order, on the GPU: a stable radix sort by digits of 8 bits. Read by host and device.
 *
 * Keys are of 32 or 64 bits; those of numbers of 16 bits are in the upper half of 32. Rows of up to some hundred keys
 * are sorted by counting, rows that fit there in the shared memory of one block, and longer ones a digit at a time:
 * tiles count their digits, the counts are summed up, and tiles deal their keys out to where these say. */
#ifndef TFUSE_RADIX_H_
#define TFUSE_RADIX_H_

#include "kernels/sorting/keys.h"

#define TFU_PILES 256
#define TFU_RADIX_THREADS 1024 /* of a block at most */

typedef struct radix_args {
  const void *from;            /* numbers as they are stored, or keys                               */
  void *keys;                  /* numbers where `decode` is set, else keys; NULL: not wanted        */
  const uint32_t *from_places; /* NULL: a key's own place in its row                                */
  uint32_t *places;            /* NULL: not wanted                                                  */
  uint32_t *counts;            /* [row][digit][tile], then how many come before, by tile            */
  uint32_t *totals;            /* [row][digit]                                                      */
  tfu_order from_order, order; /* of what is read, and of what is written                          */
  int64_t rows, cols;
  unsigned tiles;
  int from_narrow, narrow; /* numbers are of 16 bits */
  int decode;
  int shift;     /* of the digit, or of the first                   */
  int end;       /* bits from here on are not looked at             */
  int items;     /* keys of a thread                                */
  int at_a_time; /* rows of a block, where a row is very short      */
} radix_args;

#ifndef TFU_DEVICE
#include "kernels/core/gpu/cuda.h"

/* What to sort, and where to. */
typedef struct radix_job {
  const void *from; /* numbers of dtype */
  tfu_dtype dtype;
  tfu_order order; /* of wide keys     */
  int64_t rows, cols;
  void *sorted;    /* numbers of dtype in order, or `keys` of 32 or 64 bits; NULL: not wanted */
  int keys;        /* sorted are keys */
  int32_t *places; /* NULL: not wanted */
  int bits;        /* of the keys that differ, the lowest; 0 is all */
} radix_job;

TFU_MUST_USE tfu_code tfu_radix_gpu(tfu_call *call, const radix_job *job);
/* Makes of n counts how many come before each, and gives their sum. */
TFU_MUST_USE tfu_code tfu_count_before(tfu_call *call, uint32_t *counts, int64_t n, void *sum);
#endif
#endif
