/* unique.h - what the launches hand the device. */
#ifndef TFUSE_UNIQUE_H_
#define TFUSE_UNIQUE_H_

#include "kernels/sorting/keys.h"

#define TFU_UNIQUE_EACH 4 /* that a thread has; a tile is what a block has */

typedef struct unique_args {
  const void *x, *keys; /* numbers; their keys in order                                                       */
  const uint32_t *places;
  uint32_t *marks;  /* by place in x: 1 where a value comes first; then how many of these come before     */
  uint32_t *of;     /* by place in order: which of the distinct values, in their order, it is             */
  uint32_t *heads;  /* by distinct value, in their order: where it begins among the keys                  */
  uint32_t *before; /* of each tile: how many begin in it, then in those before                           */
  void *y;
  int32_t *idx, *count;
  const int32_t *number;
  uint64_t nan; /* the key of NaN, where each is a value of its own */
  int64_t n;
  int is_float;
  int by_keys; /* what is numbered: `of`, and not marks */
  int size;    /* bytes of a number */
} unique_args;

#endif
