/* TopK on the CPU. A thread walks along a row and keeps what is greater than the least of the k greatest so far; when
 * its room is full it sorts that, keeps the first k, and goes on. What is equal to the least comes later in the row, so
 * it is left out. */
#ifndef KEY
#include "kernels/core/arithmetic.h"
#include "kernels/sorting/radix_cpu.h"

/* Keys that there is room for, at least: a 16th of a row, so that few sorts serve a row in which every value is greater
 * than those before it, but no more than the first-level cache holds, nor fewer than make a sort worth its while. */
enum { LEAST_ROOM = 48, MOST_ROOM = 1024 };

typedef struct top_run {
  const tfu_tensor *x;
  void *values;
  int32_t *indices;
  tfu_order order;
  int64_t rows, cols, k, per_task, room_keys;
  char *room;
  size_t room_of_task;
} top_run;

#define TFU_SELF "kernels/sorting/top_k_cpu.c"
#include "kernels/sorting/by_key.h"

tfu_code tfu_top_k_cpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0];
  top_run r = {.x = x,
               .values = call->out[0].data,
               .indices = call->out[1].data,
               .order = tfu_order_of(x->dtype, 1, 1),
               .rows = tfu_rows(&x->shape),
               .cols = tfu_cols(&x->shape),
               .k = tfu_cols(&call->out[0].shape)};
  TFU_REQUIRE(call->err, r.cols <= INT32_MAX, "a row must have less than 2^31 values, got %lld", (long long)r.cols);
  r.room_keys = r.cols / 16 < LEAST_ROOM ? LEAST_ROOM : r.cols / 16 < MOST_ROOM ? r.cols / 16 : MOST_ROOM;
  if (r.room_keys < 4 * r.k) r.room_keys = 4 * r.k;
  if (r.room_keys > r.cols) r.room_keys = (r.cols + 7) / 8 * 8;
  r.room_of_task = 2 * (size_t)r.room_keys * (tfu_dtype_size(x->dtype) + sizeof(uint32_t));
  const int64_t most = (int64_t)tfu_threads() * 4;
  r.per_task = divide_up(r.rows, most);
  const int64_t tasks = divide_up(r.rows, r.per_task);
  void *room;
  TFU_TRY(tfu_scratch(call, r.room_of_task * (size_t)tasks, &room));
  r.room = room;
  void (*const task[])(void *, int64_t) = {top_rows_16, top_rows_32, top_rows_64};
  tfu_parallel(tasks, task[tfu_dtype_size(x->dtype) / 4], &r);
  return TFU_OK;
}
#else

/* Keys are those of a descending order: the least key is the greatest value. */
static void KEYED(top_row)(const top_run *r, int64_t row, char *room) {
  const KEY *x = (const KEY *)r->x->data + row * r->cols;
  KEYED(tfu_line) l = {.keys = (KEY *)room};
  l.other_keys = l.keys + r->room_keys;
  l.indices = (uint32_t *)(l.other_keys + r->room_keys);
  l.other_indices = l.indices + r->room_keys;
  int64_t i = 0;
  for (; i < r->cols && l.n < 2 * r->k; i++, l.n++) {
    l.keys[l.n] = KEYED(tfu_to_key)(x[i], r->order);
    l.indices[l.n] = (uint32_t)i;
  }
  KEYED(tfu_radix)(&l);
  while (i < r->cols) {
    l.n = r->k;
    const KEY least = l.keys[r->k - 1];
    while (i < r->cols && l.n < r->room_keys) {
      /* Most are not taken: of 32, first only whether any is. */
      enum { RUN = 32 };
      if (r->cols - i >= RUN && l.n + RUN <= r->room_keys) {
        KEY keys[RUN], any = 0;
        for (int j = 0; j < RUN; j++) keys[j] = KEYED(tfu_to_key)(x[i + j], r->order);
        for (int j = 0; j < RUN; j++) any |= keys[j] < least;
        for (int j = 0; any && j < RUN; j++) {
          l.keys[l.n] = keys[j];
          l.indices[l.n] = (uint32_t)(i + j);
          l.n += keys[j] < least;
        }
        i += RUN;
        continue;
      }
      if (r->cols - i >= RUN && l.n > r->k) break; /* full but for less than a run */
      const KEY key = KEYED(tfu_to_key)(x[i], r->order);
      l.keys[l.n] = key;
      l.indices[l.n] = (uint32_t)i++;
      l.n += key < least;
    }
    KEYED(tfu_radix)(&l);
  }
  for (int64_t j = 0; j < r->k; j++) {
    r->indices[row * r->k + j] = (int32_t)l.indices[j];
    ((KEY *)r->values)[row * r->k + j] = x[l.indices[j]];
  }
}

static void KEYED(top_rows)(void *arg, int64_t task) {
  const top_run *r = arg;
  const int64_t end = (task + 1) * r->per_task < r->rows ? (task + 1) * r->per_task : r->rows;
  for (int64_t row = task * r->per_task; row < end; row++)
    KEYED(top_row)(r, row, r->room + (size_t)task * r->room_of_task);
}
#endif
