/* concat.h - tensors side by side along an axis, and what the launch hands the device.
 *
 * All axes before that one are rows. Of a row, part i has width(i) bytes: its size along the axis times all axes after
 * it. So the whole has rows as long as those of all parts together, and to join parts or to split a whole is to copy
 * rows, whatever their bytes mean. */
#ifndef TFUSE_CONCAT_H_
#define TFUSE_CONCAT_H_

#include "kernels/core/divisor.h"

#define CONCAT_THREADS 256
#define CONCAT_ROUNDS 8 /* units that a thread moves, of 16 bytes half as many */
#define CONCAT_PARTS 16 /* of a launch                                         */

/* Unit i of the launch is unit i % span of row i / span: of the whole, and of that part which has it. */
typedef struct concat_args {
  void *whole;
  int64_t pitch;                /* units from a row of the whole to the next        */
  uint32_t units;               /* of all rows                                      */
  int bytes;                    /* of a unit                                        */
  int split;                    /* from the whole to its parts; else the other way  */
  int parts;                    /* that have units here                             */
  tfu_divisor span;             /* units of a row in this launch                    */
  uint32_t first[CONCAT_PARTS]; /* of them, the first of each part                  */
  int64_t width[CONCAT_PARTS];  /* units from a row of the part to the next         */
  void *part[CONCAT_PARTS];     /* where its first unit of the first row is         */
} concat_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

typedef struct tfu_sides {
  const tfu_tensor *parts;
  char *whole;
  int n, split;
  int64_t rows, pitch; /* pitch: bytes of a row of the whole */
  int64_t size;        /* bytes of an element                */
} tfu_sides;

/* Of a call of concat, or of concat_split. */
tfu_sides tfu_sides_of(const tfu_call *call, int split);
/* Bytes of a row of part i. */
int64_t tfu_side_width(const tfu_sides *s, int i);
#endif

#endif
