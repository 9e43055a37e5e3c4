/* States of integers on the CPU (reduce_cpu.h). Sums and products wrap; in 64 bits, whose lower half is what 32 bits
 * would give. The least value is the greatest of the complements. */
#include "kernels/reductions/reduce_cpu.h"

/* A loop over the n values from x[at] on, for either type: v[i] is value i. */
#define EACH(x, statement)                                      \
  do {                                                          \
    if ((x)->dtype == TFU_I32) {                                \
      const int32_t *const v = (const int32_t *)(x)->data + at; \
      for (int i = 0; i < n; i++) statement;                    \
    } else {                                                    \
      const int64_t *const v = (const int64_t *)(x)->data + at; \
      for (int i = 0; i < n; i++) statement;                    \
    }                                                           \
  } while (0)

/* Of a line: in the values' own width, so that a vector has more of them, and going round some lanes, so that several
 * vectors are on their way. A step is a statement of x, a value, and k, its lane. */
enum { LANES = 16 };
#define ROUND(step)                                \
  for (int i = 0; i + LANES <= n; i += LANES)      \
    for (int k = 0; k < LANES; k++) {              \
      const __typeof__(*v) x = v[i + k];           \
      step;                                        \
    }                                              \
  for (int i = n - n % LANES, k = 0; i < n; i++) { \
    const __typeof__(*v) x = v[i];                 \
    step;                                          \
  }
#define LINE(name, TYPE, UNSIGNED, LEAST)                                         \
  static uint64_t name(int kind, const TYPE *v, int n) {                          \
    const TYPE flip = kind == TFU_REDUCE_MIN ? -1 : 0;                            \
    const int product = kind == TFU_REDUCE_PROD;                                  \
    UNSIGNED s[LANES];                                                            \
    TYPE top[LANES];                                                              \
    for (int k = 0; k < LANES; k++) s[k] = product, top[k] = LEAST;               \
    if (kind == TFU_REDUCE_MAX || kind == TFU_REDUCE_MIN) {                       \
      ROUND(top[k] = (x ^ flip) > top[k] ? (TYPE)(x ^ flip) : top[k])             \
      for (int k = 1; k < LANES; k++) top[0] = top[k] > top[0] ? top[k] : top[0]; \
      return (uint64_t)(int64_t)top[0];                                           \
    }                                                                             \
    if (product) {                                                                \
      ROUND(s[k] *= (UNSIGNED)x)                                                  \
    } else {                                                                      \
      ROUND(s[k] += (UNSIGNED)x)                                                  \
    }                                                                             \
    for (int k = 1; k < LANES; k++) s[0] = product ? s[0] * s[k] : s[0] + s[k];   \
    return s[0];                                                                  \
  }
LINE(line_i32, int32_t, uint32_t, INT32_MIN)
LINE(line_i64, int64_t, uint64_t, INT64_MIN)

tfu_state tfu_line_state_int(int kind, const tfu_tensor *x, int64_t at, int n) {
  return (tfu_state){.i = x->dtype == TFU_I32 ? line_i32(kind, (const int32_t *)x->data + at, n)
                                              : line_i64(kind, (const int64_t *)x->data + at, n)};
}

void tfu_column_states_int(int kind, const tfu_tensor *x, int64_t at, int64_t stride, int rows, int n, tfu_state *s) {
  for (int r = 0; r < rows; r++, at += stride) switch (kind) {
      case TFU_REDUCE_PROD: EACH(x, s[i].i *= (uint64_t)v[i]); break;
      case TFU_REDUCE_MAX: EACH(x, s[i].i = (int64_t)v[i] > (int64_t)s[i].i ? (uint64_t)v[i] : s[i].i); break;
      case TFU_REDUCE_MIN:
        EACH(x, s[i].i = ~(int64_t)v[i] > (int64_t)s[i].i ? (uint64_t) ~(int64_t)v[i] : s[i].i);
        break;
      default: EACH(x, s[i].i += (uint64_t)v[i]);
    }
}

void tfu_store_result_int(int kind, tfu_state s, int64_t all, const tfu_tensor *y, int64_t at) {
  int64_t value = kind == TFU_REDUCE_MIN ? ~(int64_t)s.i : (int64_t)s.i;
  if (y->dtype == TFU_I32) value = (int32_t)value;
  if (kind == TFU_REDUCE_MEAN) value = all ? value / all : 0;
  if (y->dtype == TFU_I32) ((int32_t *)y->data)[at] = (int32_t)value;
  else ((int64_t *)y->data)[at] = value;
}
