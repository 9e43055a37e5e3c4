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
#define TFU_STRETCH __device__ static inline
#define TFU_STRETCH_ONCE _Pragma("unroll 1") /* divisions are long */
#else
#define TFU_STRETCH static inline
#define TFU_STRETCH_ONCE
#endif

TFU_STRETCH int64_t tfu_stretch_row(const tfu_stretch *s, int64_t row) {
  int64_t at = 0;
  TFU_STRETCH_ONCE
  for (int i = 0; i < s->axes; i++) {
    const int64_t whole = row / s->size[i];
    at += (row - whole * s->size[i]) * s->stride[i];
    row = whole;
  }
  return at;
}

#ifndef TFU_DEVICE
#include "tfuse.h"
/* small broadcasts to large; an empty or one-axis small tensor is fine. */
#pragma GCC visibility push(default)
tfu_stretch tfu_stretch_of(const tfu_shape *small, const tfu_shape *large);
#pragma GCC visibility pop
#endif
#endif
