/* product_cpu.h - products of small matrices that lie in the cache, in float and in double. */
#ifndef REAL
#ifndef TFUSE_PRODUCT_CPU_H_
#define TFUSE_PRODUCT_CPU_H_

#include "kernels/core/cpu/cpu.h"

/* The register block: rows, and bytes of a row. 4 x 64 bytes are 16 accumulators of 16 bytes (of 32 registers) or 8 of
 * 32 bytes (of 16): as many as four, or two, multiply-adds per cycle of four cycles each keep busy. */
enum { TFU_PRODUCT_ROWS = 4, TFU_PRODUCT_BYTES = 64 };
/* Terms are summed so many at a time, and then those sums: with 128 terms that halves the error, and costs 3%. */
enum { TFU_PRODUCT_TERMS = 32 };
#define TFU_PRODUCT_COLS(real) (TFU_PRODUCT_BYTES / (int)sizeof(real))
/* n elements in whole register blocks. */
#define TFU_PRODUCT_ROUND(n, block) (((n) + (block)-1) / (block) * (block))

#define TFU_SELF "kernels/core/cpu/product_cpu.h"
#include "kernels/core/cpu/stamp.h"
#undef TFU_SELF

#endif
#else

/* A matrix: element (i, k) is at i * row + k * column. */
typedef struct FN(tfu_matrix) {
  REAL *at;
  int64_t row, column;
} FN(tfu_matrix);
/* Rows of elements side by side, `row` apart; and the same transposed, so that they are columns. */
static inline FN(tfu_matrix) FN(tfu_rows_at)(REAL *at, int64_t row) { return (FN(tfu_matrix)){at, row, 1}; }
static inline FN(tfu_matrix) FN(tfu_columns_at)(REAL *at, int64_t row) { return (FN(tfu_matrix)){at, 1, row}; }

/* c = a b, plus what c was where `add` is set. a is [m, k] with any steps; b is [k, n] and c is [m, n], their columns
 * side by side. Whole register blocks are computed: a and c have room for m, b and c for n rounded up to those, and
 * what lies there goes nowhere else. */
void FN(tfu_product)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int m, int n, int k, int add);

/* c[i] = a . row i of b, for i from 0 up to n; k elements each. */
void FN(tfu_dots)(REAL *c, const REAL *a, const REAL *b, int64_t row, int n, int k);

/* to[j, i] = from[i, j] for i < m and j < n; rows are to_row and from_row apart. */
void FN(tfu_transpose)(REAL *to, int64_t to_row, const REAL *from, int64_t from_row, int m, int n);
#endif
