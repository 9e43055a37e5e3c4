#include "kernels/sorting/bincount.h"

tfu_code tfu_histogram_gpu(tfu_call *call) {
  const tfu_tensor *v = &call->in[0];
  bin_args a = {.of = v->data,
                .range = call->in[1].data,
                .counts = call->out[0].data,
                .rows = 1,
                .cols = tfu_count(&v->shape),
                .size = tfu_cols(&call->out[0].shape),
                .kind = (int)v->dtype};
  return tfu_bins_gpu(call, &a);
}
