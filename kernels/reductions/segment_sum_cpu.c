/* Sums of segments on the CPU. The rows are put in the order of their ids first, by counting them; then each segment is
 * summed up by one task, in order: the same bits for any number of threads. */
#include "kernels/core/arithmetic.h"
#include "kernels/core/cpu/rows_cpu.h"

typedef struct job {
  const tfu_tensor *data, *y;
  int64_t rows, inner, segments, tasks, strips;
  const int64_t *offsets, *order; /* where segments begin, and the rows in order, or NULL: as they are */
} job;

static tfu_code check(tfu_call *call, const tfu_tensor *ids, int64_t segments, int sorted) {
  const int64_t n = ids->shape.dim[0];
  for (int64_t i = 1; sorted && i < n; i++)
    TFU_REQUIRE(call->err, tfu_integer(ids, i - 1) <= tfu_integer(ids, i),
                "segment_ids must be sorted, got %lld before %lld", (long long)tfu_integer(ids, i - 1),
                (long long)tfu_integer(ids, i));
  for (int64_t i = 0; i < n; i++)
    TFU_REQUIRE(call->err, tfu_integer(ids, i) < segments && (tfu_integer(ids, i) >= 0 || !sorted),
                "segment_ids must be from 0 up to the %lld segments, got %lld", (long long)segments,
                (long long)tfu_integer(ids, i));
  return TFU_OK;
}

/* Stable: rows of one segment keep their order. */
static tfu_code put_in_order(tfu_call *call, const tfu_tensor *ids, int sorted, job *j) {
  int64_t *offsets, *order;
  TFU_SCRATCH(call, j->segments + 2, offsets);
  memset(offsets, 0, (size_t)(j->segments + 2) * sizeof *offsets);
  for (int64_t i = 0; i < j->rows; i++)
    if (tfu_integer(ids, i) >= 0) offsets[tfu_integer(ids, i) + 2]++;
  for (int64_t s = 0; s <= j->segments; s++)
    offsets[s + 1] += offsets[s]; /* [s + 1]: where s begins, and what is filled */
  j->offsets = offsets + 1;
  if (sorted) return TFU_OK;
  TFU_SCRATCH(call, j->rows, order);
  for (int64_t i = 0; i < j->rows; i++)
    if (tfu_integer(ids, i) >= 0) order[offsets[tfu_integer(ids, i) + 1]++] = i;
  j->offsets = offsets; /* filled, they are where the next ones begin */
  j->order = order;
  return TFU_OK;
}

/* Row number i of the order, from column col on, as an element of data. */
static inline int64_t place(const job *j, int64_t i, int64_t col) {
  return (j->order ? j->order[i] : i) * j->inner + col;
}

/* Columns col .. col + n of one segment: float32 and narrower, four rows at a time, added in float for some rows and
 * beyond that in double; */
static void sum_floats(const job *j, int64_t segment, int64_t col, int n) {
  enum { FOUR = 4, ROWS = 32 };
  const tfu_tensor *data = j->data, *y = j->y;
  float buffer[FOUR][TFU_TILE], part[TFU_TILE];
  double sum[TFU_TILE];
  const int64_t begin = j->offsets[segment], end = j->offsets[segment + 1];
  const int many = end - begin > ROWS;
  memset(part, 0, (size_t)n * sizeof *part);
  memset(sum, 0, many ? (size_t)n * sizeof *sum : 0);
  for (int64_t i = begin; i < end;) {
    const int rows = end - i < FOUR ? 1 : FOUR;
    const float *v[FOUR];
    for (int r = 0; r < rows; r++) v[r] = tfu_load_f32(data->data, data->dtype, place(j, i + r, col), n, buffer[r]);
    if (rows == 1)
      for (int k = 0; k < n; k++) part[k] += v[0][k];
    else
      for (int k = 0; k < n; k++) part[k] += (v[0][k] + v[1][k]) + (v[2][k] + v[3][k]);
    i += rows;
    if (!many || ((i - begin) % ROWS != 0 && i < end)) continue;
    for (int k = 0; k < n; k++) sum[k] += part[k], part[k] = 0;
  }
  for (int k = 0; k < n && many; k++) part[k] = (float)sum[k];
  tfu_store_f32(y->data, y->dtype, segment * j->inner + col, n, part);
}

/* and types that are added as they are. */
#define SUM(name, TYPE, WRAPPING)                                             \
  static void name(const job *j, int64_t segment, int64_t col, int n) {       \
    WRAPPING sum[TFU_TILE];                                                   \
    TYPE *y = (TYPE *)j->y->data + segment * j->inner + col;                  \
    memset(sum, 0, (size_t)n * sizeof *sum);                                  \
    for (int64_t i = j->offsets[segment]; i < j->offsets[segment + 1]; i++) { \
      const TYPE *v = (const TYPE *)j->data->data + place(j, i, col);         \
      for (int k = 0; k < n; k++) sum[k] += (WRAPPING)v[k];                   \
    }                                                                         \
    for (int k = 0; k < n; k++) y[k] = (TYPE)sum[k];                          \
  }
SUM(sum_doubles, double, double)
SUM(sum_i32, int32_t, uint32_t)
SUM(sum_i64, int64_t, uint64_t)

static void sum_segment(const job *j, int64_t segment, int64_t col, int n) {
  switch (j->data->dtype) {
    case TFU_F64: sum_doubles(j, segment, col, n); return;
    case TFU_I32: sum_i32(j, segment, col, n); return;
    case TFU_I64: sum_i64(j, segment, col, n); return;
    default: sum_floats(j, segment, col, n);
  }
}

/* The first segment that begins at a row or after it. */
static int64_t segment_from(const job *j, int64_t row) {
  int64_t low = 0, high = j->segments;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (j->offsets[middle] < row) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* The segments that begin within the task's share of the rows, those without rows after the last among them. Where
 * segments are few, tasks have strips of columns as well. */
static void task(void *arg, int64_t task) {
  const job *j = arg;
  const int64_t kept = j->offsets[j->segments], share = task / j->strips, width = divide_up(j->inner, j->strips);
  const int64_t left = task % j->strips * width, right = left + width < j->inner ? left + width : j->inner;
  const int64_t first = share ? segment_from(j, divide_up(kept * share, j->tasks)) : 0;
  const int64_t end = share + 1 < j->tasks ? segment_from(j, divide_up(kept * (share + 1), j->tasks)) : j->segments;
  for (int64_t s = first; s < end; s++)
    for (int64_t col = left; col < right; col += TFU_TILE)
      sum_segment(j, s, col, (int)(right - col < TFU_TILE ? right - col : TFU_TILE));
}

tfu_code tfu_segment_sum_cpu(tfu_call *call) {
  const tfu_tensor *ids = &call->in[1], *y = &call->out[0];
  const int sorted = call->attr[0].b;
  job j = {.data = &call->in[0], .y = y, .rows = ids->shape.dim[0], .segments = y->shape.dim[0]};
  j.inner = tfu_count(&y->shape) / j.segments;
  TFU_TRY(tfu_check_integers(call, "segment_ids", ids));
  TFU_TRY(check(call, ids, j.segments, sorted));
  TFU_TRY(put_in_order(call, ids, sorted, &j));
  enum { FEW = 64 };
  const int64_t work = (j.rows + j.segments) * j.inner, size = tfu_task_size(work, 1024);
  j.strips = j.segments < FEW ? divide_up(j.inner, TFU_TILE) : 1;
  j.tasks = work / size / j.strips + 1;
  tfu_parallel(j.tasks * j.strips, task, &j);
  return TFU_OK;
}
