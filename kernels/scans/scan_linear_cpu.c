/* scan_linear on the CPU: columns side by side go through a step together; a task has a strip of them, TFU_TILE at
 * most, from their first position to their last. A column of complex numbers is two of REALs, real parts and imaginary
 * ones. */
#ifndef REAL
#include "kernels/scans/scan_linear.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"

typedef struct job {
  scan_linear_args a;
  tfu_dtype dtype;
  int complex;
  int64_t strips; /* of an outer position */
} job;

#define TFU_SELF "kernels/scans/scan_linear_cpu.c"
#include "kernels/core/cpu/stamp.h"

static tfu_code run(tfu_call *call) {
  job j = {.a = tfu_scan_linear_of(call), .dtype = call->in[0].dtype};
  if (j.a.columns == 0) return TFU_OK;
  if (j.dtype == TFU_C64 || j.dtype == TFU_C128) {
    j.complex = 1, j.dtype = tfu_real(j.dtype);
    j.a.columns *= 2, j.a.inner *= 2;
  }
  const int64_t width = least(j.a.inner, TFU_TILE);
  j.strips = divide_up(j.a.inner, width);
  const int64_t each = divide_up(tfu_task_size(j.a.columns * j.a.length, TFU_TILE), j.a.length * width + 1);
  tfu_parallel_ranges(j.a.columns / j.a.inner * j.strips, each, TFU_OF_REAL(call, scan_strips), &j);
  return TFU_OK;
}
tfu_code tfu_scan_linear_cpu(tfu_call *call) { return run(call); }
tfu_code tfu_scan_linear_grad_cpu(tfu_call *call) { return run(call); }

#else

/* Steps of n columns that lie side by side. */
static void FN(forward)(const REAL *a, const REAL *b, REAL *s, REAL *y, int n) {
  TFU_VECTORISED(k, n) y[k] = s[k] = a[k] * s[k] + b[k];
}
static void FN(backward)(const REAL *a, const REAL *dy, const REAL *h, REAL *s, REAL *da, REAL *db, int n) {
  TFU_VECTORISED(k, n) {
    const REAL g = dy[k] + s[k], f = a[k];
    da[k] = g * h[k];
    db[k] = g;
    s[k] = f * g;
  }
}
/* The same of n / 2 complex columns. */
static void FN(complex_forward)(const REAL *a, const REAL *b, REAL *s, REAL *y, int n) {
  TFU_VECTORISED(k, n / 2) {
    const REAL re = a[2 * k] * s[2 * k] - a[2 * k + 1] * s[2 * k + 1] + b[2 * k];
    const REAL im = a[2 * k] * s[2 * k + 1] + a[2 * k + 1] * s[2 * k] + b[2 * k + 1];
    y[2 * k] = s[2 * k] = re;
    y[2 * k + 1] = s[2 * k + 1] = im;
  }
}
static void FN(complex_backward)(const REAL *a, const REAL *dy, const REAL *h, REAL *s, REAL *da, REAL *db, int n) {
  TFU_VECTORISED(k, n / 2) {
    const REAL a_re = a[2 * k], a_im = a[2 * k + 1], h_re = h[2 * k], h_im = h[2 * k + 1];
    const REAL re = dy[2 * k] + s[2 * k], im = dy[2 * k + 1] + s[2 * k + 1];
    da[2 * k] = re * h_re + im * h_im;
    da[2 * k + 1] = im * h_re - re * h_im;
    db[2 * k] = re;
    db[2 * k + 1] = im;
    s[2 * k] = re * a_re + im * a_im;
    s[2 * k + 1] = im * a_re - re * a_im;
  }
}

/* One position of n columns: `at` is where it is in the tensors, `column` where in the states at its ends. */
static void FN(step)(const job *j, REAL *s, int64_t at, int64_t column, int64_t i, int n) {
  const scan_linear_args *a = &j->a;
  REAL room[5][TFU_TILE];
  const REAL *factor = FN(tfu_load)(a->a, j->dtype, at, n, room[0]), *b = FN(tfu_load)(a->b, j->dtype, at, n, room[1]);
  REAL *y = FN(tfu_room)(a->y, j->dtype, at, room[2]);
  if (!a->back) {
    (j->complex ? FN(complex_forward) : FN(forward))(factor, b, s, y, n);
  } else {
    const int first = i == a->length - 1; /* of the states: it is the last here */
    REAL *da = FN(tfu_room)(a->da, j->dtype, at, room[3]);
    if (first) FN(tfu_copy)(room[4], a->initial, j->dtype, column, n);
    else FN(tfu_copy)(room[4], a->h, j->dtype, at + (a->flipped ? -a->inner : a->inner), n);
    (j->complex ? FN(complex_backward) : FN(backward))(factor, b, room[4], s, da, y, n);
    FN(tfu_store)(a->da, j->dtype, at, n, da);
  }
  FN(tfu_store)(a->y, j->dtype, at, n, y);
}

static void FN(scan_strips)(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  const scan_linear_args *a = &j->a;
  for (int64_t strip = begin; strip < end; strip++) {
    const int64_t outer = strip / j->strips, inner = strip % j->strips * TFU_TILE, column = outer * a->inner + inner;
    const int n = (int)least(TFU_TILE, a->inner - inner);
    REAL s[TFU_TILE];
    FN(tfu_copy)(s, a->back ? NULL : a->initial, j->dtype, column, n);
    for (int64_t i = 0; i < a->length; i++) {
      const int64_t place = a->flipped ? a->length - 1 - i : i;
      FN(step)(j, s, (outer * a->length + place) * a->inner + inner, column, i, n);
    }
    if (a->dinitial) FN(tfu_store)(a->dinitial, j->dtype, column, n, s);
  }
}
#endif
