/* scans on the CPU. Lines of values that lie side by side and belong to different scans go through a formula together;
 * where the scanned axis is the last one, a line is one value, and the running results of a whole row are made one
 * after the other. Integers wrap around. Recurrences are computed in double. */
#ifndef REAL
#include "kernels/scans/scan.h"

#include <math.h>

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/exp_cpu.h"

typedef struct job {
  tfu_call *call;
  tfu_scanned s;
  int64_t strips; /* runs of columns side by side; tasks are of rows, or of strips of each outer position */
} job;

/* Whole numbers need no widening. */
#define WHOLE_NUMBERS(type, tag)                                                                          \
  static const type *tfu_load_##tag(const void *data, tfu_dtype dtype, int64_t at, int n, type *buffer) { \
    (void)dtype, (void)n, (void)buffer;                                                                   \
    return (const type *)data + at;                                                                       \
  }                                                                                                       \
  static type *tfu_room_##tag(void *data, tfu_dtype dtype, int64_t at, type *buffer) {                    \
    (void)dtype, (void)buffer;                                                                            \
    return (type *)data + at;                                                                             \
  }                                                                                                       \
  static void tfu_store_##tag(void *data, tfu_dtype dtype, int64_t at, int n, const type *values) {       \
    (void)data, (void)dtype, (void)at, (void)n, (void)values;                                             \
  }
WHOLE_NUMBERS(uint32_t, i32)
WHOLE_NUMBERS(uint64_t, i64)

#define TFU_SELF "kernels/scans/scan_cpu.c"
#define FLOATS 1
#define LARGER(a, b) ((a) > (b) || (a) != (a) ? (a) : (b)) /* NaN is larger than all */
#define LOWEST (-(REAL)INFINITY)
#include "kernels/core/cpu/stamp.h"
#undef FLOATS
#undef LARGER
#undef LOWEST
/* As unsigned numbers, which wrap around; maxima are those of the signed ones. */
#define FLOATS 0
#define LARGER(a, b) ((SIGNED)(a) > (SIGNED)(b) ? (a) : (b))
#define LOWEST ((REAL)1 << (8 * sizeof(REAL) - 1))
#define REAL uint32_t
#define SIGNED int32_t
#define FN(name) name##_i32
#include TFU_SELF
#undef REAL
#undef SIGNED
#undef FN
#define REAL uint64_t
#define SIGNED int64_t
#define FN(name) name##_i64
#include TFU_SELF
#undef REAL
#undef SIGNED
#undef FN

static tfu_code scan(tfu_call *call) {
  job j = {.call = call};
  TFU_TRY(tfu_scanned_of(call, &j.s));
  const int64_t n = tfu_count(&call->in[0].shape), size = j.s.inner < TFU_TILE ? j.s.inner : TFU_TILE;
  j.strips = divide_up(j.s.inner, size);
  void (*range)(void *, int64_t, int64_t) = call->in[0].dtype == TFU_F64   ? scan_range_f64
                                            : call->in[0].dtype == TFU_I32 ? scan_range_i32
                                            : call->in[0].dtype == TFU_I64 ? scan_range_i64
                                                                           : scan_range_f32;
  tfu_parallel_ranges(j.s.outer * j.strips, divide_up(tfu_task_size(n, TFU_TILE), j.s.length * size), range, &j);
  return TFU_OK;
}
tfu_code tfu_scan_cpu(tfu_call *call) { return scan(call); }
tfu_code tfu_scan_recurrence_cpu(tfu_call *call) { return scan(call); }

#else

static REAL FN(nothing)(int kind) {
  return kind == TFU_SCAN_PROD ? 1 : kind == TFU_SCAN_MAX || kind == TFU_SCAN_LSE ? LOWEST : 0;
}

/* The results so far of scans side by side; more: for logarithms of sums of exponentials, log(more) is added to run. Of
 * recurrences, `wide` alone. */
typedef struct FN(running) {
  REAL run[TFU_TILE], more[TFU_TILE];
  double wide[TFU_TILE];
} FN(running);

static void FN(begin)(FN(running) * r, int kind, int n) {
  for (int i = 0; i < n; i++) r->run[i] = FN(nothing)(kind), r->more[i] = 0, r->wide[i] = 0;
}

/* One position further, of n scans side by side. */
static void FN(step)(int kind, int exclusive, FN(running) * r, REAL *y, const REAL *x, const REAL *factor, int n) {
  REAL *run = r->run, *more = r->more;
  double *wide = r->wide;
#define LINE(...)                       \
  TFU_VECTORISE                         \
  for (int i = 0; i < n; i++) {         \
    const REAL before = run[i];         \
    const REAL v = x[i];                \
    run[i] = __VA_ARGS__;               \
    y[i] = exclusive ? before : run[i]; \
  }
  switch (kind) {
    case TFU_SCAN_SUM: LINE(before + v) break;
    case TFU_SCAN_PROD: LINE(before * v) break;
    case TFU_SCAN_MAX: LINE(LARGER(before, v)) break;
#if FLOATS
    case TFU_SCAN_RECURRENCE:
      for (int i = 0; i < n; i++) {
        const double before = wide[i];
        wide[i] = (double)factor[i] * before + (double)x[i];
        y[i] = (REAL)(exclusive ? before : wide[i]);
      }
      break;
    case TFU_SCAN_LSE:
      for (int i = 0; i < n; i++) {
        const REAL before = run[i], v = x[i], sum = more[i];
        const REAL high = before >= v ? before : v, low = before >= v ? v : before;
        const REAL part = low == high ? 1 : FN(exp_of)(low - high);
        const REAL next = before >= v ? sum + part : sum * part + 1;
        y[i] = (exclusive ? before : high) + (REAL)log((double)(exclusive ? sum : next));
        run[i] = high;
        more[i] = next;
      }
      break;
#endif
    default: (void)factor, (void)more, (void)wide; break;
  }
#undef LINE
}

