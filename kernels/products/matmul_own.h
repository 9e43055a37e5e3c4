/* matmul_own.h - products of matrices by our own kernels: a ladder of three, each faster than the one before.
 *
 *   d = alpha a b + c + bias     a is [m, k], b is [k, n], c and d are [m, n] row-major, bias is [n]
 *
 * naive   a thread per result, which reads a row of a and a column of b from memory
 * tiled   tiles of a and b in shared memory, 8 x 8 results per thread
 * tensor  tiles in shared memory, products on tensor cores; float16 and bfloat16, compute capability 8.0 on
 *
 * Any sizes, any alignment. Sums are in float, in double for float64, in a fixed order. */
#ifndef TFUSE_KERNELS_MATMUL_OWN_H_
#define TFUSE_KERNELS_MATMUL_OWN_H_

#include <stdint.h>

/* A factor: element (i, j) of matrix z is at z * batch + i * row + j * col, and row or col is 1. */
typedef struct matmul_factor {
  const void *data;
  int64_t row, col, batch;
} matmul_factor;

typedef struct matmul_args {
  matmul_factor a, b;
  const void *c, *bias; /* NULL: none; c lies as d does and may be d; bias is of the factors' dtype */
  void *d;
  int64_t m, n, k, batch; /* batch: how many products */
  int64_t d_batch;        /* elements from one d to the next */
  double alpha;
  int wide;             /* c and d are of the type that sums are in, not of the factors' */
  int slices;           /* parts of k that are summed apart … */
  int64_t slice, parts; /* … each of this many terms, to a d this many elements after the one before */
} matmul_args;

#ifndef TFU_DEVICE
#include "ops/products/matmul_own.h"
#include "tfuse.h"

/* Queues it on the call's stream; .slices, .slice and .parts are its own to set. Where tensor cores cannot serve, tiled
 * does. dtype is that of the factors. */
TFU_MUST_USE tfu_code tfu_matmul_own_run(tfu_call *call, tfu_own_kind kind, tfu_dtype dtype, matmul_args a);
#endif

#endif
