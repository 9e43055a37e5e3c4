#ifndef REAL
#include "kernels/core/cpu/product_cpu.h"

/* Bytes of a vector register. */
#ifdef __x86_64__
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
enum { VECTORS = TFU_PRODUCT_BYTES / VECTOR, ROWS = TFU_PRODUCT_ROWS };

#define UNROLL _Pragma("GCC unroll 8")

#ifdef __x86_64__
/* Registers of 64 bytes, of which one is a row of a block: twice as many rows keep the multiply-adds busy, and two
 * blocks side by side use each factor twice, which is a third faster. Each element is summed in the same order, so
 * results have the same bits. */
enum { TALL_ROWS = 2 * ROWS, TALL_BLOCKS = 2 };
#endif

#define TFU_SELF "kernels/core/cpu/product_cpu.c"
#include "kernels/core/cpu/stamp.h"

#else

typedef REAL FN(vector) __attribute__((vector_size(VECTOR)));
typedef REAL FN(stored) __attribute__((vector_size(VECTOR), aligned(sizeof(REAL)), may_alias)); /* anywhere in memory */

/* The matrix from element (i, j) on. */
static inline FN(tfu_matrix) FN(from)(FN(tfu_matrix) m, int i, int j) {
  return (FN(tfu_matrix)){m.at + i * m.row + j * m.column, m.row, m.column};
}

/* Adds up k terms of one register block. */
static inline void FN(add_block)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int k, int add, int blocks) {
  (void)blocks;
  FN(vector) sum[ROWS][VECTORS] = {0};
  for (int i = 0; i < k; i++, a.at += a.column, b.at += b.row) {
    FN(vector) line[VECTORS];
    UNROLL
    for (int v = 0; v < VECTORS; v++) line[v] = ((const FN(stored) *)b.at)[v];
    UNROLL
    for (int r = 0; r < ROWS; r++) {
      const REAL factor = a.at[r * a.row];
      UNROLL
      for (int v = 0; v < VECTORS; v++) sum[r][v] += factor * line[v];
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    FN(stored) *to = (FN(stored) *)(c.at + r * c.row);
    UNROLL
    for (int v = 0; v < VECTORS; v++) {
      if (add) sum[r][v] += to[v];
      to[v] = sum[r][v];
    }
  }
}

#ifdef __x86_64__
typedef REAL FN(tall) __attribute__((vector_size(TFU_PRODUCT_BYTES), aligned(sizeof(REAL)), may_alias));

/* The same of two register blocks, one above the other; or of two such pairs side by side. */
TFU_WIDE_TARGET static inline __attribute__((always_inline)) void FN(add_tall)(FN(tfu_matrix) c, FN(tfu_matrix) a,
                                                                               FN(tfu_matrix) b, int k, int add,
                                                                               const int blocks) {
  FN(tall) sum[TALL_ROWS][TALL_BLOCKS] = {0};
  for (int i = 0; i < k; i++, a.at += a.column, b.at += b.row) {
    FN(tall) line[TALL_BLOCKS];
    UNROLL
    for (int v = 0; v < blocks; v++) line[v] = ((const FN(tall) *)b.at)[v];
    UNROLL
    for (int r = 0; r < TALL_ROWS; r++) {
      const REAL factor = a.at[r * a.row];
      UNROLL
      for (int v = 0; v < blocks; v++) sum[r][v] += factor * line[v];
    }
  }
  UNROLL
  for (int r = 0; r < TALL_ROWS; r++) {
    FN(tall) *to = (FN(tall) *)(c.at + r * c.row);
    UNROLL
    for (int v = 0; v < blocks; v++) {
      if (add) sum[r][v] += to[v];
      to[v] = sum[r][v];
    }
  }
}
#endif

/* Blocks `rows` high, one below the other, as long as they begin before row `end`; returns where the next one would. */
#define COLUMN_OF_BLOCKS(name, add_block, rows, blocks)                                                       \
  static int FN(name)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int i, int end, int k, int add) { \
    for (; i < end; i += rows) {                                                                              \
      int at = 0;                                                                                             \
      do {                                                                                                    \
        const int terms = k - at < TFU_PRODUCT_TERMS ? k - at : TFU_PRODUCT_TERMS;                            \
        FN(add_block)(FN(from)(c, i, 0), FN(from)(a, i, at), FN(from)(b, at, 0), terms, add || at, blocks);   \
      } while ((at += TFU_PRODUCT_TERMS) < k);                                                                \
    }                                                                                                         \
    return i;                                                                                                 \
  }
COLUMN_OF_BLOCKS(low_column, add_block, ROWS, 1)
#ifdef __x86_64__
TFU_WIDE_TARGET COLUMN_OF_BLOCKS(tall_column, add_tall, TALL_ROWS, 1) TFU_WIDE_TARGET
    COLUMN_OF_BLOCKS(tall_columns, add_tall, TALL_ROWS, TALL_BLOCKS)
#endif
#undef COLUMN_OF_BLOCKS

    /* Column after column: what of b a column takes then stays in the first-level cache for all of its blocks. */
    void FN(tfu_product)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int m, int n, int k, int add) {
  enum { COLS = TFU_PRODUCT_COLS(REAL) };
  int j = 0, done = 0; /* columns; rows of these that tall blocks have computed */
#ifdef __x86_64__
  const int most = tfu_has_wide_registers() ? m - ROWS : 0;
  for (; most > 0 && j < n; j += COLS) {
    const int two = n - j > COLS;
    const FN(tfu_matrix) cj = FN(from)(c, 0, j), bj = FN(from)(b, 0, j);
    done = (two ? FN(tall_columns) : FN(tall_column))(cj, a, bj, 0, most, k, add);
    j += two * COLS;
  }
#endif
  for (j = 0; done < m && j < n; j += COLS) FN(low_column)(FN(from)(c, 0, j), a, FN(from)(b, 0, j), done, m, k, add);
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
