/* The first place of the greatest or least value on the CPU; tasks are rows, or strips of columns. Of values that are
 * all the lowest finite one or less, or NaN, the place is 0. */
#include "kernels/core/cpu/rows_cpu.h"
#include "kernels/reductions/reduce.h"

typedef struct job {
  const tfu_tensor *x, *y;
  int64_t outer, count, inner, strips, per_task;
  int least;
} job;

static void store(const job *j, int64_t at, int64_t place) {
  if (j->y->dtype == TFU_I32) ((int32_t *)j->y->data)[at] = (int32_t)place;
  else ((int64_t *)j->y->data)[at] = place;
}

static double lowest(tfu_dtype dtype) {
  return dtype == TFU_F16    ? -65504.0
         : dtype == TFU_BF16 ? -0x1.fep127
         : dtype == TFU_F64  ? -0x1.fffffffffffffp1023
                             : -0x1.fffffep127;
}

/* For each type of values: columns' best ones, row by row, and rows, whose lanes are columns. load(at, n) gives values.
 */
#define STAMP(TYPE, tag, START, TURN, LOAD)                                           \
  static void columns_##tag(const job *j, int64_t outer, int64_t column, int n) {     \
    TYPE best[TFU_TILE], buffer[TFU_TILE];                                            \
    int64_t place[TFU_TILE] = {0};                                                    \
    (void)buffer;                                                                     \
    for (int i = 0; i < n; i++) best[i] = (START);                                    \
    for (int64_t row = 0; row < j->count; row++) {                                    \
      const int64_t at = (outer * j->count + row) * j->inner + column;                \
      const TYPE *v = (LOAD);                                                         \
      for (int i = 0; i < n; i++) {                                                   \
        const TYPE value = j->least ? (TURN) : v[i];                                  \
        const int more = value > best[i];                                             \
        best[i] = more ? value : best[i];                                             \
        place[i] = more ? row : place[i];                                             \
      }                                                                               \
    }                                                                                 \
    for (int i = 0; i < n; i++) store(j, outer * j->inner + column + i, place[i]);    \
  }                                                                                   \
  static void row_##tag(const job *j, int64_t row) {                                  \
    TYPE best = (START), buffer[TFU_TILE];                                            \
    int64_t place = 0;                                                                \
    (void)buffer;                                                                     \
    for (int64_t first = 0; first < j->count; first += TFU_TILE) {                    \
      const int n = (int)(j->count - first < TFU_TILE ? j->count - first : TFU_TILE); \
      const int64_t at = row * j->count + first;                                      \
      const TYPE *v = (LOAD);                                                         \
      TYPE lane[TFU_LANES];                                                           \
      for (int k = 0; k < TFU_LANES; k++) lane[k] = best;                             \
      for (int base = 0; base + TFU_LANES <= n; base += TFU_LANES)                    \
        for (int k = 0; k < TFU_LANES; k++) {                                         \
          const int i = base + k;                                                     \
          const TYPE value = j->least ? (TURN) : v[i];                                \
          lane[k] = value > lane[k] ? value : lane[k];                                \
        }                                                                             \
      TYPE top = best;                                                                \
      for (int k = 0; k < TFU_LANES; k++) top = lane[k] > top ? lane[k] : top;        \
      for (int i = n - n % TFU_LANES; i < n; i++) {                                   \
        const TYPE value = j->least ? (TURN) : v[i];                                  \
        top = value > top ? value : top;                                              \
      }                                                                               \
      if (!(top > best)) continue;                                                    \
      best = top;                                                                     \
      int i = 0;                                                                      \
      while ((j->least ? (TURN) : v[i]) != top) i++;                                  \
      place = first + i;                                                              \
    }                                                                                 \
    store(j, row, place);                                                             \
  }

STAMP(float, f32, (float)lowest(j->x->dtype), -v[i], tfu_load_f32(j->x->data, j->x->dtype, at, n, buffer))
STAMP(double, f64, lowest(TFU_F64), -v[i], (const double *)j->x->data + at)
STAMP(int32_t, i32, INT32_MIN, ~v[i], (const int32_t *)j->x->data + at)
STAMP(int64_t, i64, INT64_MIN, ~v[i], (const int64_t *)j->x->data + at)

static void task(void *arg, int64_t number) {
  const job *j = arg;
  const tfu_dtype dtype = j->x->dtype;
  if (j->inner == 1) {
    for (int64_t row = number * j->per_task; row < j->outer && row < (number + 1) * j->per_task; row++)
      (dtype == TFU_F64 ? row_f64 : dtype == TFU_I32 ? row_i32 : dtype == TFU_I64 ? row_i64 : row_f32)(j, row);
    return;
  }
  const int64_t outer = number / j->strips, column = number % j->strips * TFU_TILE;
  const int n = (int)(j->inner - column < TFU_TILE ? j->inner - column : TFU_TILE);
  (dtype == TFU_F64   ? columns_f64
   : dtype == TFU_I32 ? columns_i32
   : dtype == TFU_I64 ? columns_i64
                      : columns_f32)(j, outer, column, n);
}

tfu_code tfu_arg_reduce_cpu(tfu_call *call) {
  const tfu_tensor *x = &call->in[0];
  const int axis = (int)(call->attr[1].i < 0 ? call->attr[1].i + x->shape.rank : call->attr[1].i);
  job j = {
      .x = x, .y = &call->out[0], .outer = 1, .count = x->shape.dim[axis], .inner = 1, .least = call->attr[0].i == 1};
  for (int i = 0; i < axis; i++) j.outer *= x->shape.dim[i];
  for (int i = axis + 1; i < x->shape.rank; i++) j.inner *= x->shape.dim[i];
  j.strips = (j.inner + TFU_TILE - 1) / TFU_TILE;
  const int64_t size = tfu_task_size(j.outer * j.count * j.inner, 1024);
  j.per_task = j.count < size ? size / j.count : 1;
  tfu_parallel(j.inner == 1 ? (j.outer + j.per_task - 1) / j.per_task : j.outer * j.strips, task, &j);
  return TFU_OK;
}
