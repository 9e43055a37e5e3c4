/* GEMM by packed panels: a task computes a tile of the result, [ROWS, TFU_GEMM_COLS], DEPTH terms at a time: it copies
 * the two pieces that these need, widened, into memory of its own. Of b that copy is in strips as wide as two register
 * blocks: a strip of DEPTH rows, 16 KiB, stays in the first-level cache while all rows of a pass by.
 *
 * A few rows wait for b alone. There a task has the columns of FEW_COLS at a time, and reads each row of b where it
 * lies, once and in one piece. Sums are made in the same order: a row has the same bits whatever rows are beside it. */
#ifndef REAL
#include "kernels/products/gemm_cpu.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/product_cpu.h"
#include "kernels/core/cpu/workers.h"

/* A block's sums are begun anew every PIECES steps of DEPTH terms, and those sums added up: in one chain, a million
 * terms of float32 were off by four times what TensorFlow's own product is. */
enum { PIECES = 32 };

/* A task has half of ROWS where threads would not have two each otherwise. */
enum { ROWS = 256, DEPTH = 128, FEW_ROWS = TFU_GEMM_FEW_ROWS, FEW_COLS = TFU_TILE };
/* Lines that are walked down are apart by no power of two, or they would share a few sets of the cache: rows of the
 * result, and those of a where it is transposed (15% of a product of 128 x 256 x 256). */
enum { APART = TFU_GEMM_COLS + 16, DOWN = ROWS + 16 };
_Static_assert(FEW_ROWS *FEW_COLS <= ROWS * APART, "the sums of few rows have the room of a tile");
#define STRIP(real) (2 * TFU_PRODUCT_COLS(real))

typedef struct job {
  tfu_operand a, b;
  const tfu_products *products;
  int64_t sums;   /* products that a result is the sum of */
  int few;        /* whether there are few rows to read b for */
  int rows, cols; /* of a task */
  int64_t row_blocks, col_blocks;
  void *finish, *arg;
} job;

/* The same matrix, `by` elements on. */
static tfu_operand moved(tfu_operand x, int64_t by) {
  x.data = (const char *)x.data + (size_t)by * tfu_dtype_size(x.dtype);
  return x;
}

#define TFU_SELF "kernels/products/gemm_cpu.c"
#include "kernels/core/cpu/stamp.h"

#else

/* What a task has to itself. */
typedef struct FN(space) {
  REAL a[DOWN * DEPTH], b[DEPTH * TFU_GEMM_COLS], c[ROWS * APART], total[ROWS * APART], lines[STRIP(REAL) * DEPTH];
} FN(space);

/* n elements of a line, widened: where they lie, or at `buffer`. */
static const REAL *FN(line)(const tfu_operand *x, int64_t i, int64_t at, int n, REAL *buffer) {
  if (!x->read) return FN(tfu_load)(x->data, x->dtype, i * x->row + at, n, buffer);
  x->read(x->data, i, at, n, buffer);
  return buffer;
}

static void FN(copy)(REAL *to, const tfu_operand *x, int64_t line, int64_t at, int n) {
  const REAL *from = FN(line)(x, line, at, n, to);
  if (from != to) memcpy(to, from, (size_t)n * sizeof *to);
}

/* Rows i .. i + m and terms at .. at + k of a; where it is transposed, its lines run along the rows. Zeros round rows
 * up to a register block: numbers that happen to be there may be slow to multiply. */
static FN(tfu_matrix) FN(take_a)(const tfu_operand *a, FN(space) * s, int64_t i, int m, int64_t at, int k) {
  const int more = TFU_PRODUCT_ROUND(m, TFU_PRODUCT_ROWS) - m;
  if (a->transposed) {
    for (int t = 0; t < k; t++) {
      FN(copy)(s->a + t * DOWN, a, at + t, i, m);
      for (int r = m; r < m + more; r++) s->a[t * DOWN + r] = 0;
    }
    return FN(tfu_columns_at)(s->a, DOWN);
  }
  for (int r = 0; r < m; r++) FN(copy)(s->a + r * DEPTH, a, i + r, at, k);
  memset(s->a + m * DEPTH, 0, (size_t)(more * DEPTH) * sizeof *s->a);
  return FN(tfu_rows_at)(s->a, DEPTH);
}

