#include "kernels/core/cpu/quads.h"

#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#pragma GCC target("avx2")
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define UNROLL _Pragma("GCC unroll 8")
#define INLINE static inline __attribute__((always_inline))

/* ---- a product ---- */

/* Defines a tfu_quads by step(sums, four bytes of each column, four bytes of a row). A block of it has `rows` rows by
 * VECTORS vectors of sums, each of which begins as start(row, terms). */
enum { VECTORS = 4 };
#define DEFINE_QUADS(target, linkage, name, rows_, vector, step, start)                                       \
  target INLINE void name##_block(int32_t *sums, int64_t apart, const int8_t *rows, int64_t pitch,            \
                                  const int8_t *panel, int terms, int add, const int n) {                     \
    vector sum[rows_][VECTORS];                                                                               \
    UNROLL                                                                                                    \
    for (int r = 0; r < n; r++) {                                                                             \
      const uint32_t first = (uint32_t)start(rows + r * pitch, terms);                                        \
      UNROLL                                                                                                  \
      for (int v = 0; v < VECTORS; v++)                                                                       \
        sum[r][v] = add ? ((const vector *)(sums + r * apart))[v] + first : (vector){0} + first;              \
    }                                                                                                         \
    for (int t = 0; t < terms; t += 4, panel += TFU_QUAD_BYTES) {                                             \
      vector line[VECTORS];                                                                                   \
      UNROLL                                                                                                  \
      for (int v = 0; v < VECTORS; v++) line[v] = ((const vector *)panel)[v];                                 \
      UNROLL                                                                                                  \
      for (int r = 0; r < n; r++) {                                                                           \
        int32_t four;                                                                                         \
        memcpy(&four, rows + r * pitch + t, sizeof four);                                                     \
        UNROLL                                                                                                \
        for (int v = 0; v < VECTORS; v++) sum[r][v] = step(sum[r][v], line[v], four);                         \
      }                                                                                                       \
    }                                                                                                         \
    UNROLL                                                                                                    \
    for (int r = 0; r < n; r++) {                                                                             \
      UNROLL                                                                                                  \
      for (int v = 0; v < VECTORS; v++) ((vector *)(sums + r * apart))[v] = sum[r][v];                        \
    }                                                                                                         \
  }                                                                                                           \
  target linkage void name(int32_t *sums, int64_t apart, const int8_t *rows, int64_t pitch, int n,            \
                           const int8_t *panel, int terms, int add) {                                         \
    enum { COLUMNS = VECTORS * (int)sizeof(vector) / 4 };                                                     \
    for (int c = 0; c < TFU_QUAD_COLUMNS; c += COLUMNS) {                                                     \
      int r = 0;                                                                                              \
      for (; r + rows_ <= n; r += rows_)                                                                      \
        name##_block(sums + r * apart + c, apart, rows + r * pitch, pitch, panel + 4 * c, terms, add, rows_); \
      for (; r < n; r++)                                                                                      \
        name##_block(sums + r * apart + c, apart, rows + r * pitch, pitch, panel + 4 * c, terms, add, 1);     \
    }                                                                                                         \
  }

#define NOTHING(row, terms) 0
#define SUMS(bytes) uint32_t __attribute__((vector_size(bytes), aligned(1), may_alias))

#ifdef __x86_64__
typedef SUMS(32) sums_of_8;
typedef SUMS(64) sums_of_16;

/* Bytes 0 and 2, and 1 and 3, as numbers of 16 bits. */
INLINE sums_of_8 avx2_step(sums_of_8 sum, sums_of_8 line, int32_t four) {
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)line, 8), 8),
                odd = _mm256_srai_epi16((__m256i)line, 8);
  const __m256i row = _mm256_set1_epi32(four), row_even = _mm256_srai_epi16(_mm256_slli_epi16(row, 8), 8);
  const __m256i row_odd = _mm256_srai_epi16(row, 8);
  return sum + (sums_of_8)_mm256_madd_epi16(even, row_even) + (sums_of_8)_mm256_madd_epi16(odd, row_odd);
}
DEFINE_QUADS(, , tfu_plain_quads, 2, sums_of_8, avx2_step, NOTHING)

