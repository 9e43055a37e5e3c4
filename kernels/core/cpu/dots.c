#include "kernels/core/cpu/dots.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#ifdef __x86_64__
#include <immintrin.h>
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

void tfu_plain_dots(const int8_t *column, const int8_t *rows, int64_t inputs, int n, int32_t *sums) {
  dots(column, rows, inputs, n, sums);
}

#if defined(__aarch64__) && defined(__linux__)
/* With sdot, which most processors since 2018 have: four products at once for each sum. */
__attribute__((target("arch=armv8.2-a+dotprod"))) static void sdot_dots(const int8_t *column, const int8_t *rows,
                                                                        int64_t inputs, int n, int32_t *sums) {
  dots(column, rows, inputs, n, sums);
}
tfu_dots *tfu_best_dots(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? sdot_dots : tfu_plain_dots; }
#elif defined(__x86_64__)
/* With VNNI, which most processors since 2019 have: four products at once for each of 16 sums. They are of unsigned by
 * signed bytes, so rows are taken as 128 more than they are, and 128 times the column's sum is taken off. What wraps
 * around on the way comes back. */
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))
VNNI static inline __attribute__((always_inline)) void some_dots(const int8_t *column, const int8_t *rows,
                                                                 int64_t inputs, const int n, int32_t *sums) {
  enum { BYTES = 64 };
  const __m512i more = _mm512_set1_epi8(-128);
  __m512i sum[TFU_DOTS], all = _mm512_setzero_si512();
  for (int r = 0; r < n; r++) sum[r] = all;
  for (int64_t i = 0; i < inputs; i += BYTES) {
    const __mmask64 there = inputs - i < BYTES ? ((__mmask64)1 << (inputs - i)) - 1 : ~(__mmask64)0;
    const __m512i line = _mm512_maskz_loadu_epi8(there, column + i);
    all = _mm512_dpbusd_epi32(all, more, line);
    for (int r = 0; r < n; r++) {
      const __m512i row = _mm512_xor_si512(_mm512_maskz_loadu_epi8(there, rows + r * inputs + i), more);
      sum[r] = _mm512_dpbusd_epi32(sum[r], row, line);
    }
  }
  for (int r = 0; r < n; r++) sums[r] = _mm512_reduce_add_epi32(_mm512_sub_epi32(sum[r], all));
}
VNNI static void vnni_dots(const int8_t *column, const int8_t *rows, int64_t inputs, int n, int32_t *sums) {
  if (n == TFU_DOTS) some_dots(column, rows, inputs, TFU_DOTS, sums);
  else
    for (int r = 0; r < n; r++) some_dots(column, rows + r * inputs, inputs, 1, sums + r);
}
tfu_dots *tfu_best_dots(void) {
  const int vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  return vnni ? vnni_dots : tfu_plain_dots;
}
#else
tfu_dots *tfu_best_dots(void) { return tfu_plain_dots; }
#endif
