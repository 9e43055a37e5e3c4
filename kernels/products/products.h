/* products.h - a batch of matrix products that broadcasts, made of as few and as large products as it can be.
 *
 *   y = a . b, summed over the axes of the batch that y has not
 *
 * Axes that lie in memory like one are taken for one. Where b is the same for all of an axis and a's rows go on from
 * one matrix to the next, the axis is rows: [B, m, k] . [k, n] is one product of B * m rows. And where an axis is
 * summed over and the terms go on, it is terms: sums over B of a^T . b, [B, k, m] and [B, k, n], are one product of B *
 * k terms. */
#ifndef TFUSE_PRODUCTS_H_
#define TFUSE_PRODUCTS_H_

#include "tfuse.h"

/* What lies between two matrices along it, in elements: 0 where the matrix is the same; in y, where it is a sum. */
typedef struct tfu_batch_axis {
  int64_t size, a, b, y;
} tfu_batch_axis;

typedef struct tfu_products {
  int64_t m, n, k;
  int kept, axes; /* of the batch: those of y, in its order, then those that are summed over */
  tfu_batch_axis axis[TFU_MAX_RANK];
} tfu_products;

/* The shapes fit, as BatchedMatmul's rule has it. Turned matrices are stored the other way round. */
tfu_products tfu_products_of(const tfu_shape *a, int a_transposed, const tfu_shape *b, int b_transposed,
                             const tfu_shape *y);

/* How many matrices the axes `from` up to `to` have. */
int64_t tfu_batch_count(const tfu_products *p, int from, int to);
/* Where, along those axes, matrix `index` of them lies: size is 1, and a, b and y are where from the first one. */
tfu_batch_axis tfu_batch_at(const tfu_products *p, int from, int to, int64_t index);

#endif
