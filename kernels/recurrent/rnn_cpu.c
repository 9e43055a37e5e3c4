/* Rnn on the CPU: by the ops that it is made of. */
#include "kernels/recurrent/rnn.h"

#include <string.h>

#include "ops/recurrent/rnn.h"

static tfu_code before(tfu_call *call, tfu_dtype dtype, rnn_before_args *a) {
  const size_t row = (size_t)a->units * tfu_dtype_size(dtype), others = (size_t)(a->steps - 1) * row;
  (void)call;
  for (int64_t b = 0; b < a->batch; b++) {
    char *to = (char *)a->before + (size_t)b * (row + others);
    if (a->h) memcpy(to, (const char *)a->h + (size_t)b * row, row);
    else memset(to, 0, row);
    memcpy(to + row, (const char *)a->y + (size_t)b * (row + others), others);
  }
  return TFU_OK;
}

static const rnn_parts parts = {.linear = tfu_linear_cpu,
                                .linear_grad = tfu_linear_grad_cpu,
                                .recurrence = tfu_recurrence_cpu,
                                .recurrence_grad = tfu_recurrence_grad_cpu,
                                .before = before};

/* What Recurrence leaves of kept is zeros, so that results are the same bits every time. */
tfu_code tfu_rnn_cpu(tfu_call *call) {
  const tfu_tensor *kept = &call->out[TFU_RNN_KEPT];
  if (tfu_count(&kept->shape)) memset(kept->data, 0, (size_t)tfu_count(&kept->shape) * tfu_dtype_size(kept->dtype));
  return tfu_rnn_by_parts(call, &parts);
}
tfu_code tfu_rnn_grad_cpu(tfu_call *call) { return tfu_rnn_grad_by_parts(call, &parts); }
