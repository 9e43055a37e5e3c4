/* rows_cpu.h - what CPU kernels that work row by row are made of.
 *
 * Rows are independent, and tasks are runs of whole rows. A row is walked in chunks of at most TFU_CHUNK elements, so
 * what a task holds stays in the first-level cache and on the stack however long rows are. Tensors are seen through
 * windows: for float32 and float64 the memory itself, for 16-bit types a buffer that is filled and emptied a chunk at a
 * time, across rows where they are short. */
#ifndef REAL
#ifndef TFUSE_ROWS_CPU_H_
#define TFUSE_ROWS_CPU_H_

#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/exp_cpu.h"

enum { TFU_CHUNK = 4096, TFU_LANES = 16 };

/* How rows become tasks: task i has rows tfu_first_row(i) up to tfu_end_row(i). */
typedef struct tfu_rows_cpu {
  int64_t rows, cols;
  int64_t per_task, tasks;
} tfu_rows_cpu;

#pragma GCC visibility push(default)
tfu_rows_cpu tfu_plan_rows_cpu(const tfu_shape *shape);
static inline int64_t tfu_first_row(const tfu_rows_cpu *r, int64_t task) { return task * r->per_task; }
static inline int64_t tfu_end_row(const tfu_rows_cpu *r, int64_t task) {
  return (task + 1) * r->per_task < r->rows ? (task + 1) * r->per_task : r->rows;
}

/* for (TFU_EACH_CHUNK(col, n, cols)): n elements from col on. */
#define TFU_EACH_CHUNK(col, n, cols)                         \
  int64_t col = 0, n;                                        \
  (n = (cols)-col < TFU_CHUNK ? (cols)-col : TFU_CHUNK) > 0; \
  col += n

/* Fails unless the tensor is int32 or int64; element i of such a one. */
TFU_MUST_USE tfu_code tfu_check_integers(const tfu_call *call, const char *name, const tfu_tensor *t);
static inline int64_t tfu_integer(const tfu_tensor *t, int64_t i) {
  return t->dtype == TFU_I64 ? ((const int64_t *)t->data)[i] : ((const int32_t *)t->data)[i];
}

/* The sum of `term`, an expression of i, for i from 0 up to n. The terms go round TFU_LANES sums, which become vectors;
 * each adds up at most TFU_CHUNK / TFU_LANES of them in REAL, so the error stays at that of some hundred roundings. */
#define TFU_SUM(n, term)                                          \
  __extension__({                                                 \
    const int end_ = (n), whole_ = end_ - end_ % TFU_LANES;       \
    double total_ = 0;                                            \
    for (int i = whole_; i < end_; i++) total_ += (term);         \
    if (whole_) {                                                 \
      REAL lane_[TFU_LANES] = {0};                                \
      for (int base_ = 0; base_ < whole_; base_ += TFU_LANES)     \
        for (int k_ = 0; k_ < TFU_LANES; k_++) {                  \
          const int i = base_ + k_;                               \
          lane_[k_] += (term);                                    \
        }                                                         \
      for (int k_ = 0; k_ < TFU_LANES; k_++) total_ += lane_[k_]; \
    }                                                             \
    total_;                                                       \
  })

/* log(sum(exp)) in the making: sum of exp(v - max) over the values so far. Begins as {-INFINITY, 0}. Where all values
 * are minus infinity the sum stays 0; NaN and plus infinity make it NaN. */
typedef struct tfu_lse {
  double max, sum;
} tfu_lse;
#define TFU_LSE_EMPTY ((tfu_lse){.max = -INFINITY})

/* A dropout: see kernels/core/philox.h. */
typedef struct tfu_drop {
  uint64_t seed;
  uint32_t below;
  double factor; /* of what is kept */
} tfu_drop;
tfu_drop tfu_drop_of(const tfu_tensor *seed, float rate);

#define TFU_SELF "kernels/core/cpu/rows_cpu.h"
#include "kernels/core/cpu/stamp.h"
#undef TFU_SELF

#pragma GCC visibility pop
#endif
#else

/* The greatest of n values, -infinity of none; a NaN counts as greater than all, or as less if its sign is set. */
REAL FN(tfu_greatest)(const REAL *v, int n);

/* Adds n <= TFU_CHUNK values, and leaves e[i] = exp(v[i] - their own maximum); e may be v. */
void FN(tfu_lse_add)(tfu_lse *lse, const REAL *v, REAL *e, int n);

/* y[i] = factor * exp(v[i] - shift) - less; v[i] <= shift but for rounding; y may be v. */
void FN(tfu_exp_line)(REAL *y, const REAL *v, REAL shift, REAL factor, REAL less, int n);

/* y[i] = element at + i of a dropout whose input there is x[i], for n <= TFU_TILE elements; y may be x. */
void FN(tfu_drop_tile)(const tfu_drop *drop, REAL *y, const REAL *x, int64_t at, int n);

/* Elements `from` up to `to` of a tensor, for reading. */
typedef struct FN(tfu_reader) {
  const tfu_tensor *tensor;
  const REAL *values;
  int64_t from, to, end;
  REAL buffer[sizeof(REAL) == sizeof(float) ? TFU_CHUNK : 1]; /* float64 is never widened */
} FN(tfu_reader);

/* For reading up to element `end`: what lies after it may be another task's to write. */
void FN(tfu_open)(FN(tfu_reader) * r, const tfu_tensor *t, int64_t end);
void FN(tfu_refill)(FN(tfu_reader) * r, int64_t at);
/* n <= TFU_CHUNK elements from `at` on, valid until the next call. */
static inline const REAL *FN(tfu_read)(FN(tfu_reader) * r, int64_t at, int64_t n) {
  if (at < r->from || at + n > r->to) FN(tfu_refill)(r, at);
  return r->values + (at - r->from);
}

/* Elements `from` up to `to` of a tensor, to be written in order. */
typedef struct FN(tfu_writer) {
  const tfu_tensor *tensor;
  int64_t from, to;
  REAL buffer[sizeof(REAL) == sizeof(float) ? TFU_CHUNK : 1];
} FN(tfu_writer);

static inline void FN(tfu_flush)(FN(tfu_writer) * w) {
  if (w->to > w->from) FN(tfu_store)(w->tensor->data, w->tensor->dtype, w->from, (int)(w->to - w->from), w->buffer);
  w->from = w->to;
}
static inline void FN(tfu_create)(FN(tfu_writer) * w, const tfu_tensor *t) {
  w->tensor = t;
  w->from = w->to = 0;
}
/* Room for n <= TFU_CHUNK elements from `at` on; they reach the tensor by tfu_flush at the latest. */
static inline REAL *FN(tfu_write)(FN(tfu_writer) * w, int64_t at, int64_t n) {
  if (w->tensor->dtype == TFU_F32 || w->tensor->dtype == TFU_F64) return (REAL *)w->tensor->data + at;
  if (at != w->to || at + n - w->from > TFU_CHUNK) {
    FN(tfu_flush)(w);
    w->from = at;
  }
  w->to = at + n;
  return w->buffer + (at - w->from);
}
#endif
