/* tensors_norm.h - arguments of the kernels of tensors_norm.cu. */
#ifndef TFUSE_TENSORS_NORM_H_
#define TFUSE_TENSORS_NORM_H_

#include "kernels/lists/tensors.h"

typedef struct norm_args {
  tensors_table table;
  double *chunks; /* by chunk: the sum of squares, and how many threads met a value that is not finite */
  double *sums;   /* the same by tensor */
  void *norms, *norm;
  unsigned char *finite;
  int n; /* tensors in all */
} norm_args;

typedef struct clip_args {
  tensors_table table; /* x, y */
  const void *norm, *clip;
} clip_args;

#endif
