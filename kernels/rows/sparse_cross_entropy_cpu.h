/* sparse_cross_entropy_cpu.h - losses of rows of logits against integer labels, for ops that have such rows. */
#ifndef REAL
#ifndef TFUSE_SPARSE_CROSS_ENTROPY_CPU_H_
#define TFUSE_SPARSE_CROSS_ENTROPY_CPU_H_

#include "kernels/core/cpu/rows_cpu.h"

typedef struct tfu_sparse_rows {
  tfu_rows_cpu plan;
  tfu_tensor x, labels;
  void *loss,
      *stats;        /* of each row, in the arithmetic type; the gradient reads stats: (maximum, sum of exponentials) */
  const void *dloss; /* of each row; of the gradient alone, as */
  tfu_tensor dx;     /* which may be x                         */
  double smoothing, z_loss;
  int64_t ignored; /* INT64_MIN: none */
} tfu_sparse_rows;

/* Fails unless every label is a class or ignored. */
TFU_MUST_USE tfu_code tfu_check_labels(const tfu_tensor *labels, int64_t classes, int64_t ignored, tfu_error *err);

#define TFU_SELF "kernels/rows/sparse_cross_entropy_cpu.h"
#include "kernels/core/cpu/stamp.h"
#undef TFU_SELF

#endif
#else
void FN(tfu_sparse_forward)(const tfu_sparse_rows *rows);
void FN(tfu_sparse_backward)(const tfu_sparse_rows *rows);
#endif
