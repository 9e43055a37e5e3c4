/* jit_args.h - the argument of elementwise and rows kernels that are compiled at run time. Host and device: the text of
 * this file lies in the library. */
#ifndef TFUSE_JIT_ARGS_H_
#define TFUSE_JIT_ARGS_H_

#include <stdint.h>

#define JIT_MOST_IN 16
#define JIT_MOST_OUT 8
#define JIT_MOST_AXES 8

/* The elements of a result, or its rows, are counted along some axes, the last first; axes along which all inputs move
 * alike are one. */
typedef struct jit_args {
  int64_t n, cols; /* elements, and 1; or rows, and elements of a row */
  int64_t size[JIT_MOST_AXES];
  int64_t stride[JIT_MOST_IN][JIT_MOST_AXES]; /* elements of the input, 0 where it is stretched */
  const void *in[JIT_MOST_IN];
  void *out[JIT_MOST_OUT];
} jit_args;

#ifndef TFU_DEVICE
#include "tfuse.h"

/* What the host alone needs to know. */
typedef struct jit_plan {
  int axes;
  unsigned moves;  /* a bit for each input that has a value for each column; of elementwise: along the last axis */
  unsigned single; /* a bit for each input that is one number for all */
} jit_plan;

/* Fills all of the arguments: elements of `shape`, or where `rows`, its rows. */
jit_plan jit_plan_of(const tfu_lists *lists, const tfu_shape *shape, int rows, jit_args *args);
#endif
#endif
