/* take_rows and put_rows on the CPU. */
#include <string.h>

#include "kernels/attention/float8_pages.h"
#include "kernels/core/cpu/parallel.h"

typedef struct job {
  const int64_t *number;
  int64_t rows, bytes; /* of `many`; of a row */
  char *few, *many;
  int put;
} job;

static void move(void *arg, int64_t begin, int64_t end) {
  const job *j = arg;
  for (int64_t r = begin; r < end; r++) {
    const int there = j->number[r] >= 0 && j->number[r] < j->rows;
    char *few = j->few + r * j->bytes, *many = j->many + (there ? j->number[r] : 0) * j->bytes;
    if (!there && !j->put) memset(few, 0, (size_t)j->bytes);
    else if (there) memcpy(j->put ? many : few, j->put ? few : many, (size_t)j->bytes);
  }
}

static void move_rows(const job *j, int64_t n) {
  enum { TASK = 1 << 16 }; /* bytes */
  if (n && j->bytes) tfu_parallel_ranges(n, j->bytes < TASK ? TASK / j->bytes : 1, move, (void *)(uintptr_t)j);
}

tfu_code tfu_take_rows_cpu(tfu_call *call) {
  const tfu_tensor *table = &call->in[0];
  const job j = {.number = call->in[1].data,
                 .rows = table->shape.dim[0],
                 .few = call->out[0].data,
                 .many = table->data,
                 .bytes = table->shape.dim[1] * (int64_t)tfu_dtype_size(table->dtype)};
  move_rows(&j, tfu_count(&call->in[1].shape));
  return TFU_OK;
}

tfu_code tfu_put_rows_cpu(tfu_call *call) {
  int is_float8;
  for (int i = 0; i < 2; i++) {
    const tfu_tensor *before = &call->in[2 + i], *after = &call->out[i];
    const tfu_shape *s = &before->shape;
    const int64_t bytes = s->dim[s->rank - 2] * s->dim[s->rank - 1] * (int64_t)tfu_dtype_size(before->dtype),
                  all = tfu_count(s) * (int64_t)tfu_dtype_size(before->dtype);
    if (after->data != before->data) memcpy(after->data, before->data, (size_t)all);
    TFU_TRY(tfu_is_float8_cache(call, before->dtype, call->in[i].dtype, &is_float8));
    if (is_float8) {
      const narrow_rows_args a = narrow_rows_of(&call->in[i], after, &call->in[4]);
      TFU_TRY(tfu_narrow_rows_cpu(call, call->in[i].dtype, &a));
      continue;
    }
    const job j = {.number = call->in[4].data,
                   .rows = bytes ? all / bytes : 0,
                   .bytes = bytes,
                   .put = 1,
                   .few = call->in[i].data,
                   .many = after->data};
    move_rows(&j, tfu_count(&call->in[4].shape));
  }
  return TFU_OK;
}
