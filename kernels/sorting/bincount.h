/* bincount.h - what the launches hand the device. */
#ifndef TFUSE_BINCOUNT_H_
#define TFUSE_BINCOUNT_H_

#include <stdint.h>

#define TFU_BIN_EACH 8       /* values that a thread reads at a time                    */
#define TFU_BIN_THREADS 1024 /* of a block at most                                      */
#define TFU_SHARED_BINS                                                                              \
  8192 /* that a block keeps in shared memory with their copies, of which there are 32 at most; more \
          bins have no copies, and larger blocks */

/* What values and weights are stored as, in the order of tfu_dtype: one kernel serves all. */
enum { TFU_BIN_F32, TFU_BIN_F16, TFU_BIN_BF16, TFU_BIN_F64, TFU_BIN_I32, TFU_BIN_I64 };

typedef struct bin_args {
  const void *of;    /* ids, or the values of a histogram                          */
  const void *range; /* of a histogram: two values; NULL for ids                   */
  unsigned long long *counts;
  uint32_t *keys; /* instead of counts: the bin of each id                      */
  int64_t rows, cols, size;
  unsigned chunks; /* blocks of a row                                            */
  int kind;        /* of the values: TFU_BIN_…                                   */
  int copies;      /* of the bins in shared memory; 0: they are not there        */
  int binary;
} bin_args;

/* Sums of weights by sorted ids. */
typedef struct bin_sum_args {
  const void *weights;
  const uint32_t *keys,
      *indices;  /* of each row: bins in order, and the indices of their weights; NULL: weights are in order */
  void *partial; /* [parts][rows * size]                                        */
  void *sums;
  int64_t rows, cols, size;
  int parts;
  int kind; /* of the weights: TFU_BIN_… */
} bin_sum_args;

/* Of each id, what its row of sums has in that bin; 0 for none. Values are moved, whatever their bits mean. */
typedef struct bin_take_args {
  const void *sums, *ids;
  void *weights;
  int64_t rows, cols, size;
  int kind; /* of the ids: TFU_BIN_… */
} bin_take_args;

#ifndef TFU_DEVICE
#include "kernels/core/gpu/cuda.h"

_Static_assert(TFU_BIN_F16 == (int)TFU_F16 && TFU_BIN_BF16 == (int)TFU_BF16 && TFU_BIN_F64 == (int)TFU_F64 &&
                   TFU_BIN_I32 == (int)TFU_I32 && TFU_BIN_I64 == (int)TFU_I64,
               "kinds are dtypes");

/* Counts ids or, where there is a range, values. Says chunks and copies itself. */
TFU_MUST_USE tfu_code tfu_bins_gpu(tfu_call *call, bin_args *a);
#endif
#endif
