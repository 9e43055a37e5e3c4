/* The first index of the greatest or least value on the CPU; tasks are rows, or strips of columns. Of values that are
 * all the lowest finite one or less, or NaN, the index is 0. */
#include "kernels/core/arithmetic.h"
#include "kernels/reductions/reduce_cpu.h"

typedef struct job {
  const tfu_tensor *x, *y;
  int64_t outer, count, inner, strips, per_task;
  int least;
} job;

static void store(const job *j, int64_t at, int64_t index) {
  if (j->y->dtype == TFU_I32) ((int32_t *)j->y->data)[at] = (int32_t)index;
  else ((int64_t *)j->y->data)[at] = index;
}

static double lowest(tfu_dtype dtype) {
  return dtype == TFU_F16    ? -65504.0
         : dtype == TFU_BF16 ? -0x1.fep127
         : dtype == TFU_F64  ? -0x1.fffffffffffffp1023
                             : -0x1.fffffep127;
}

/* For each type of values: columns' best ones, row by row; and rows, whose best value is found before its index. v are
 * the n values from x[at] on. */
#define STAMP(TYPE, tag, START, NEGATED, LOAD, TOP)                                   \
  static void columns_##tag(const job *j, int64_t outer, int64_t column, int n) {     \
    TYPE best[TFU_TILE], buffer[TFU_TILE];                                            \
    int64_t index[TFU_TILE] = {0};                                                    \
    (void)buffer;                                                                     \
    for (int i = 0; i < n; i++) best[i] = (START);                                    \
    for (int64_t row = 0; row < j->count; row++) {                                    \
      const int64_t at = (outer * j->count + row) * j->inner + column;                \
      const TYPE *v = (LOAD);                                                         \
      for (int i = 0; i < n; i++) {                                                   \
        const TYPE value = j->least ? (NEGATED) : v[i];                               \
        const int more = value > best[i];                                             \
        best[i] = more ? value : best[i];                                             \
        index[i] = more ? row : index[i];                                             \
      }                                                                               \
    }                                                                                 \
    for (int i = 0; i < n; i++) store(j, outer * j->inner + column + i, index[i]);    \
  }                                                                                   \
  static void row_##tag(const job *j, int64_t row) {                                  \
    TYPE best = (START), buffer[TFU_TILE];                                            \
    int64_t index = 0;                                                                \
    (void)buffer;                                                                     \
    for (int64_t first = 0; first < j->count; first += TFU_TILE) {                    \
      const int n = (int)(j->count - first < TFU_TILE ? j->count - first : TFU_TILE); \
      const int64_t at = row * j->count + first;                                      \
      const TYPE *v = (LOAD), top = TOP(v, n, j->least);                              \
      int i = 0;                                                                      \
      if (!(top > best)) continue;                                                    \
      best = top;                                                                     \
      while ((j->least ? (NEGATED) : v[i]) != top) i++;                               \
      index = first + i;                                                              \
    }                                                                                 \
    store(j, row, index);                                                             \
  }

static float top_f32(const float *v, int n, int negated) { return tfu_top_f32(v, n, negated, &(int){0}); }
static double top_f64(const double *v, int n, int negated) { return tfu_top_f64(v, n, negated, &(int){0}); }
static int32_t top_i32(const int32_t *v, int n, int negated) {
  int32_t top = INT32_MIN;
  for (int i = 0; i < n; i++) top = (v[i] ^ -negated) > top ? v[i] ^ -negated : top;
  return top;
}
static int64_t top_i64(const int64_t *v, int n, int negated) {
  int64_t top = INT64_MIN;
  for (int i = 0; i < n; i++) top = (v[i] ^ -(int64_t)negated) > top ? v[i] ^ -(int64_t)negated : top;
  return top;
}

STAMP(float, f32, (float)lowest(j->x->dtype), -v[i], tfu_load_f32(j->x->data, j->x->dtype, at, n, buffer), top_f32)
STAMP(double, f64, lowest(TFU_F64), -v[i], (const double *)j->x->data + at, top_f64)
STAMP(int32_t, i32, INT32_MIN, ~v[i], (const int32_t *)j->x->data + at, top_i32)
STAMP(int64_t, i64, INT64_MIN, ~v[i], (const int64_t *)j->x->data + at, top_i64)

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
  j.strips = divide_up(j.inner, TFU_TILE);
  const int64_t size = tfu_task_size(j.outer * j.count * j.inner, 1024);
  j.per_task = j.count < size ? size / j.count : 1;
  tfu_parallel(j.inner == 1 ? divide_up(j.outer, j.per_task) : j.outer * j.strips, task, &j);
  return TFU_OK;
}
