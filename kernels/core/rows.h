/* rows.h - how the GPU works on rows, for ops that look at a whole row before they write it, and their kin. Read by
 * host and device.
 *
 * A row is a run of 16-byte packs, dealt out to `lanes` threads: some of a warp, so that a block has several rows, or a
 * whole block, or all blocks of a cluster, each with its share of the packs. Rows of whole packs that fit stay in
 * registers while a kernel looks at them, and the next ones wait in shared memory. Any others are walked pack by pack.
 */
#ifndef TFUSE_ROWS_H_
#define TFUSE_ROWS_H_

#include <stdint.h>

typedef struct tfu_row_plan {
  int rows;     /* of the tensors                                                 */
  int64_t cols; /* elements                                                       */
  int packs;    /* of a row                                                       */
  int share;    /* packs of a row that a block takes; blockIdx.x says which share */
  int lanes;    /* threads of a row in a block: a power of two                    */
  int cluster;  /* blocks that share a row and have to agree on it                */
  int tensors;  /* that are read                                                  */
  int chunks;   /* that a share comes in, where one look at it is enough          */
  int aligned;  /* the tensors begin on a 16-byte boundary                        */
  /* Of any rows only: */
  int odd;          /* not all rows begin on a boundary                                 */
  int tiles, slots; /* packs of a thread in a row, and how many shared memory holds     */
  int keep, looks;  /* a row stays there for all of the kernel's looks at it            */
} tfu_row_plan;

/* Rows that a thread has in shared memory or on the way there. */
#define TFU_HELD_SLOTS 3

#ifndef TFU_DEVICE
#include "kernels/core/cuda.h"

/* Kernels come in three variants: "short" has one pack per thread and row, "long" some, "any" takes any rows. */
enum { TFU_SHORT, TFU_LONG, TFU_ANY };
extern const char *const tfu_row_variants[];

typedef struct tfu_row_wish {
  int64_t rows, cols;
  tfu_dtype dtype;
  int tensors;  /* read                                                                                */
  int elements; /* of a row that a thread may have                                                     */
  int looks;    /* how often the kernel walks over a row                                               */
  int separate; /* columns do not depend on each other: a row may be split without a cluster           */
  int waves;    /* blocks per place on the GPU: more even out, fewer leave fewer partial sums          */
  int resident; /* threads of a multiprocessor to plan for where a row takes a block; 0 is 1024 */
  int aligned;  /* see tfu_aligned                                                                     */
} tfu_row_wish;

TFU_MUST_USE tfu_code tfu_plan_rows(tfu_call *call, const tfu_row_wish *wish, tfu_row_plan *rows, tfu_grid *grid,
                                    int *variant);

/* Makes the rows that the grid takes at a time a multiple of the period: a thread then meets rows of one residue only.
 */
void tfu_whole_periods(const tfu_row_plan *rows, int64_t period, tfu_grid *grid);
#endif
#endif
