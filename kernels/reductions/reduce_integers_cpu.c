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

/* Of a line: in the values' own width, so that a vector has more of them. */
#define LINE(name, TYPE, UNSIGNED, LEAST)                                                \
  static uint64_t name(int kind, const TYPE *v, int n) {                                 \
    const TYPE turn = kind == TFU_REDUCE_MIN ? -1 : 0;                                   \
    UNSIGNED s = kind == TFU_REDUCE_PROD;                                                \
    TYPE top = LEAST;                                                                    \
    if (kind == TFU_REDUCE_MAX || kind == TFU_REDUCE_MIN) {                              \
      for (int i = 0; i < n; i++) top = (v[i] ^ turn) > top ? (TYPE)(v[i] ^ turn) : top; \
      return (uint64_t)(int64_t)top;                                                     \
    }                                                                                    \
    if (kind == TFU_REDUCE_PROD)                                                         \
      for (int i = 0; i < n; i++) s *= (UNSIGNED)v[i];                                   \
    else                                                                                 \
      for (int i = 0; i < n; i++) s += (UNSIGNED)v[i];                                   \
    return s;                                                                            \
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
