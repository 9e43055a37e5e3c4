/* rows.h - rows that are moved by their numbers, whatever their bytes mean: what the launch hands the device. */
#ifndef TFUSE_KERNELS_ROWS_H_
#define TFUSE_KERNELS_ROWS_H_

#include "kernels/core/divisor.h"

enum { MOVE_ROWS_PAIRS = 2, MOVE_ROWS_THREADS = 256 };

/* Row r of `few` belongs to row number[r] of `many`, of which there are `rows`. */
typedef struct move_rows_args {
  const int64_t *number;
  int64_t rows;
  int64_t units;    /* of all rows of few                                                  */
  tfu_divisor span; /* units of a row                                                      */
  int bytes;        /* of a unit                                                           */
  int put;          /* from few to many; else the other way, zeros for rows there are not  */
  struct {
    void *few, *many;
  } pair[MOVE_ROWS_PAIRS]; /* blockIdx.y counts them */
} move_rows_args;

#endif
