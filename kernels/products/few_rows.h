/* few_rows.h - y = act(x . kernel + bias) + residual for few rows of x, as in decoding, where what takes time is
 * reading the kernel once. */
#ifndef TFUSE_FEW_ROWS_H_
#define TFUSE_FEW_ROWS_H_

#include <stdint.h>

enum {
  FEW_ROWS_MOST = 64,  /* rows of x                                                       */
  FEW_ROWS_TILE = 64,  /* columns of a block                                              */
  FEW_ROWS_STEP = 32,  /* rows of the kernel that a warp multiplies with at once: a stage */
  FEW_ROWS_WARPS = 4,  /* of a block; they take its stages in turn                        */
  FEW_ROWS_DEPTH = 4,  /* stages that a warp has on their way from memory                 */
  FEW_ROWS_SPLITS = 8, /* blocks at most that share the kernel's rows: a cluster          */
};

/* Bytes of a stage in shared memory: rows of the kernel, and the columns of x that they are multiplied with. */
#define FEW_ROWS_STAGE(tiles) (FEW_ROWS_STEP * 2 * (FEW_ROWS_TILE + 16 * (tiles)))

typedef struct few_rows_args {
  const void *x, *kernel, *bias, *residual; /* the last two may be NULL */
  void *y;
  int64_t outputs, inputs;
  int rows, activation, splits;
} few_rows_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* Runs it where it is served: 16 bits on a GPU with clusters, up to FEW_ROWS_MOST rows, sizes that fill its loads. How
 * a row's sum is split depends on the kernel's sizes alone: its result is the same whatever other rows there are.
 * `constant`: nothing that was queued before in the same graph writes the kernel, which may be read ahead. */
TFU_MUST_USE tfu_code tfu_few_rows_run(tfu_call *call, few_rows_args a, tfu_dtype dtype, int constant, int *served);
#endif

#endif
