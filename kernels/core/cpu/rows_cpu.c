#ifndef REAL
#include "kernels/core/cpu/rows_cpu.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/philox.h"

tfu_rows_cpu tfu_plan_rows_cpu(const tfu_shape *shape) {
  enum { UNIT = 1024 }; /* tfu_task_size gives a task 64 of them, or more */
  tfu_rows_cpu r = {.rows = tfu_rows(shape), .cols = tfu_cols(shape)};
  const int64_t task = tfu_task_size(r.rows * r.cols, UNIT);
  r.per_task = r.cols ? divide_up(task, r.cols) : task;
  r.tasks = divide_up(r.rows, r.per_task);
  return r;
}

tfu_code tfu_check_integers(const tfu_call *call, const char *name, const tfu_tensor *t) {
  TFU_REQUIRE(call->err, t->dtype == TFU_I32 || t->dtype == TFU_I64, "%s must be int32 or int64, got %s", name,
              tfu_dtype_name(t->dtype));
  return TFU_OK;
}

tfu_drop tfu_drop_of(const tfu_tensor *seed, float rate) {
  return (tfu_drop){.seed = (uint64_t) * (const int64_t *)seed->data,
                    .below = tfu_drop_below(rate),
                    .factor = 1 / (1 - (double)rate)};
}

/* 16 bits for each of 8 * n elements from element 8 * counter on; little-endian words hold the even element first. */
static void draw(uint64_t counter, uint64_t seed, uint32_t *words, int n) {
  for (int i = 0; i < n; i++) {
    const tfu_bits bits = tfu_philox(counter + (uint64_t)i, seed);
    for (int k = 0; k < 4; k++) words[4 * i + k] = bits.word[k];
  }
}

typedef int32_t rank_type_f32;
typedef int64_t rank_type_f64;

#define TFU_SELF "kernels/core/cpu/rows_cpu.c"
#include "kernels/core/cpu/stamp.h"

#else

/* Integers in the order of the floats with these bits: their maximum is one instruction for many lanes, where that of
 * floats must tell NaN apart. NaN is above all, or below all if its sign is set. The map is its own inverse. */
static inline FN(rank_type) FN(turn_negatives)(FN(rank_type) bits) {
  const int sign = 8 * (int)sizeof bits - 1;
  return bits ^ (bits >> sign & (FN(rank_type))(((uint64_t)1 << sign) - 1));
}
static inline FN(rank_type) FN(rank)(REAL x) {
  FN(rank_type) bits;
  memcpy(&bits, &x, sizeof bits);
  return FN(turn_negatives)(bits);
}
static inline REAL FN(ranked)(FN(rank_type) rank) {
  REAL x;
  rank = FN(turn_negatives)(rank);
  memcpy(&x, &rank, sizeof x);
  return x;
}

REAL FN(tfu_greatest)(const REAL *v, int n) {
  FN(rank_type) best = FN(rank)(-(REAL)INFINITY);
  for (int i = 0; i < n; i++) {
    const FN(rank_type) rank = FN(rank)(v[i]);
    best = rank > best ? rank : best;
  }
  return FN(ranked)(best);
}

TFU_WIDE(, FN(tfu_exp_line), (REAL * y, const REAL *v, REAL shift, REAL factor, REAL less, int n),
         (y, v, shift, factor, less, n), TFU_VECTORISED(i, n) y[i] = FN(exp_of)(v[i] - shift) * factor - less;)

void FN(tfu_lse_add)(tfu_lse *lse, const REAL *v, REAL *e, int n) {
  const REAL max = FN(tfu_greatest)(v, n);
  if (max == -(REAL)INFINITY) { /* zero, NaN for NaN: -inf - -inf would be NaN, and other chunks may have values */
    for (int i = 0; i < n; i++) e[i] = v[i] < 0 ? 0 : v[i];
    lse->sum += TFU_SUM(n, e[i]);
    return;
  }
  FN(tfu_exp_line)(e, v, max, 1, 0, n);
  const double sum = TFU_SUM(n, e[i]), before = lse->max;
  if (before == -INFINITY) lse->max = max, lse->sum += sum;
  else if (max > before) lse->max = max, lse->sum = lse->sum * exp(before - max) + sum;
  else lse->sum += sum * exp(max - before);
}

void FN(tfu_drop_tile)(const tfu_drop *drop, REAL *y, const REAL *x, int64_t at, int n) {
  uint32_t words[(TFU_TILE + 8) / 2];
  uint16_t lanes[TFU_TILE + 8];
  const int skip = (int)(at % 8);
  const REAL factor = (REAL)drop->factor;
  draw((uint64_t)(at / 8), drop->seed, words, (skip + n + 7) / 8);
  memcpy(lanes, words, sizeof lanes);
  TFU_VECTORISED(i, n) {
    const REAL kept = x[i] * factor;
    y[i] = lanes[skip + i] < drop->below ? 0 : kept;
  }
}

void FN(tfu_open)(FN(tfu_reader) * r, const tfu_tensor *t, int64_t end) {
  r->tensor = t;
  r->from = r->to = 0;
  r->end = end;
  if (t->dtype != TFU_F32 && t->dtype != TFU_F64) return;
  r->values = t->data;
  r->to = end;
}

void FN(tfu_refill)(FN(tfu_reader) * r, int64_t at) {
  const int n = r->end - at < TFU_CHUNK ? (int)(r->end - at) : TFU_CHUNK;
  r->values = FN(tfu_load)(r->tensor->data, r->tensor->dtype, at, n, r->buffer);
  r->from = at;
  r->to = at + n;
}
#endif
