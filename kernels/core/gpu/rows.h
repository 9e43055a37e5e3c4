/* rows.h - how the GPU works on rows, for ops that look at a whole row before they write it, and their kin. Read by
 * host and device.
 *
 * A row is a run of 16-byte packs, dealt out to `lanes` threads: some of a warp, so that a block has several rows, or a
 * whole block, or all blocks of a cluster, each with its share of the packs. Rows of whole packs that fit stay in
 * registers while a kernel looks at them, and the next ones, prefetched, wait in shared memory. Longer ones stay in
 * shared memory, in a ring, if the kernel has a variant for that. Any others are walked pack by pack, or, where they
 * are short and the kernel has a variant for that, one by each thread.
 *
 * A row too long for all that is split: its parts are taken for rows, in two launches. The first finds what each part
 * gives to what the row has to agree on, the second joins these and writes. So one huge row keeps the whole GPU busy,
 * at the price of reading it twice.
 *
 * docs/design.md#words says what a look and a seat are. */
#ifndef TFUSE_ROWS_H_
#define TFUSE_ROWS_H_

#include <stdint.h>

typedef struct tfu_row_plan {
  int64_t rows; /* of the tensors                                                 */
  int64_t cols; /* elements                                                       */
  int packs;    /* of a row                                                       */
  int share;    /* packs of a row that a block takes; blockIdx.x says which share */
  int lanes;    /* threads of a row in a block: a power of two                    */
  int cluster;  /* blocks that share a row and have to agree on it                */
  int tensors;  /* that are read                                                  */
  int chunks;   /* that a share comes in, where one look at it is enough          */
  int parts;    /* of a real row: so many of these rows are one                   */
  int pass;     /* TFU_WHOLE, or which of the two launches of a split one it is   */
  void *found;  /* what each part gives                                           */
  int aligned;  /* the tensors begin on a 16-byte boundary                        */
  /* Of any rows and, tiles and slots, of a ring, where they count groups of packs: */
  int odd;          /* not all rows begin on a boundary                                 */
  int tiles, slots; /* packs of a thread in a row, and how many shared memory holds     */
  int keep, looks;  /* a row stays there for all of the kernel's looks at it            */
} tfu_row_plan;

enum { TFU_WHOLE, TFU_FIND, TFU_JOIN };

/* Rows that a thread has in shared memory or on the way there. */
#define TFU_HELD_SLOTS 3
/* Blocks of a cluster, at most: what compute capability 9.0 allows where it is asked (cuda.c). */
#define TFU_MOST_CLUSTER 16
/* Of a ring: packs of a thread in a group, and threads of a block, at most. */
#define TFU_RING_PACKS 2
#define TFU_RING_THREADS 512
/* Of rows of a thread each: threads of a block, each with a row, and tiles of so many rows that are in shared memory or
 * on their way there. 32 threads or a multiple of that, so that tiles are whole packs. */
#define TFU_THREAD_ROWS_THREADS 128
#define TFU_THREAD_ROWS_SLOTS 2

#ifndef TFU_DEVICE
#include "kernels/core/gpu/cuda.h"

/* Kernels come in variants: "short" has one pack per thread and row, "long" some, "any" takes any rows, and "ring" long
 * ones, "thread" short ones that are no whole packs, where there is such a variant. */
enum { TFU_SHORT, TFU_LONG, TFU_ANY, TFU_RING, TFU_THREAD };
#pragma GCC visibility push(default)
extern const char *const tfu_row_variants[];

/* What a kernel has beside the variants short, long and any, and how it takes its rows. */
enum {
  TFU_HAS_RING = 1 << 0,
  TFU_HAS_THREAD = 1 << 1,
  TFU_SEPARATE = 1 << 2, /* columns do not depend on each other: a row may be split without a cluster */
  TFU_ALONE = 1 << 3     /* a held row has a block for itself, and nothing waits in shared memory      */
};

/* All that the planner has to know of a kernel: a table of its numbers, of which some are choices (tunable.h). */
typedef struct tfu_row_kernel {
  tfu_kernel *kernel, *any; /* any: for rows of any kind, and of a thread                                  */
  unsigned has;             /* of the above                                                                */
  int elements;             /* of a row that a thread may have                                             */
  int looks;                /* how often it walks over a row                                               */
  int threads;              /* of a block where several share a row                                        */
  int waves;                /* blocks per place on the GPU: more even out, fewer leave fewer partial sums  */
  int cluster;              /* blocks that may share a row before it is rather split                       */
  int resident;             /* threads of a multiprocessor to plan for where a row takes a block; 0 is 1024 */
  size_t found;             /* bytes that a part of a split row gives; 0 for kernels that take whole rows  */
  /* Rows of more than `from` KiB go through a ring. A block takes up to `share` KiB of a row before a cluster shares
   * it, and has `ahead` groups of packs more than that on their way, or what there is room for. */
  struct {
    int from, share, ahead;
  } ring;
} tfu_row_kernel;

/* The rows of one launch. */
typedef struct tfu_row_job {
  int64_t rows, cols;
  tfu_dtype dtype;
  int tensors; /* read            */
  int aligned; /* see tfu_aligned */
  /* Of rows that are split (tfu_split): parts of a real row, TFU_FIND or TFU_JOIN, and what the parts give. */
  int parts, pass;
  void *found;
} tfu_row_job;

TFU_MUST_USE tfu_code tfu_plan_rows(tfu_call *call, const tfu_row_kernel *kernel, const tfu_row_job *job,
                                    tfu_row_plan *rows, tfu_grid *grid, int *variant);

/* How many parts the rows should be split into for a kernel that can do that: 1 where they need not or cannot. The job
 * is that of the real rows; `tensors` are the most that a pass reads. */
TFU_MUST_USE tfu_code tfu_parts_of(tfu_call *call, const tfu_row_kernel *kernel, const tfu_row_job *job, int *parts);
/* Plans and launches a kernel: at once, or where its rows are split, in two passes. `rows` is part of args, the
 * kernel's argument. */
TFU_MUST_USE tfu_code tfu_launch_rows(tfu_call *call, const tfu_row_kernel *kernel, tfu_row_job job, tfu_row_plan *rows,
                                      void *args);
/* The job of the parts of split rows, and memory for what they give. */
TFU_MUST_USE tfu_code tfu_split(tfu_call *call, const tfu_row_kernel *kernel, int parts, tfu_row_job *job);

/* Makes the rows that the grid takes at a time a multiple of the period: a thread then meets rows of one residue only.
 */
void tfu_whole_periods(const tfu_row_plan *rows, int64_t period, tfu_grid *grid);
#pragma GCC visibility pop
#endif
#endif
