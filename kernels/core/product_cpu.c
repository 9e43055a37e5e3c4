#ifndef REAL
#include "kernels/core/product_cpu.h"

/* Bytes of a vector register. */
#ifdef __x86_64__
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
enum { VECTORS = TFU_PRODUCT_BYTES / VECTOR, ROWS = TFU_PRODUCT_ROWS, CHUNK = 32 };

#define UNROLL _Pragma("GCC unroll 8")

#define TFU_SELF "kernels/core/product_cpu.c"
#include "kernels/core/stamp.h"

#else

typedef REAL FN(vector) __attribute__((vector_size(VECTOR)));
typedef REAL FN(stored) __attribute__((vector_size(VECTOR), aligned(sizeof(REAL)), may_alias)); /* anywhere in memory */

/* One register block. */
static inline void FN(block)(REAL *c, int64_t c_row, const REAL *a, int64_t a_row, int64_t a_column, const REAL *b,
                             int64_t b_row, int k, int add) {
  FN(vector) sum[ROWS][VECTORS] = {0};
  for (int i = 0; i < k; i++, a += a_column, b += b_row) {
    FN(vector) from[VECTORS];
    UNROLL
    for (int v = 0; v < VECTORS; v++) from[v] = ((const FN(stored) *)b)[v];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      const REAL factor = a[r * a_row];
      UNROLL
      for (int v = 0; v < VECTORS; v++) sum[r][v] += factor * from[v];
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
      FN(stored) *to = (FN(stored) *)(c + r * c_row) + v;
      *to = (FN(vector))(add ? (FN(vector)) * to + sum[r][v] : sum[r][v]);
    }
  }
}

/* Terms are summed CHUNK at a time, and the sums of those then: with 128 terms that halves the error, and costs 3%. */
void FN(tfu_product)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int m, int n, int k, int add) {
  for (int i = 0; i < m; i += ROWS)
    for (int j = 0; j < n; j += TFU_PRODUCT_COLS(REAL)) {
      int at = 0;
      do {
        FN(block)
        (c.at + i * c.row + j, c.row, a.at + i * a.row + at * a.column, a.row, a.column, b.at + at * b.row + j, b.row,
         k - at < CHUNK ? k - at : CHUNK, add || at);
      } while ((at += CHUNK) < k);
    }
}

void FN(tfu_dots)(REAL *c, const REAL *a, const REAL *b, int64_t row, int n, int k) {
  enum { LANES = TFU_PRODUCT_BYTES / sizeof(REAL) };
  const int whole = k - k % LANES;
  for (int i = 0; i < n; i++, b += row) {
    REAL lane[LANES] = {0}, sum = 0;
    for (int at = 0; at < whole; at += LANES)
      for (int l = 0; l < LANES; l++) lane[l] += a[at + l] * b[at + l];
    for (int at = whole; at < k; at++) sum += a[at] * b[at];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    c[i] = sum;
  }
}

/* Squares of a few elements at once, or every element written would be a line of the cache of its own. */
void FN(tfu_transpose)(REAL *to, int64_t to_row, const REAL *from, int64_t from_row, int m, int n) {
  enum { SIDE = 4 };
  int i = 0;
  for (; i + SIDE <= m; i += SIDE, from += SIDE * from_row) {
    int j = 0;
    for (; j + SIDE <= n; j += SIDE) {
      REAL square[SIDE][SIDE];
      UNROLL
      for (int r = 0; r < SIDE; r++) {
        UNROLL
        for (int s = 0; s < SIDE; s++) square[s][r] = from[r * from_row + j + s];
      }
      UNROLL
      for (int s = 0; s < SIDE; s++) {
        UNROLL
        for (int r = 0; r < SIDE; r++) to[(j + s) * to_row + i + r] = square[s][r];
      }
    }
    for (; j < n; j++)
      for (int r = 0; r < SIDE; r++) to[j * to_row + i + r] = from[r * from_row + j];
  }
  for (; i < m; i++, from += from_row)
    for (int j = 0; j < n; j++) to[j * to_row + i] = from[j];
}
#endif
