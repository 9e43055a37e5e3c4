/* conv_gpu.c - which GPU kernels do a convolution: cuDNN's where it serves the case, with bias, residual and relu in
 * its own epilogue or in a pass after it, in quads (conv_quads.h) where that is faster; else our own.
 *
 * The environment variable TFUSE_CUDNN=0 leaves cuDNN out. */
#include "ops/convolution/conv.h"

#include "kernels/convolution/conv_cudnn.h"
#include "kernels/convolution/conv_quads.h"
#include "kernels/convolution/conv_weights.h"
#include "kernels/core/gpu/channels.h"
#include "kernels/elementwise/scale_bias_act.h"

TFU_MODULE(conv);

static tfu_kernel finish_kernel = TFU_ACTIVATION_KERNEL("conv_finish");

/* y = act(y + bias + residual), what is left of Conv after a bare convolution. */
static tfu_code finish(tfu_call *call, const conv_args *a, tfu_dtype dtype) {
  static const tfu_channels op = {2, 1, 1, 0, {-0.0f}}; /* y and residual; bias; y */
  const int64_t outputs = a->s.groups * a->s.k, n = a->s.batch * conv_volume(a->s.out) * outputs;
  tfu_channels_args c = {.x = {a->y, a->residual}, .y = {a->y}, .w = {a->bias}, .count = {a->bias ? outputs : 0}};
  const int act = a->relu ? TFU_ACT_relu : TFU_ACT_linear;
  if (!a->residual) return tfu_bias_act_launch(call, act, dtype, n, outputs, a->y, a->y, a->bias);
  return tfu_channels_launch(call, &finish_kernel, act, &op, dtype, n, a->bias ? outputs : 1, &c, NULL);
}

tfu_code tfu_conv_by_cudnn(tfu_call *call, conv_pass pass, tfu_dtype dtype, int tf32, const conv_args *a, int *served) {
  TFU_TRY(tfu_conv_cudnn(call, pass, dtype, tf32, a, served, &call->why));
  if (*served || !(a->bias || a->residual || a->relu)) return TFU_OK;
  conv_args bare = *a;
  bare.bias = bare.residual = NULL;
  bare.relu = 0;
  TFU_TRY(tfu_conv_cudnn(call, pass, dtype, tf32, &bare, served, &call->why));
  return *served ? finish(call, a, dtype) : TFU_OK;
}

/* With a kernel of the same type as all else. */
static tfu_code run_alike(tfu_call *call, conv_pass pass, tfu_dtype dtype, const conv_args *a) {
  const int tf32 = call->attr[TFU_CONV_TF32].b;
  int served = 0;
  if (!tfu_cudnn_allowed()) {
    call->why = "TFUSE_CUDNN=0";
    return tfu_conv_own_run(call, pass, CONV_TENSOR, tf32, dtype, *a);
  }
  TFU_TRY(tfu_conv_quads(call, pass, dtype, a, &served));
  if (!served) TFU_TRY(tfu_conv_by_cudnn(call, pass, dtype, tf32, a, &served));
  if (!served) {
    call->kernel = NULL; /* not what was moved for cuDNN: the next launch is the one that names the work */
    return tfu_conv_own_run(call, pass, CONV_TENSOR, tf32, dtype, *a);
  }
  call->why = NULL;
  return TFU_OK;
}

/* A wide kernel goes to cuDNN as it is; any other way has a copy of it, or makes one that is widened. Where cuDNN does
 * not serve, it is not asked again: a captured call has no memory for that. */
