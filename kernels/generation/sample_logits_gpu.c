#include "kernels/core/gpu/cuda.h"
#include "kernels/generation/sample.h"

TFU_MODULE(sample_logits);
static tfu_kernel kernel = {.module = &module, .name = "sample_logits"};

tfu_code tfu_sample_logits_gpu(tfu_call *call) {
  const tfu_tensor *in = call->in;
  sample_args a = {.logits = in[0].data,
                   .temperature = in[1].data,
                   .top_k = in[2].data,
                   .top_p = in[3].data,
                   .seeds = in[4].data,
                   .steps = in[5].data,
                   .ids = call->out[0].data,
                   .words = in[0].shape.dim[1]};
  const tfu_grid grid = {.x = (unsigned)in[0].shape.dim[0], .threads = SAMPLE_THREADS};
  return tfu_launch(call, &kernel, 0, in[0].dtype, grid, &a);
}