/* Terms at .. at + k of columns col .. col + n of b, a strip, rounded up by zeros. */
static FN(tfu_matrix)
    FN(take_strip)(const tfu_operand *b, FN(space) * s, REAL *strip, int64_t at, int k, int64_t col, int n) {
  enum { COLS = STRIP(REAL) };
  if (n < COLS) memset(strip, 0, (size_t)(k * COLS) * sizeof *strip);
  if (b->transposed) {
    for (int c = 0; c < n; c++) FN(copy)(s->lines + c * DEPTH, b, col + c, at, k);
    FN(tfu_transpose)(strip, COLS, s->lines, DEPTH, n, k);
  } else {
    for (int t = 0; t < k; t++) FN(copy)(strip + t * COLS, b, at + t, col, n);
  }
  return FN(tfu_rows_at)(strip, COLS);
}

/* Adds terms at .. at + k of one product to the block, whose first element is (row, col); or begins with them. */
static void FN(add)(const tfu_operand *a, const tfu_operand *b, FN(space) * s, int64_t row, int m, int64_t col, int n,
                    int64_t at, int k, int begin) {
  enum { COLS = STRIP(REAL) };
  const FN(tfu_matrix) left = FN(take_a)(a, s, row, m, at, k);
  for (int i = 0; i < n; i += COLS) {
    const int width = least(COLS, n - i);
    const FN(tfu_matrix) right = FN(take_strip)(b, s, s->b + i * DEPTH, at, k, col + i, width);
    FN(tfu_product)(FN(tfu_rows_at)(s->c + i, APART), left, right, m, width, k, !begin);
  }
}

/* sums[i] += the terms of n columns, up to four of them one after the other. */
static void FN(add_lines)(REAL *sums, const REAL *const line[4], const REAL factor[4], int terms, int n) {
  const REAL *a = line[0], *b = line[1], *c = line[2], *d = line[3];
  if (terms == 4)
    TFU_VECTORISED(i, n) {
      REAL sum = sums[i];
      sum += factor[0] * a[i];
      sum += factor[1] * b[i];
      sum += factor[2] * c[i];
      sum += factor[3] * d[i];
      sums[i] = sum;
    }
  for (int t = 0; terms < 4 && t < terms; t++)
    TFU_VECTORISED(i, n) sums[i] += factor[t] * line[t][i];
}

/* The same as FN(add) for few rows; in c, rows are FEW_COLS apart. */
static void FN(add_few)(const tfu_operand *a, const tfu_operand *b, FN(space) * s, int m, int64_t col, int n,
                        int64_t at, int k, int begin) {
  const FN(tfu_matrix) left = FN(take_a)(a, s, 0, m, at, k);
  REAL *part = s->b;
  for (int chunk = 0; chunk < k; chunk += TFU_PRODUCT_TERMS, begin = 0) {
    const int end = least(chunk + TFU_PRODUCT_TERMS, k);
    memset(part, 0, (size_t)(m * FEW_COLS) * sizeof *part);
    for (int t = chunk; t < end; t += 4) {
      const int terms = least(4, end - t);
      const REAL *line[4] = {NULL};
      for (int i = 0; i < terms; i++) line[i] = FN(line)(b, at + t + i, col, n, s->lines + i * FEW_COLS);
      for (int r = 0; r < m; r++) {
        REAL factor[4] = {0};
        for (int i = 0; i < terms; i++) factor[i] = left.at[r * left.row + (t + i) * left.column];
        FN(add_lines)(part + r * FEW_COLS, line, factor, terms, n);
      }
    }
    for (int i = 0; i < m * FEW_COLS; i++) s->c[i] = begin ? part[i] : part[i] + s->c[i];
  }
}

