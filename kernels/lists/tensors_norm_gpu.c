#include "kernels/lists/tensors_norm.h"

#include "kernels/core/gpu/cuda.h"
#include "kernels/core/gpu/walk.h"

TFU_MODULE(tensors_norm);
static tfu_kernel squares = {.module = &module, .name = "tensors_squares"};
static tfu_kernel norms = {.module = &module, .name = "tensors_norms"};
static tfu_kernel total = {.module = &module, .name = "tensors_total"};
static tfu_kernel clip = {.module = &module, .name = "tensors_clip"};

static tfu_grid blocks(int n) { return (tfu_grid){.x = (unsigned)n, .threads = TFU_THREADS}; }

tfu_code tfu_tensors_norm_gpu(tfu_call *call) {
  const tfu_list *x = &call->lists->in[0], *out = call->lists->out;
  const tfu_dtype dtype = x->at->dtype, real = out[0].at->dtype;
  norm_args a = {.norm = out[0].at->data, .norms = out[1].at->data, .finite = out[2].at->data, .n = x->n};
  TFU_SCRATCH(call, 2 * (tensors_chunks(x->at, x->n) + x->n), a.sums);
  a.chunks = a.sums + 2 * x->n;
  for (int from = 0; from < x->n;) {
    from = tensors_fill(&a.table, (const tfu_tensor *const[]){x->at}, 1, x->n, from);
    const int n = a.table.first[a.table.tensors];
    if (n) TFU_TRY(tfu_launch(call, &squares, 0, dtype, blocks(n), &a));
    TFU_TRY(tfu_launch(call, &norms, 0, real, blocks(a.table.tensors), &a));
  }
  return tfu_launch(call, &total, 0, real, blocks(1), &a);
}

tfu_code tfu_clip_by_tensors_norm_gpu(tfu_call *call) {
  const tfu_list *in = call->lists->in, *y = &call->lists->out[0];
  clip_args a = {.norm = in[1].at->data, .clip = in[2].at->data};
  for (int from = 0; from < y->n;) {
    from = tensors_fill(&a.table, (const tfu_tensor *const[]){in[0].at, y->at}, 2, y->n, from);
    const int n = a.table.first[a.table.tensors];
    if (n) TFU_TRY(tfu_launch(call, &clip, 0, y->at->dtype, blocks(n), &a));
  }
  return TFU_OK;
}
