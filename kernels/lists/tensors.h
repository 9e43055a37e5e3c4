/* tensors.h - a list of tensors as the GPU walks it in few launches (multi-tensor apply). Read by host and device.
 *
 * A table goes to the kernel by value: addresses and sizes of as many tensors as 4 KiB of arguments hold, so nothing
 * has to be copied to the GPU first or kept alive. Each tensor is cut into chunks, one for a block of threads. Slots
 * are here an optimizer's variables of a weight; other words are explained in docs/design.md#words. */
#ifndef TFUSE_TENSORS_H_
#define TFUSE_TENSORS_H_

#include <stdint.h>

#define TENSORS_MOST 44    /* of one table                          */
#define TENSORS_ROLES 9    /* lists that are walked together        */
#define TENSORS_CHUNK 8192 /* elements; a multiple of what a block takes at a time */

typedef struct tensors_table {
  int64_t count[TENSORS_MOST];           /* elements                                               */
  void *at[TENSORS_MOST][TENSORS_ROLES]; /* one address per list                                   */
  int first[TENSORS_MOST + 1];           /* number of a tensor's first chunk; the last is how many */
  int tensors, base;                     /* how many, and the number of the first in the whole list */
  int64_t chunks_before;                 /* in earlier tables                                      */
} tensors_table;

#ifndef TFU_DEVICE
#include "tfuse.h"
/* Fills the table with tensors from number `from` on, of lists that are alike in sizes; returns the number of the first
 * that found no room. */
int tensors_fill(tensors_table *table, const tfu_tensor *const *lists, int roles, int n, int from);
/* Chunks of all tensors of a list. */
int64_t tensors_chunks(const tfu_tensor *list, int n);
#endif
#endif
