#include "kernels/attention/float8_pages.h"

#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/cpu.h"
#include "kernels/core/cpu/parallel.h"
#include "kernels/core/float8.h"

enum { PART = 256, TASK = 1 << 14 }; /* elements that are converted at one time, and of a task */

typedef struct narrow_job {
  tfu_dtype dtype;
  const narrow_rows_args *a;
} narrow_job;

static void narrow_part(const narrow_job *j, int64_t at, int n, uint8_t *to) {
  if (j->dtype == TFU_F64) {
    for (int i = 0; i < n; i++) to[i] = (uint8_t)float8_code((float)((const double *)j->a->from)[at + i], 0);
    return;
  }
  float buffer[PART];
  const float *values = tfu_load_f32(j->a->from, j->dtype, at, n, buffer);
  for (int i = 0; i < n; i++) to[i] = (uint8_t)float8_code(values[i], 0);
}

static void narrow(void *arg, int64_t begin, int64_t end) {
  const narrow_job *j = arg;
  const int64_t span = j->a->span.by;
  for (int64_t r = begin; r < end; r++) {
    const int64_t number = j->a->number[r];
    if (number < 0 || number >= j->a->rows) continue;
    for (int64_t at = 0; at < span; at += PART)
      narrow_part(j, r * span + at, (int)least(PART, span - at), j->a->to + number * span + at);
  }
}

tfu_code tfu_narrow_rows_cpu(tfu_call *call, tfu_dtype dtype, const narrow_rows_args *a) {
  (void)call;
  narrow_job j = {.dtype = dtype, .a = a};
  const int64_t span = a->span.by;
  if (a->elements) tfu_parallel_ranges(a->elements / span, span < TASK ? TASK / span : 1, narrow, &j);
  return TFU_OK;
}

typedef struct widen_job {
  tfu_dtype dtype;
  const widen_pages_args *a;
} widen_job;

static void widen_page(const widen_job *j, int which, const uint8_t *from, int64_t to) {
  for (int64_t at = 0; at < j->a->elements[which]; at += PART) {
    const int n = (int)least(PART, j->a->elements[which] - at);
    float values[PART];
    for (int i = 0; i < n; i++) values[i] = float8_value(from[at + i], 0);
    if (j->dtype == TFU_F64)
      for (int i = 0; i < n; i++) ((double *)j->a->wide[which])[to + at + i] = values[i];
    else tfu_store_f32(j->a->wide[which], j->dtype, to + at, n, values);
  }
}

static void widen(void *arg, int64_t begin, int64_t end) {
  const widen_job *j = arg;
  const widen_pages_args *a = j->a;
  for (int64_t page = begin; page < end; page++) {
    const int64_t number = a->table[page], first = page % a->width * a->size;
    const int there = first < a->lengths[page / a->width] && number >= 0 && number < a->there;
    a->numbers[page] = there ? page : -1;
    for (int which = 0; there && which < 2; which++)
      widen_page(j, which, a->pages[which] + number * a->elements[which], page * a->elements[which]);
  }
}

tfu_code tfu_widen_pages_cpu(tfu_call *call, tfu_dtype dtype, const widen_pages_args *a) {
  (void)call;
  widen_job j = {.dtype = dtype, .a = a};
  if (a->count) tfu_parallel_ranges(a->count, 1, widen, &j);
  return TFU_OK;
}
