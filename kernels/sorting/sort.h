/* sort.h - what the launches hand the device, to move numbers along with their indices; and what is shared by them. */
#ifndef TFUSE_SORT_H_
#define TFUSE_SORT_H_

#include <stdint.h>

#define TFU_MOVE_EACH 8 /* numbers of a thread */

typedef struct move_args {
  const void *from;
  void *to;
  const int32_t *indices; /* [rows, k]                                                                */
  int64_t n, k, cols;     /* n = rows * k; of places that are none, nothing is moved                  */
  int64_t stride;         /* of indices: row r has those from r * stride on                            */
  int32_t *copied;        /* indices again, where they lie one row after the other; NULL: not wanted  */
  int put;                /* to the indices, and not from them                                         */
  int size;               /* bytes of a number                                                        */
  int apart;              /* bytes from a number of `from` to the next                                */
} move_args;

#ifndef TFU_DEVICE
#include "kernels/core/gpu/cuda.h"

/* to[r, j] = from[r, indices[r, j]], where rows of `from` have cols numbers and those of indices `stride`, of which the
 * first k count; or, to put them, to[r, indices[r, j]] = from[r, j]. */
TFU_MUST_USE tfu_code tfu_move_gpu(tfu_call *call, tfu_dtype dtype, move_args a);
#endif
#endif
