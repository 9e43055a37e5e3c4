/* unique.h - what the launches hand the device. */
#ifndef TFUSE_UNIQUE_H_
#define TFUSE_UNIQUE_H_

#include "kernels/sorting/keys.h"

#define TFU_UNIQUE_EACH 4 /* keys or words that a thread has; a tile is what a block has */

typedef struct unique_args {
  const void *x, *keys; /* numbers; their keys in order, with room for whole packs                 */
  const uint32_t *indices;
  uint32_t *marks;        /* a bit for each index in x: set where a value comes first              */
  uint32_t *marks_before; /* of each word of marks: how many are set in those before               */
  uint32_t *before;       /* of each tile of keys: how many values begin in it, then in those before */
  uint32_t *words_before; /* of each tile of words: how many marks it has, then those before       */
  uint32_t *heads;        /* by distinct value, in their order: where it begins among the keys     */
  uint32_t *ranks;        /* and which it is in the order of x                                     */
  void *y;
  int32_t *idx, *count;
  const int32_t *number;
  int64_t n, words;
  int is_float;
  int size; /* bytes of a number */
} unique_args;

#endif
