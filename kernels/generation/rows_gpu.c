#include "kernels/generation/rows.h"

#include "kernels/attention/float8_pages.h"
#include "kernels/core/arithmetic.h"
#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/transfer.h"

TFU_MODULE(rows);

enum { MOST = 1 << 30 }; /* units of a launch: what kernels divide is less than 2^31 */

/* n rows of `bytes` each, in as many launches as that takes. */
static tfu_code move_rows(tfu_call *call, move_rows_args a, int pairs, int64_t n, int64_t bytes) {
  static tfu_kernel kernel = {.module = &module, .name = "move_rows", .keys = tfu_any};
  uintptr_t all = 16 | (uintptr_t)bytes;
  for (int i = 0; i < pairs; i++) all |= (uintptr_t)a.pair[i].few | (uintptr_t)a.pair[i].many;
  a.bytes = (int)(all & -all);
  const int64_t span = bytes / a.bytes;
  if (!n || !span) return TFU_OK;
  TFU_REQUIRE(call->err, span <= MOST, "a row of %lld bytes is too long", (long long)bytes);
  a.span = divisor_of(span);
  for (int64_t row = 0; row < n; row += MOST / span) {
    const int64_t now = least(MOST / span, n - row);
    a.units = now * span;
    const int64_t blocks = divide_up(a.units, MOVE_ROWS_THREADS);
    const tfu_grid grid = {.x = (unsigned)least(blocks, 1 << 16), .y = (unsigned)pairs, .threads = MOVE_ROWS_THREADS};
    TFU_TRY(tfu_launch(call, &kernel, 0, 0, grid, &a));
    a.number += now;
    for (int i = 0; i < pairs; i++) a.pair[i].few = (char *)a.pair[i].few + now * bytes;
  }
  return TFU_OK;
}

tfu_code tfu_take_rows_gpu(tfu_call *call) {
  const tfu_tensor *table = &call->in[0];
  const move_rows_args a = {.number = call->in[1].data,
                            .rows = table->shape.dim[0],
                            .pair = {{.few = call->out[0].data, .many = table->data}}};
  return move_rows(call, a, 1, tfu_count(&call->in[1].shape),
                   table->shape.dim[1] * (int64_t)tfu_dtype_size(table->dtype));
}

/* Bytes of a row, which the last two axes are. */
static int64_t row_bytes(const tfu_tensor *t) {
  return t->shape.dim[t->shape.rank - 2] * t->shape.dim[t->shape.rank - 1] * (int64_t)tfu_dtype_size(t->dtype);
}

tfu_code tfu_put_rows_gpu(tfu_call *call) {
  const int64_t n = tfu_count(&call->in[4].shape);
  const int alike = row_bytes(&call->in[0]) == row_bytes(&call->in[1]); /* both go with one launch */
  move_rows_args a = {.number = call->in[4].data, .put = 1};
  int is_float8;
  for (int i = 0; i < 2; i++) {
    const tfu_tensor *before = &call->in[2 + i], *after = &call->out[i];
    const int64_t bytes = row_bytes(before), all = tfu_count(&before->shape) * (int64_t)tfu_dtype_size(before->dtype);
    if (after->data != before->data)
      TFU_TRY(tfu_transfer_take(call->stream, after->data, before->data, (size_t)all, call->err));
    TFU_TRY(tfu_is_float8_cache(call, before->dtype, call->in[i].dtype, &is_float8));
    if (is_float8) {
      const narrow_rows_args narrow = narrow_rows_of(&call->in[i], after, &call->in[4]);
      TFU_TRY(tfu_narrow_rows_gpu(call, call->in[i].dtype, &narrow));
      continue;
    }
    a.rows = bytes ? all / bytes : 0;
    a.pair[alike ? i : 0].few = call->in[i].data;
    a.pair[alike ? i : 0].many = after->data;
    if (!alike || i == 1) TFU_TRY(move_rows(call, a, 1 + alike, n, bytes));
  }
  return TFU_OK;
}
