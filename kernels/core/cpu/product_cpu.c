#ifndef REAL
#include "kernels/core/cpu/product_cpu.h"

/* Bytes of a vector register. */
#ifdef __x86_64__
enum { VECTOR = 32 };
#else
enum { VECTOR = 16 };
#endif
enum { VECTORS = TFU_PRODUCT_BYTES / VECTOR, ROWS = TFU_PRODUCT_ROWS, CHUNK = 32 };

#define UNROLL _Pragma("GCC unroll 8")

#ifdef __x86_64__
/* Registers of 64 bytes, of which one is a row of a block: twice as many rows keep the multiply-adds busy. Each element
 * is summed in the same order, so results have the same bits. */
#define TALL __attribute__((target("avx512f,avx2,fma")))
enum { TALL_ROWS = 2 * ROWS };
#endif

/* Weak, for a test may say no where there are such registers. */
__attribute__((weak)) int tfu_has_tall_products(void) {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512f");
#else
  return 0;
#endif
}

#define TFU_SELF "kernels/core/cpu/product_cpu.c"
#include "kernels/core/cpu/stamp.h"

#else

typedef REAL FN(vector) __attribute__((vector_size(VECTOR)));
typedef REAL FN(stored) __attribute__((vector_size(VECTOR), aligned(sizeof(REAL)), may_alias)); /* anywhere in memory */

/* The matrix from element (i, j) on. */
static inline FN(tfu_matrix) FN(from)(FN(tfu_matrix) m, int i, int j) {
  return (FN(tfu_matrix)){m.at + i * m.row + j * m.column, m.row, m.column};
}

/* One register block. */
static inline void FN(block)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int k, int add) {
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

/* Two register blocks, one above the other. */
TALL static inline void FN(tall_block)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int k, int add) {
  FN(tall) sum[TALL_ROWS] = {0};
  for (int i = 0; i < k; i++, a.at += a.column, b.at += b.row) {
    const FN(tall) line = *(const FN(tall) *)b.at;
    UNROLL
    for (int r = 0; r < TALL_ROWS; r++) sum[r] += a.at[r * a.row] * line;
  }
  UNROLL
  for (int r = 0; r < TALL_ROWS; r++) {
    FN(tall) *to = (FN(tall) *)(c.at + r * c.row);
    if (add) sum[r] += *to;
    *to = sum[r];
  }
}
#endif

/* Rows of c as high as a block. Terms are summed CHUNK at a time, and then those sums: with 128 terms that halves the
 * error, and costs 3%. */
#define ROW_OF_BLOCKS(name, block)                                                                    \
  static void FN(name)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int n, int k, int add) { \
    for (int j = 0; j < n; j += TFU_PRODUCT_COLS(REAL)) {                                             \
      int at = 0;                                                                                     \
      do {                                                                                            \
        const int terms = k - at < CHUNK ? k - at : CHUNK;                                            \
        FN(block)(FN(from)(c, 0, j), FN(from)(a, 0, at), FN(from)(b, at, j), terms, add || at);       \
      } while ((at += CHUNK) < k);                                                                    \
    }                                                                                                 \
  }
ROW_OF_BLOCKS(low_row, block)
#ifdef __x86_64__
TALL ROW_OF_BLOCKS(tall_row, tall_block)
#endif
#undef ROW_OF_BLOCKS

void FN(tfu_product)(FN(tfu_matrix) c, FN(tfu_matrix) a, FN(tfu_matrix) b, int m, int n, int k, int add) {
  int i = 0;
#ifdef __x86_64__
  const int most = tfu_has_tall_products() ? m - ROWS : 0;
  for (; i < most; i += TALL_ROWS) FN(tall_row)(FN(from)(c, i, 0), FN(from)(a, i, 0), b, n, k, add);
#endif
  for (; i < m; i += ROWS) FN(low_row)(FN(from)(c, i, 0), FN(from)(a, i, 0), b, n, k, add);
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