/* A row of one scan, n values of it: the running result stays in a register. */
static void FN(along)(int kind, int exclusive, FN(running) * run, REAL *y, const REAL *x, const REAL *factor, int n) {
  REAL r = run->run[0];
#define ROW(...)                       \
  if (exclusive)                       \
    for (int i = 0; i < n; i++) {      \
      const REAL before = r, v = x[i]; \
      r = __VA_ARGS__;                 \
      y[i] = before;                   \
    }                                  \
  else                                 \
    for (int i = 0; i < n; i++) {      \
      const REAL before = r, v = x[i]; \
      y[i] = r = __VA_ARGS__;          \
    }
  switch (kind) {
    case TFU_SCAN_SUM: ROW(before + v) break;
    case TFU_SCAN_PROD: ROW(before * v) break;
    case TFU_SCAN_MAX: ROW(LARGER(before, v)) break;
    default:
      for (int i = 0; i < n; i++) FN(step)(kind, exclusive, run, y + i, x + i, factor ? factor + i : NULL, 1);
      return;
  }
#undef ROW
  run->run[0] = r;
}

static void FN(reverse)(REAL *to, const REAL *from, int n) {
  for (int i = 0; i < n; i++) to[i] = from[n - 1 - i];
}

/* A row of the last axis, tile by tile; in reverse, through buffers that are the other way round. */
static void FN(row)(const job *j, int64_t row) {
  const tfu_tensor *x = &j->call->in[0], *factor = &j->call->in[1], *y = &j->call->out[0];
  const int64_t length = j->s.length, first = row * length;
  const int recurs = j->s.kind == TFU_SCAN_RECURRENCE;
  FN(running) run;
  REAL room[3][TFU_TILE], reversed[3][TFU_TILE];
  FN(begin)(&run, j->s.kind, 1);
  for (TFU_EACH_TILE(i, left, 0, length)) {
    const int n = (int)left;
    const int64_t at = first + (j->s.reverse ? length - i - n : i);
    const REAL *v = FN(tfu_load)(x->data, x->dtype, at, n, room[0]), *f = NULL;
    REAL *to = FN(tfu_room)(y->data, y->dtype, at, room[2]);
    if (recurs) f = FN(tfu_load)(factor->data, factor->dtype, at, n, room[1]);
    if (j->s.reverse) {
      FN(reverse)(reversed[0], v, n);
      if (recurs) FN(reverse)(reversed[1], f, n);
      FN(along)(j->s.kind, j->s.exclusive, &run, reversed[2], reversed[0], reversed[1], n);
      FN(reverse)(to, reversed[2], n);
    } else {
      FN(along)(j->s.kind, j->s.exclusive, &run, to, v, f, n);
    }
    FN(tfu_store)(y->data, y->dtype, at, n, to);
  }
}

/* A strip of columns, position by position. */
static void FN(strip)(const job *j, int64_t outer, int64_t column, int n) {
  const tfu_tensor *x = &j->call->in[0], *factor = &j->call->in[1], *y = &j->call->out[0];
  const int recurs = j->s.kind == TFU_SCAN_RECURRENCE;
  FN(running) run;
  REAL room[3][TFU_TILE];
  FN(begin)(&run, j->s.kind, n);
  for (int64_t i = 0; i < j->s.length; i++) {
    const int64_t position = outer * j->s.length + (j->s.reverse ? j->s.length - 1 - i : i),
                  at = position * j->s.inner + column;
    const REAL *v = FN(tfu_load)(x->data, x->dtype, at, n, room[0]);
    const REAL *f = recurs ? FN(tfu_load)(factor->data, factor->dtype, at, n, room[1]) : NULL;
    REAL *to = FN(tfu_room)(y->data, y->dtype, at, room[2]);
    FN(step)(j->s.kind, j->s.exclusive, &run, to, v, f, n);
    FN(tfu_store)(y->data, y->dtype, at, n, to);
  }
}

static void FN(scan_range)(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  for (int64_t i = begin; i < end; i++) {
    const int64_t column = i % j->strips * TFU_TILE, left = j->s.inner - column;
    if (j->s.inner == 1) FN(row)(j, i);
    else FN(strip)(j, i / j->strips, column, left < TFU_TILE ? (int)left : TFU_TILE);
  }
}
#endif
