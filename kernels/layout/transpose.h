/* transpose.h - a transposition in as few axes as say it, and what the launch hands the device.
 *
 * Axes of one element are dropped, and axes that are neighbours in x and in y are joined to one. Where then the last
 * axis of both is the same, y is made of x's rows in another order; else tiles of two axes, the last of x and the last
 * of y, are transposed. */
#ifndef TFUSE_TRANSPOSE_H_
#define TFUSE_TRANSPOSE_H_

#include "kernels/core/divisor.h"

#define TFU_TRANSPOSE_AXES 8
#define TFU_TRANSPOSE_THREADS 256
#define TFU_ROW_ROUNDS 8 /* units of rows that a thread moves, of 16 bytes half as many */
#define TFU_RUN_ROUNDS 2 /* packs that a thread puts together of small units           */

/* y's axes, the outermost first, in units of so many bytes: sizes, and how far apart neighbours are in x and y. */
typedef struct tfu_permutation {
  int axes;
  int64_t size[TFU_TRANSPOSE_AXES], from[TFU_TRANSPOSE_AXES], to[TFU_TRANSPOSE_AXES];
} tfu_permutation;

/* Unit i of y comes from x[the sum of i's coordinate along each axis times from]. */
typedef struct transpose_rows_args {
  void *y;
  const void *x;
  uint32_t units;
  int bytes; /* of a unit */
  int axes;
  tfu_divisor size[TFU_TRANSPOSE_AXES]; /* the innermost axis first */
  int64_t from[TFU_TRANSPOSE_AXES];
} transpose_rows_args;

/* Axis a is the last of x, b the last of y; the others are batches of such matrices. */
typedef struct transpose_tiles_args {
  void *y;
  const void *x;
  int bytes;                        /* of an element                                                       */
  uint32_t a, b;                    /* sizes                                                               */
  int64_t b_from, a_to;             /* from a place on b to the next in x; from one on a to the next in y  */
  uint32_t tile_a, tile_b;          /* what a tile has of each axis                                        */
  int shift_a, shift_b;             /* threads stand side by side along a in 1 << shift_a, then along b    */
  int pitch;                        /* elements from a place on b to the next in shared memory             */
  int dense;                        /* so it is in x, and a tile has all of a                              */
  int border;                       /* elements of y between places where a tile may end, in sectors.cuh   */
  uint32_t tiles_a, tiles_b, swath; /* so many tiles along b are taken before the next along a             */
  tfu_divisor tiles, strip;         /* tiles of a matrix; of a swath                                       */
  int axes;                         /* of the batch, the innermost first                                   */
  tfu_divisor size[TFU_TRANSPOSE_AXES];
  int64_t from[TFU_TRANSPOSE_AXES], to[TFU_TRANSPOSE_AXES];
} transpose_tiles_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* The transposition of a call, with at least one axis. */
tfu_permutation tfu_permutation_of(const tfu_call *call);
/* Elements of so many bytes from x to y, on the GPU. */
TFU_MUST_USE tfu_code tfu_permute_gpu(tfu_call *call, tfu_permutation permutation, const void *x, void *y,
                                      int64_t size);
#endif

#endif
