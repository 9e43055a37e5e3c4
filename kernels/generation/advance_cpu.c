#include "kernels/generation/advance.h"

#include <string.h>

#include "ops/generation/advance.h"

advance_args tfu_advance_args(const tfu_call *call) {
  const tfu_tensor *in = call->in, *out = call->out;
  return (advance_args){.ids = in[0].data,
                        .limits = in[4].data,
                        .stops = in[5].data,
                        .table = in[6].data,
                        .tokens = out[0].data,
                        .lengths = out[1].data,
                        .done = out[2].data,
                        .current = out[3].data,
                        .places = out[4].data,
                        .positions = out[5].data,
                        .batch = in[0].shape.dim[0],
                        .room = in[1].shape.dim[1],
                        .n_stops = in[5].shape.dim[0],
                        .pages = in[6].shape.dim[1],
                        .page_size = call->attr[TFU_ADVANCE_PAGE].i};
}

tfu_code tfu_advance_cpu(tfu_call *call) {
  for (int i = 0; i < 3; i++)
    if (call->out[i].data != call->in[1 + i].data)
      memcpy(call->out[i].data, call->in[1 + i].data, (size_t)tfu_count(&call->out[i].shape) * sizeof(int64_t));
  const advance_args a = tfu_advance_args(call);
  for (int64_t b = 0; b < a.batch; b++) advance_one(&a, b);
  return TFU_OK;
}
