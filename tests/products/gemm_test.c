/* gemm_test.c - products of any size and type on the CPU: a row has the same bits beside few rows, which read b where
 * it lies, and beside many, for which b is packed; and both are right to rounding. */
#include <math.h>

#include "kernels/core/arithmetic.h"
#include "kernels/products/gemm_cpu.h"
#include "tests/check.h"

enum { MOST_ROWS = 9, MOST_TERMS = 4200, MOST_COLUMNS = 1100 };

static float any(void) {
  static uint32_t state = 1;
  state = state * 1664525 + 1013904223;
  return (float)(int32_t)state / 2147483648.0f;
}

/* Numbers that all types have, side by side or, transposed, one below the other. */
static tfu_tensor matrix(tfu_dtype dtype, int64_t rows, int64_t cols, int transposed) {
  const int64_t n = rows * cols;
  tfu_tensor t = {malloc((size_t)n * tfu_dtype_size(dtype)), dtype, SHAPE(rows, cols)};
  for (int64_t i = 0; i < n; i++) {
    const float value = roundf(any() * 64) / 32;
    if (dtype == TFU_F64) ((double *)t.data)[i] = value;
    else tfu_store_f32(t.data, dtype, i, 1, &value);
  }
  if (transposed) t.shape.dim[0] = cols, t.shape.dim[1] = rows;
  return t;
}

static double at(const tfu_tensor *t, int transposed, int64_t i, int64_t j) {
  const int64_t place = transposed ? j * t->shape.dim[1] + i : i * t->shape.dim[1] + j;
  float room;
  return t->dtype == TFU_F64 ? ((const double *)t->data)[place] : *tfu_load_f32(t->data, t->dtype, place, 1, &room);
}

static void multiply(const tfu_tensor *a, int turned_a, const tfu_tensor *b, int turned_b, int m, int n, int k,
                     tfu_tensor *c) {
  run r = {.most = 9};
  r.call = (tfu_call){.err = &r.err, .allocate = allocate, .binding = &r};
  const tfu_operand left = tfu_operand_of(a, turned_a), right = tfu_operand_of(b, turned_b);
  *c = (tfu_tensor){malloc((size_t)(m * n) * sizeof(double)), tfu_real(a->dtype), SHAPE(m, n)};
  const tfu_code code = c->dtype == TFU_F64 ? tfu_gemm_f64(&r.call, left, right, m, n, k, tfu_gemm_store_f64, c)
                                            : tfu_gemm_f32(&r.call, left, right, m, n, k, tfu_gemm_store_f32, c);
  CHECK(code == TFU_OK);
  for (int i = 0; i < r.n; i++) free(r.held[i]);
}

static void test(tfu_dtype dtype, int turned_a, int turned_b, int n, int k) {
  tfu_tensor a = matrix(dtype, MOST_ROWS, k, turned_a), b = matrix(dtype, k, n, turned_b), all, some;
  multiply(&a, turned_a, &b, turned_b, MOST_ROWS, n, k, &all);
  const size_t row = (size_t)n * tfu_dtype_size(all.dtype);
  for (int j = 0; j < n; j += n / 7 + 1)
    for (int i = 0; i < MOST_ROWS; i++) {
      double sum = 0, size = 0;
      for (int t = 0; t < k; t++) {
        const double term = at(&a, turned_a, i, t) * at(&b, turned_b, t, j);
        sum += term, size += fabs(term);
      }
      CHECK_FOR(fabs(at(&all, 0, i, j) - sum) <= 16 * size * (dtype == TFU_F64 ? 0x1p-53 : 0x1p-24),
                "[%d, %d] of %d x %d, %s: %g, not %g", i, j, k, n, tfu_dtype_name(dtype), at(&all, 0, i, j), sum);
    }
  for (int m = 1; m < MOST_ROWS && !turned_a; m++) { /* a transposed would be another matrix with fewer rows */
    multiply(&a, 0, &b, turned_b, m, n, k, &some);
    CHECK_FOR(!memcmp(some.data, all.data, row * (size_t)m), "%d rows of %d x %d, %s", m, k, n, tfu_dtype_name(dtype));
    free(some.data);
  }
  free(a.data), free(b.data), free(all.data);
}

int main(void) {
  static const int columns[] = {1, 15, 16, 33, 128, 129, 513, MOST_COLUMNS},
                   terms[] = {1, 3, 32, 33, 128, 131, MOST_TERMS};
  setenv("TFUSE_NUM_THREADS", "1", 1); /* so that 1,100 columns are enough for a task to have 512 */
  for (int n = 0; n < TFU_COUNT(columns); n++)
    for (int k = 0; k < TFU_COUNT(terms); k++)
      for (int way = 0; way < 4; way++)
        test((tfu_dtype)((n + k + way) % TFU_FLOATS), way % 2, way / 2, columns[n], terms[k]);
  return verdict();
}
