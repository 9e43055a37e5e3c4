/* fold_cpu.h - sums down the columns of a row-major matrix, in an order that depends on its shape alone: the same bits
 * for any number of threads.
 *
 * Short rows are joined: [rows, cols] is walked as [rows / k, k * cols], the last row perhaps short. Blocks of joined
 * rows and strips of columns are tasks; each block keeps its own sums, which are added up in order at the end. Sums are
 * double for every dtype: chains of adds are long, and the loops wait for memory. */
#ifndef TFUSE_FOLD_CPU_H_
#define TFUSE_FOLD_CPU_H_

#include "tfuse.h"

typedef struct tfu_fold {
  int64_t n;           /* elements                                        */
  int64_t width, rows; /* columns of a joined row, and how many there are */
  int64_t block_rows, blocks, strips, tasks;
  int quantities; /* sums kept per column */
  double *sums;   /* [blocks][quantities][width] */
} tfu_fold;

#pragma GCC visibility push(default)
tfu_fold tfu_fold_plan(const tfu_shape *shape);
/* Makes room for the sums and clears them. */
TFU_MUST_USE tfu_code tfu_fold_start(tfu_call *call, tfu_fold *fold, int quantities);

/* A task's tiles: for (tfu_fold_tile t = tfu_fold_first(f, task); tfu_fold_next(f, &t);) gives n elements from element
 * `at` on, which stand in columns col .. col + n of a joined row. */
typedef struct tfu_fold_tile {
  int64_t block, at, col;
  int n;
  int64_t row, row_end, next_col, strip, strip_end;
} tfu_fold_tile;
tfu_fold_tile tfu_fold_first(const tfu_fold *fold, int64_t task);
int tfu_fold_next(const tfu_fold *fold, tfu_fold_tile *tile);

/* The sums of one block: one value per column. */
static inline double *tfu_fold_sums(const tfu_fold *f, int64_t block, int quantity) {
  return f->sums + (block * f->quantities + quantity) * f->width;
}

/* Adds the blocks up into out: column c of a joined row goes to element c modulo out's count. Empty: not wanted. */
void tfu_fold_finish(const tfu_fold *fold, int quantity, const tfu_tensor *out);
#pragma GCC visibility pop

#endif
