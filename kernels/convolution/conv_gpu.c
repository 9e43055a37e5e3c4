/* conv_gpu.c - which GPU kernels do a convolution: cuDNN's where it serves the case, else our own. */
#include "ops/convolution/conv.h"

#include "kernels/convolution/conv_own.h"

static void *data_of(const tfu_tensor *t) { return tfu_count(&t->shape) ? t->data : NULL; }

tfu_code tfu_conv_gpu(tfu_call *call) {
  const conv_args a = {.s = tfu_conv_forward_read(call),
                       .x = data_of(&call->in[TFU_CONV_X]),
                       .kernel = data_of(&call->in[TFU_CONV_KERNEL]),
                       .y = call->out[0].data,
                       .bias = data_of(&call->in[TFU_CONV_BIAS]),
                       .residual = data_of(&call->in[TFU_CONV_RESIDUAL]),
                       .relu = call->attr[TFU_CONV_RELU].b};
  return tfu_conv_own_run(call, CONV_FORWARD, call->out[0].dtype, a);
}

tfu_code tfu_conv_data_gpu(tfu_call *call) {
  const conv_args a = {.s = tfu_conv_data_read(call),
                       .x = call->out[0].data,
                       .kernel = data_of(&call->in[TFU_CONV_DATA_KERNEL]),
                       .y = data_of(&call->in[TFU_CONV_DATA_Y])};
  return tfu_conv_own_run(call, CONV_DATA, call->out[0].dtype, a);
}

tfu_code tfu_conv_filter_gpu(tfu_call *call) {
  const conv_args a = {.s = tfu_conv_filter_read(call),
                       .x = data_of(&call->in[TFU_CONV_FILTER_X]),
                       .kernel = call->out[0].data,
                       .y = data_of(&call->in[TFU_CONV_FILTER_Y])};
  return tfu_conv_own_run(call, CONV_FILTER, call->out[0].dtype, a);
}
