/* Sort, Argsort and Unsort on the CPU: a thread sorts a row, or all threads one that is long. */
#ifndef KEY
#include "kernels/core/arithmetic.h"
#include "kernels/sorting/radix_cpu.h"

/* What a Sort or Argsort works on. */
typedef struct sort_run {
  const tfu_tensor *x;
  tfu_tensor *y;
  tfu_order order;
  int64_t rows, cols, per_task;
  char *room; /* of each task: two buffers of keys, then, if wanted, two of indices */
  size_t room_of_task;
  int wants_indices;
} sort_run;

static size_t line_bytes(const sort_run *r) {
  const size_t n = (size_t)(r->cols + 7) / 8 * 8;
  return 2 * n * tfu_dtype_size(r->x->dtype) + (r->wants_indices ? 2 * n * sizeof(uint32_t) : 0);
}

#define TFU_SELF "kernels/sorting/sort_cpu.c"
#include "kernels/sorting/by_key.h"

static tfu_code sort(tfu_call *call, int wants_indices) {
  const tfu_tensor *x = &call->in[0];
  sort_run r = {.x = x,
                .y = &call->out[0],
                .order = tfu_order_of(x->dtype, call->attr[0].b, wants_indices),
                .rows = tfu_rows(&x->shape),
                .cols = tfu_cols(&x->shape),
                .wants_indices = wants_indices};
  TFU_REQUIRE(call->err, r.cols <= (wants_indices ? INT32_MAX : UINT32_MAX),
              "a row must have less than 2^%d values, got %lld", wants_indices ? 31 : 32, (long long)r.cols);
  const int64_t most = (int64_t)tfu_threads() * 4;
  const int together = r.cols >= TFU_LONG_LINE && r.rows < tfu_threads();
  r.per_task = divide_up(r.rows, most);
  const int64_t tasks = together ? 1 : divide_up(r.rows, r.per_task);
  const size_t counts = together ? (size_t)tfu_radix_counts() * sizeof(int64_t) : 0;
  r.room_of_task = line_bytes(&r);
  void *room;
  TFU_TRY(tfu_scratch(call, r.room_of_task * (size_t)tasks + counts, &room));
  r.room = room;
  if (!together) {
    void (*const task[])(void *, int64_t) = {sort_rows_16, sort_rows_32, sort_rows_64};
    tfu_parallel(tasks, task[tfu_dtype_size(x->dtype) / 4], &r);
    return TFU_OK;
  }
  for (int64_t row = 0; row < r.rows; row++)
    TFU_BY_KEY(x->dtype, sort_row_together, &r, row, (int64_t *)(r.room + r.room_of_task));
  return TFU_OK;
}

tfu_code tfu_sort_cpu(tfu_call *call) { return sort(call, 0); }
tfu_code tfu_argsort_cpu(tfu_call *call) { return sort(call, 1); }

/* ---- Unsort ---- */

typedef struct unsort_run {
  const tfu_call *call;
  int64_t cols, k;
  int bad; /* an index that is none: all tasks that meet one write the same */
} unsort_run;

static void unsort_rows(void *arg, int64_t row, int64_t end) {
  unsort_run *r = arg;
  const size_t size = tfu_dtype_size(r->call->out[0].dtype);
  for (; row < end; row++) {
    const int32_t *indices = (const int32_t *)r->call->in[1].data + row * r->k;
    const char *dy = (const char *)r->call->in[0].data + (size_t)(row * r->k) * size;
    char *dx = (char *)r->call->out[0].data + (size_t)(row * r->cols) * size;
    if (r->k < r->cols) memset(dx, 0, (size_t)r->cols * size);
    for (int64_t j = 0; j < r->k; j++) {
      if (indices[j] < 0 || indices[j] >= r->cols) {
        __atomic_store_n(&r->bad, 1, __ATOMIC_RELAXED);
        continue;
      }
      if (size == 2) ((uint16_t *)dx)[indices[j]] = ((const uint16_t *)dy)[j];
      else if (size == 4) ((uint32_t *)dx)[indices[j]] = ((const uint32_t *)dy)[j];
      else ((uint64_t *)dx)[indices[j]] = ((const uint64_t *)dy)[j];
    }
  }
}

tfu_code tfu_unsort_cpu(tfu_call *call) {
  const tfu_shape *x = &call->in[2].shape;
  unsort_run r = {.call = call, .cols = tfu_cols(x), .k = tfu_cols(&call->in[1].shape)};
  tfu_parallel_ranges(tfu_rows(x), divide_up(tfu_rows(x), (int64_t)tfu_threads() * 4), unsort_rows, &r);
  TFU_REQUIRE(call->err, !r.bad, "indices must be those of values, from 0 up to %lld", (long long)r.cols);
  return TFU_OK;
}
#else

static KEYED(tfu_line) KEYED(line_in)(const sort_run *r, char *room) {
  const int64_t n = (r->cols + 7) / 8 * 8;
  KEYED(tfu_line) l = {.keys = (KEY *)room, .n = r->cols};
  l.other_keys = l.keys + n;
  if (!r->wants_indices) return l;
  l.indices = (uint32_t *)(l.other_keys + n);
  l.other_indices = l.indices + n;
  return l;
}

static void KEYED(fill)(const sort_run *r, int64_t row, KEYED(tfu_line) * l) {
  const KEY *x = (const KEY *)r->x->data + row * r->cols;
  for (int64_t i = 0; i < l->n; i++) l->keys[i] = KEYED(tfu_to_key)(x[i], r->order);
  for (int64_t i = 0; l->indices && i < l->n; i++) l->indices[i] = (uint32_t)i;
}

static void KEYED(give)(const sort_run *r, int64_t row, const KEYED(tfu_line) * l) {
  if (r->wants_indices) {
    memcpy((int32_t *)r->y->data + row * r->cols, l->indices, (size_t)l->n * sizeof(int32_t));
    return;
  }
  KEY *y = (KEY *)r->y->data + row * r->cols;
  for (int64_t i = 0; i < l->n; i++) y[i] = KEYED(tfu_from_key)(l->keys[i], r->order);
}

static void KEYED(sort_rows)(void *arg, int64_t task) {
  const sort_run *r = arg;
  const int64_t end = least((task + 1) * r->per_task, r->rows);
  for (int64_t row = task * r->per_task; row < end; row++) {
    KEYED(tfu_line) line = KEYED(line_in)(r, r->room + (size_t)task * r->room_of_task);
    KEYED(fill)(r, row, &line);
    KEYED(tfu_radix)(&line);
    KEYED(give)(r, row, &line);
  }
}

static void KEYED(sort_row_together)(const sort_run *r, int64_t row, int64_t *counts) {
  KEYED(tfu_line) line = KEYED(line_in)(r, r->room);
  KEYED(fill)(r, row, &line);
  KEYED(tfu_radix_together)(&line, counts);
  KEYED(give)(r, row, &line);
}
#endif