static tfu_code run(tfu_call *call, conv_pass pass, const tfu_tensor *kernel, const conv_args *given) {
  const tfu_dtype dtype = call->in[0].dtype;
  const int64_t elements = tfu_count(&kernel->shape);
  conv_args a = *given, quads;
  conv_quads_args image, moved;
  int served = 0;
  a.wide = kernel->dtype != dtype;
  if (!a.wide) return run_alike(call, pass, dtype, &a);
  const int asked = tfu_cudnn_allowed() && !tfu_conv_in_quads(pass, dtype, &a, &quads, &image, &moved);
  if (asked) {
    TFU_TRY(tfu_conv_by_cudnn(call, pass, dtype, 0, &a, &served));
    if (served) {
      call->why = NULL;
      return TFU_OK;
    }
  }
  void *const wide = a.kernel;
  a.wide = 0;
  TFU_TRY(tfu_scratch(call, (size_t)elements * tfu_dtype_size(dtype), &a.kernel));
  if (pass != CONV_FILTER) TFU_TRY(tfu_conv_weights_transpose(call, dtype, 0, elements, 1, wide, a.kernel));
  call->kernel = NULL; /* the next launch names the work */
  TFU_TRY(asked ? tfu_conv_own_run(call, pass, CONV_TENSOR, 0, dtype, a) : run_alike(call, pass, dtype, &a));
  return pass == CONV_FILTER ? tfu_conv_weights_transpose(call, dtype, 1, elements, 1, wide, a.kernel) : TFU_OK;
}

tfu_code tfu_conv_gpu(tfu_call *call) {
  const conv_args a = {.s = tfu_conv_forward_read(call),
                       .x = call->in[TFU_CONV_X].data,
                       .kernel = call->in[TFU_CONV_KERNEL].data,
                       .y = call->out[0].data,
                       .bias = tfu_given_data(&call->in[TFU_CONV_BIAS]),
                       .residual = tfu_given_data(&call->in[TFU_CONV_RESIDUAL]),
                       .relu = call->attr[TFU_CONV_RELU].b};
  return run(call, CONV_FORWARD, &call->in[TFU_CONV_KERNEL], &a);
}

tfu_code tfu_conv_data_gpu(tfu_call *call) {
  const conv_args a = {.s = tfu_conv_data_read(call),
                       .x = call->out[0].data,
                       .kernel = call->in[TFU_CONV_DATA_KERNEL].data,
                       .y = call->in[TFU_CONV_DATA_Y].data};
  return run(call, CONV_DATA, &call->in[TFU_CONV_DATA_KERNEL], &a);
}

tfu_code tfu_conv_filter_gpu(tfu_call *call) {
  const conv_args a = {.s = tfu_conv_filter_read(call),
                       .x = call->in[TFU_CONV_FILTER_X].data,
                       .kernel = call->out[0].data,
                       .y = call->in[TFU_CONV_FILTER_Y].data};
  return run(call, CONV_FILTER, &call->out[0], &a);
}

/* ---- scratch of captured calls ---- */

static size_t copies_room(const tfu_call *call, const tfu_tensor *kernel) {
  const tfu_dtype dtype = call->in[0].dtype;
  if (kernel->dtype == dtype || !tfu_known(&kernel->shape, 0)) return 0;
  return 2 * (size_t)tfu_count(&kernel->shape) * tfu_dtype_size(dtype);
}

/* Where it is not known how many images there are, it is for 256. */
static size_t quads_room(const tfu_call *call, conv_pass pass, const tfu_tensor *kernel, const tfu_tensor *y) {
  enum { IMAGES = 256, ALIGN = 512 };
  const tfu_shape *x = &call->in[0].shape;
  conv_args quads;
  conv_quads_args image, moved;
  if (!tfu_known(x, x->rank - 1) || !tfu_known(&kernel->shape, 0) || !tfu_known(&y->shape, 1)) return 0;
  conv_args a = {.s = tfu_conv_read(call, x, &kernel->shape, &y->shape)};
  if (a.s.batch == TFU_UNKNOWN) a.s.batch = IMAGES;
  if (!tfu_conv_in_quads(pass, call->in[0].dtype, &a, &quads, &image, &moved)) return 0;
  return conv_quads_image_bytes(&image) + conv_quads_kernel_bytes(&moved) + ALIGN;
}

size_t tfu_conv_more_room(const tfu_call *call) {
  const tfu_tensor *kernel = &call->in[TFU_CONV_KERNEL];
  return copies_room(call, kernel) + quads_room(call, CONV_FORWARD, kernel, &call->out[0]);
}

size_t tfu_conv_data_more_room(const tfu_call *call) { return copies_room(call, &call->in[TFU_CONV_DATA_KERNEL]); }

size_t tfu_conv_filter_more_room(const tfu_call *call) {
  return copies_room(call, &call->out[0]) + quads_room(call, CONV_FILTER, &call->out[0], &call->in[TFU_CONV_FILTER_Y]);
}