/* to += from, or to = from, of a tile's sums. */
static void FN(gather)(REAL *to, const REAL *from, int n, int begin) {
  for (int i = 0; i < n; i++) to[i] = begin ? from[i] : to[i] + from[i];
}

static void FN(block)(void *job_, int64_t task, void *space) {
  const job *j = job_;
  FN(space) *s = space;
  const tfu_products *p = j->products;
  const int64_t batch = task / (j->row_blocks * j->col_blocks), part = task % (j->row_blocks * j->col_blocks);
  const int64_t row = part / j->col_blocks * j->rows, col = part % j->col_blocks * j->cols;
  const int m = least(j->rows, p->m - row), n = least(j->cols, p->n - col), apart = j->few ? FEW_COLS : APART;
  const tfu_batch_axis first = tfu_batch_at(p, 0, p->kept, batch);
  FN(tfu_gemm_finish) *finish = (FN(tfu_gemm_finish) *)j->finish;
  int64_t piece = 0;
  if (j->sums == 0 || p->k == 0) memset(s->c, 0, sizeof s->c);
  for (int64_t sum = 0; sum < j->sums; sum++) {
    const tfu_batch_axis next = tfu_batch_at(p, p->kept, p->axes, sum);
    const tfu_operand a = moved(j->a, first.a + next.a), b = moved(j->b, first.b + next.b);
    for (int64_t at = 0; at < p->k; at += DEPTH, piece++) {
      const int k = least(DEPTH, p->k - at), begin = piece % PIECES == 0;
      if (piece && begin) FN(gather)(s->total, s->c, m * apart, piece == PIECES);
      if (j->few) FN(add_few)(&a, &b, s, m, col, n, at, k, begin);
      else FN(add)(&a, &b, s, row, m, col, n, at, k, begin);
    }
  }
  if (piece > PIECES) FN(gather)(s->c, s->total, m * apart, 0);
  for (int i = 0; i < n; i += TFU_GEMM_COLS)
    for (int r = 0; r < m; r++)
      finish(j->arg, batch * p->m + row + r, col + i, least(TFU_GEMM_COLS, n - i), s->c + r * apart + i);
}

tfu_code FN(tfu_gemm_batch)(tfu_call *call, tfu_operand a, tfu_operand b, const tfu_products *p,
                            FN(tfu_gemm_finish) * finish, void *arg) {
  job j = {.a = a, .b = b, .products = p, .finish = (void *)finish, .arg = arg};
  j.sums = tfu_batch_count(p, p->kept, p->axes);
  j.few = p->m <= FEW_ROWS && !b.transposed;
  j.cols = j.few && p->n >= 2 * FEW_COLS * tfu_threads() ? FEW_COLS : TFU_GEMM_COLS; /* or threads would have none */
  j.col_blocks = divide_up(p->n, j.cols);
  const int64_t across = tfu_batch_count(p, 0, p->kept) * j.col_blocks;
  j.rows = across * divide_up(p->m, ROWS) >= 2 * tfu_threads() ? ROWS : ROWS / 2;
  j.row_blocks = divide_up(p->m, j.rows);
  const int64_t tasks = across * j.row_blocks;
  return tfu_parallel_with(call, tasks, sizeof(FN(space)), FN(block), &j);
}

void FN(tfu_gemm_store)(void *arg, int64_t row, int64_t col, int n, REAL *line) {
  const tfu_tensor *d = arg;
  FN(tfu_store)(d->data, d->dtype, row * tfu_cols(&d->shape) + col, n, line);
}

tfu_code FN(tfu_gemm)(tfu_call *call, tfu_operand a, tfu_operand b, int64_t m, int64_t n, int64_t k,
                      FN(tfu_gemm_finish) * finish, void *arg) {
  return FN(tfu_gemm_batch)(call, a, b, &(tfu_products){.m = m, .n = n, .k = k}, finish, arg);
}
#endif
