#include "kernels/core/cpu/dots.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#ifdef __x86_64__
#pragma GCC target("avx2")
#endif

static inline __attribute__((always_inline)) void dots(const int8_t *column, const int8_t *rows, int64_t inputs, int n,
                                                       int32_t *sums) {
  int32_t a = 0, b = 0, c = 0, d = 0;
  if (n == TFU_DOTS) {
    const int8_t *second = rows + inputs, *third = second + inputs, *fourth = third + inputs;
    for (int64_t i = 0; i < inputs; i++) {
      a += rows[i] * column[i];
      b += second[i] * column[i];
      c += third[i] * column[i];
      d += fourth[i] * column[i];
    }
    sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
    return;
  }
  for (int r = 0; r < n; r++, rows += inputs) {
    a = 0;
    for (int64_t i = 0; i < inputs; i++) a += rows[i] * column[i];
    sums[r] = a;
  }
}

static void any_dots(const int8_t *column, const int8_t *rows, int64_t inputs, int n, int32_t *sums) {
  dots(column, rows, inputs, n, sums);
}

#if defined(__aarch64__) && defined(__linux__)
/* With sdot, which most processors since 2018 have: four products at once for each sum. */
__attribute__((target("arch=armv8.2-a+dotprod"))) static void sdot_dots(const int8_t *column, const int8_t *rows,
                                                                        int64_t inputs, int n, int32_t *sums) {
  dots(column, rows, inputs, n, sums);
}
tfu_dots *tfu_best_dots(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? sdot_dots : any_dots; }
#else
tfu_dots *tfu_best_dots(void) { return any_dots; }
#endif
