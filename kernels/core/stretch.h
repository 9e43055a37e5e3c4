/* stretch.h - a tensor that broadcasts to another: where its values for a row of the other begin. Host and device. */
#ifndef TFUSE_STRETCH_H_
#define TFUSE_STRETCH_H_

#include <stdint.h>

#define TFU_STRETCH_AXES 8

typedef struct tfu_stretch {
  int axes;                         /* that a row's number is made of, the last first; axes that move alike are one */
  int64_t size[TFU_STRETCH_AXES];   /* of the larger tensor                              */
  int64_t stride[TFU_STRETCH_AXES]; /* elements of the smaller, 0 where it is stretched  */
  int64_t column;                   /* the same for the last axis: 0 or 1                */
} tfu_stretch;

#ifdef TFU_DEVICE
__device__
#endif
    static inline int64_t
    tfu_stretch_row(const tfu_stretch *s, int64_t row) {
  int64_t at = 0;
  for (int i = 0; i < s->axes; i++) {
    at += row % s->size[i] * s->stride[i];
    row /= s->size[i];
  }
  return at;
}

#ifndef TFU_DEVICE
#include "tfuse.h"
/* small broadcasts to large; an empty or one-axis small tensor is fine. */
tfu_stretch tfu_stretch_of(const tfu_shape *small, const tfu_shape *large);
#endif
#endif
