/* product_test.c - products of small matrices against sums in long double, and by registers of 64 bytes, where the
 * processor has them, bit for bit as without; activations and exponentials by these, to the last bit; products of int8
 * by all instructions that there are. */
#include <math.h>

#include "kernels/core/cpu/product_cpu.h"
#include "kernels/core/cpu/quads.h"
#include "kernels/core/cpu/rows_cpu.h"
#include "tests/check.h"

enum { MOST = 136, ROOM = MOST * MOST };

static int wide;
int tfu_has_wide_registers(void) {
#ifdef __x86_64__
  return wide && __builtin_cpu_supports("avx512f");
#else
  return wide;
#endif
}

static double any(void) {
  static uint32_t state = 1;
  state = state * 1664525 + 1013904223;
  return (int32_t)state / 2147483648.0;
}

/* Of type REAL: c = a b + c for m rows, n columns and k terms, where a's rows or columns lie side by side. */
#define TEST_PRODUCT(REAL, of)                                                                                    \
  static void test_product_##of(int m, int n, int k, int turned, int add) {                                       \
    static REAL a[ROOM], b[ROOM], c[2][ROOM], before[ROOM];                                                       \
    const tfu_matrix_##of left = turned ? tfu_columns_at_##of(a, MOST) : tfu_rows_at_##of(a, MOST);               \
    for (int i = 0; i < ROOM; i++) a[i] = (REAL)any(), b[i] = (REAL)any(), before[i] = (REAL)any();               \
    for (wide = 0; wide < 2; wide++) {                                                                            \
      memcpy(c[wide], before, sizeof before);                                                                     \
      tfu_product_##of(tfu_rows_at_##of(c[wide], MOST), left, tfu_rows_at_##of(b, MOST), m, n, k, add);           \
    }                                                                                                             \
    for (int i = 0; i < m; i++)                                                                                   \
      for (int j = 0; j < n; j++) {                                                                               \
        long double sum = add ? before[i * MOST + j] : 0, size = fabsl(sum);                                      \
        for (int t = 0; t < k; t++) {                                                                             \
          const long double term = (long double)a[turned ? t * MOST + i : i * MOST + t] * b[t * MOST + j];        \
          sum += term, size += fabsl(term);                                                                       \
        }                                                                                                         \
        const REAL found = c[0][i * MOST + j];                                                                    \
        CHECK_FOR(fabsl(found - sum) <= 8 * size * (sizeof(REAL) == 4 ? 0x1p-24L : 0x1p-53L),                     \
                  "[%d, %d] of %d x %d x %d: %g, not %Lg", i, j, m, k, n, (double)found, sum);                    \
        CHECK_FOR(!memcmp(&found, &c[1][i * MOST + j], sizeof found), "[%d, %d] of %d x %d x %d", i, j, m, k, n); \
      }                                                                                                           \
  }
TEST_PRODUCT(float, f32)
TEST_PRODUCT(double, f64)

static void test_wide_loops(void) {
  enum { N = TFU_TILE };
  static float x[N], ones[N], zeros[N], found[2][N];
  for (int i = 0; i < N; i++) x[i] = (float)(12 * any()), ones[i] = 1;
  x[3] = NAN, x[5] = INFINITY, x[7] = -INFINITY, x[9] = -0.0f;
  for (int n = N - 17; n <= N; n += 17)
    for (int loop = 0; loop < 2 * TFU_ACTS + 1; loop++) {
      const tfu_activation *act = &tfu_activations[loop / 2 % TFU_ACTS];
      for (wide = 0; wide < 2; wide++) {
        if (loop == 2 * TFU_ACTS) tfu_exp_line_f32(found[wide], x, 11.5f, 0.5f, 0.25f, n);
        else (loop % 2 ? act->grad_f32 : act->value_f32)(found[wide], x, ones, zeros, n);
      }
      for (int i = 0; i < n; i++)
        CHECK_FOR(isnan(found[0][i])
                      ? isnan(found[1][i])
                      : found[0][i] == found[1][i] || fabsf(found[0][i] - found[1][i]) <= 0x1p-23f * fabsf(found[0][i]),
                  "loop %d of %g: %g, not %g", loop, (double)x[i], (double)found[1][i], (double)found[0][i]);
    }
}

/* At both ends of the range too, where sums of wrong sign would show. */
static void test_quads(int terms, int n, int columns) {
  enum { ROWS = 9, TERMS = 130, PITCH = TERMS + 3, COLUMNS = TFU_QUAD_COLUMNS, APART = COLUMNS + 1 };
  static int8_t rows[ROWS * PITCH + 3], lines[TERMS][COLUMNS], along[COLUMNS][TERMS];
  static int8_t panels[2][(TERMS + 3) / 4 * TFU_QUAD_BYTES];
  tfu_quads *const ways[] = {tfu_plain_quads, tfu_best_quads()};
  for (int end = 0; end < 3; end++) {
    for (int i = 0; i < TFU_COUNT(rows); i++) rows[i] = (int8_t)(end == 0 ? 128 * any() : -128);
    for (int t = 0; t < terms; t++)
      for (int c = 0; c < COLUMNS; c++)
        along[c][t] = lines[t][c] = (int8_t)(end == 0 ? 128 * any() : end == 1 ? -128 : 127);
    memset(panels, 77, sizeof panels);
    tfu_quads_of_lines(panels[0], lines[0], COLUMNS, terms, columns);
    tfu_quads_of_columns(panels[1], along[0], TERMS, terms, columns);
    CHECK_FOR(!memcmp(panels[0], panels[1], (size_t)(terms + 3) / 4 * TFU_QUAD_BYTES), "panels of %d terms", terms);
    for (int way = 0; way < 2 * TFU_COUNT(ways); way++) {
      int32_t sums[(ROWS + 1) * APART];
      for (int i = 0; i < TFU_COUNT(sums); i++) sums[i] = 1000 + i;
      ways[way / 2](sums, APART, rows, PITCH, n, panels[0], terms, way % 2);
      for (int i = 0; i < TFU_COUNT(sums); i++) {
        const int r = i / APART, c = i % APART;
        int32_t sum = r < n && c < COLUMNS && way % 2 == 0 ? 0 : 1000 + i;
        for (int t = 0; t < terms && r < n && c < columns; t++) sum += rows[r * PITCH + t] * lines[t][c];
        CHECK_FOR(sums[i] == sum, "way %d, row %d of %d, column %d of %d, %d terms: %d, not %d", way, r, n, c, columns,
                  terms, sums[i], sum);
      }
    }
  }
}

int main(void) {
  static const int columns[] = {1, 16, 40, 64}, terms[] = {0, 1, 31, 32, 33, 128};
  for (int m = 1; m <= 17; m++)
    for (int n = 0; n < TFU_COUNT(columns); n++)
      for (int k = 0; k < TFU_COUNT(terms); k++) {
        test_product_f32(m, columns[n], terms[k], m % 2, k % 2);
        test_product_f64(m, columns[n], terms[k], m % 2, k % 2);
      }
  test_wide_loops();
  static const int quads[] = {0, 1, 2, 3, 4, 127, 130};
  for (int i = 0; i < TFU_COUNT(quads); i++)
    for (int n = 0; n <= 9; n++) test_quads(quads[i], n, n % 3 ? 64 : 37);
  return verdict();
}
