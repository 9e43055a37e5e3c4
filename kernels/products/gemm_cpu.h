/* gemm_cpu.h - products of matrices of any size and dtype on the CPU, blocked for the caches, threaded over blocks of
 * the result. Bits do not depend on the number of threads. */
#ifndef REAL
#ifndef TFUSE_GEMM_CPU_H_
#define TFUSE_GEMM_CPU_H_

#include "kernels/core/cpu/cpu.h"
#include "kernels/products/products.h"

/* The most columns of a result that are finished at once. */
enum { TFU_GEMM_COLS = 128 };

/* A matrix in memory: element (i, j) is at i * row + j, or at j * row + i where it is transposed. Or one whose lines
 * `read` makes of `data`: n elements of line i from `at` on, in the arithmetic type. */
typedef void tfu_line_reader(const void *data, int64_t i, int64_t at, int n, void *to);
typedef struct tfu_operand {
  const void *data;
  tfu_dtype dtype;
  int64_t row;
  int transposed;
  tfu_line_reader *read; /* NULL: they are in memory */
} tfu_operand;

/* Rows of a product up to which each line of the right factor is read once, in pieces of TFU_TILE at most. */
enum { TFU_GEMM_FEW_ROWS = 8 };

/* A tensor's last two axes, as they lie or transposed. */
static inline tfu_operand tfu_operand_of(const tfu_tensor *t, int transposed) {
  return (tfu_operand){.data = t->data, .dtype = t->dtype, .row = tfu_cols(&t->shape), .transposed = transposed};
}

#define TFU_SELF "kernels/products/gemm_cpu.h"
#include "kernels/core/cpu/stamp.h"
#undef TFU_SELF

#endif
#else

/* Takes n results of a row, from column col on; `line` is its own to change. */
typedef void FN(tfu_gemm_finish)(void *arg, int64_t row, int64_t col, int n, REAL *line);

/* Stores them to the tensor `arg`. */
FN(tfu_gemm_finish) FN(tfu_gemm_store);

/* Computes a b, a being [m, k] and b [k, n], and hands each piece of it to `finish` once. */
TFU_MUST_USE tfu_code FN(tfu_gemm)(tfu_call *call, tfu_operand a, tfu_operand b, int64_t m, int64_t n, int64_t k,
                                   FN(tfu_gemm_finish) * finish, void *arg);
/* The same for a batch: a and b are its first matrices, and `finish` is told the row batch * m + row. */
TFU_MUST_USE tfu_code FN(tfu_gemm_batch)(tfu_call *call, tfu_operand a, tfu_operand b, const tfu_products *p,
                                         FN(tfu_gemm_finish) * finish, void *arg);
#endif
