/* route.h - the order in which a router takes experts, for CPU and GPU alike, and what the launch hands the device. */
#ifndef TFUSE_KERNELS_ROUTE_H_
#define TFUSE_KERNELS_ROUTE_H_

#include <stdint.h>

enum { ROUTE_THREADS = 128 }; /* a warp has a row */

typedef struct route_args {
  const void *logits;
  void *weights;
  int64_t *numbers;
  int64_t rows, experts;
  int top_k, normalized;
} route_args;

/* Whether an expert of probability p and number i comes before another: NaN, then the larger, of equal ones the first.
 */
#define ROUTE_RANK(p) ((p) != (p) ? 2 : (p))
#define ROUTE_IS_BEFORE(p, i, q, j) (ROUTE_RANK(p) > ROUTE_RANK(q) || (ROUTE_RANK(p) == ROUTE_RANK(q) && (i) < (j)))

#endif