/* With VNNI, which most processors since 2019 have: four products at once for each of 16 sums. They are of unsigned by
 * signed bytes, so columns are taken as 128 more than they are, and 128 times the row's sum is taken off. What wraps
 * around on the way comes back. */
#define VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))
VNNI INLINE sums_of_16 vnni_step(sums_of_16 sum, sums_of_16 line, int32_t four) {
  const __m512i more = _mm512_xor_si512((__m512i)line, _mm512_set1_epi8(-128));
  return (sums_of_16)_mm512_dpbusd_epi32((__m512i)sum, more, _mm512_set1_epi32(four));
}
VNNI INLINE int32_t vnni_start(const int8_t *row, int terms) {
  int32_t sum = 0;
  for (int t = 0; t < (terms + 3) / 4 * 4; t++) sum += row[t];
  return -128 * sum;
}
DEFINE_QUADS(VNNI, static, vnni_quads, 4, sums_of_16, vnni_step, vnni_start)

tfu_quads *tfu_best_quads(void) {
  const int vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  return vnni ? vnni_quads : tfu_plain_quads;
}
#else
typedef SUMS(16) sums_of_4;
typedef int32_t signed_of_4 __attribute__((vector_size(16)));
INLINE sums_of_4 plain_step(sums_of_4 sum, sums_of_4 line, int32_t four) {
  UNROLL
  for (int i = 24; i >= 0; i -= 8) sum += (sums_of_4)(((signed_of_4)line << i >> 24) * (int8_t)(four >> (24 - i)));
  return sum;
}
DEFINE_QUADS(, , tfu_plain_quads, 4, sums_of_4, plain_step, NOTHING)

#if defined(__aarch64__) && defined(__linux__)
/* With sdot, which most processors since 2018 have. */
#define SDOT __attribute__((target("arch=armv8.2-a+dotprod")))
SDOT INLINE sums_of_4 sdot_step(sums_of_4 sum, sums_of_4 line, int32_t four) {
  return (sums_of_4)vdotq_s32((int32x4_t)sum, (int8x16_t)line, vreinterpretq_s8_s32(vdupq_n_s32(four)));
}
DEFINE_QUADS(SDOT, static, sdot_quads, 4, sums_of_4, sdot_step, NOTHING)
tfu_quads *tfu_best_quads(void) { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? sdot_quads : tfu_plain_quads; }
#else
tfu_quads *tfu_best_quads(void) { return tfu_plain_quads; }
#endif
#endif

/* ---- panels ---- */

void tfu_quads_of_lines(int8_t *panel, const int8_t *lines, int64_t pitch, int terms, int n) {
  for (int t = 0; t < terms; t += 4, panel += TFU_QUAD_BYTES, lines += 4 * pitch) {
    if (n == TFU_QUAD_COLUMNS && t + 4 <= terms) {
      for (int c = 0; c < TFU_QUAD_COLUMNS; c++)
        for (int i = 0; i < 4; i++) panel[4 * c + i] = lines[i * pitch + c];
      continue;
    }
    memset(panel, 0, TFU_QUAD_BYTES);
    for (int i = 0; i < 4 && t + i < terms; i++)
      for (int c = 0; c < n; c++) panel[4 * c + i] = lines[i * pitch + c];
  }
}

void tfu_quads_of_columns(int8_t *panel, const int8_t *columns, int64_t pitch, int terms, int n) {
  if (n < TFU_QUAD_COLUMNS || terms % 4) memset(panel, 0, (size_t)(terms + 3) / 4 * TFU_QUAD_BYTES);
  for (int c = 0; c < n; c++)
    for (int t = 0; t < terms; t += 4)
      memcpy(panel + t * TFU_QUAD_COLUMNS + 4 * c, columns + c * pitch + t, t + 4 <= terms ? 4 : (size_t)(terms - t));
}
