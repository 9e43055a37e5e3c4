/* walk.h - how the GPU walks tensors of one shape, 16 bytes at a time. Read by host and device.
 *
 * [rows, cols] is walked as joined rows: enough rows are taken together that a joined row is a multiple of 128 bytes, a
 * line of the cache, and keeps a block's threads busy. A thread keeps its columns for life and steps down the joined
 * rows (a grid-stride loop), so what belongs to a channel (a scale, a running sum) stays in registers, and an odd
 * number of channels costs nothing. docs/design.md#words says what a pack and a walk are. */
#ifndef TFUSE_WALK_H_
#define TFUSE_WALK_H_

#include <stdint.h>

#define TFU_THREADS 256 /* of every block */

typedef struct tfu_walk {
  int64_t n;     /* elements; the last joined row may be short */
  int64_t width; /* elements of a joined row                   */
  int rows;      /* joined rows that are not short             */
  int aligned;   /* the tensors begin on a 16-byte boundary    */
} tfu_walk;

/* out[q][c] = the sum of from[block][q][c + copy * count[q]] over blocks and copies, in a fixed order. */
#define TFU_FOLD_MOST 4 /* quantities of one fold */
typedef struct tfu_fold_args {
  void *out[TFU_FOLD_MOST];
  int64_t count[TFU_FOLD_MOST]; /* zero: not wanted */
  const void *from;
  int64_t blocks, width;
  int quantities;
  int channels; /* that one block of threads sums, at most */
} tfu_fold_args;

#ifndef TFU_DEVICE
#include "kernels/core/gpu/cuda.h"

#pragma GCC visibility push(default)
/* Plans a walk over the tensors of the call that have in[0]'s number of elements; cols are the channels, 1 if nothing
 * is per channel. blocks_per_processor says how finely the joined rows are dealt out. */
TFU_MUST_USE tfu_code tfu_walk_plan(tfu_call *call, int64_t cols, int blocks_per_processor, tfu_walk *walk,
                                    tfu_grid *grid);
/* The same over the tensors with n elements. */
TFU_MUST_USE tfu_code tfu_walk_plan_of(tfu_call *call, int64_t n, tfu_dtype dtype, int64_t cols,
                                       int blocks_per_processor, tfu_walk *walk, tfu_grid *grid);

/* Sums partial[blocks][quantities][width], of tfu_real(dtype), into out[0] …, at most TFU_FOLD_MOST of one dtype; an
 * empty out is not wanted. */
TFU_MUST_USE tfu_code tfu_fold_gpu(tfu_call *call, const void *partial, int64_t blocks, int64_t width, int quantities,
                                   const tfu_tensor *out);
#pragma GCC visibility pop
#endif

#endif
