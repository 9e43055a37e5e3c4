#include "kernels/convolution/conv.h"

#include "ops/convolution/conv.h"

static int64_t number(const tfu_call *call, int attr, int axis) { return tfu_axis_number(call->attr[attr].i, axis); }

/* As TensorFlow pads for SAME: what y reaches beyond x, half of it before x, the odd one after. */
static int64_t half_beyond(const conv_shape *s, int a) {
  const int64_t reach = (s->out[a] - 1) * s->stride[a] + (s->window[a] - 1) * s->dilation[a] + 1;
  return s->out[a] > 0 && reach > s->in[a] ? (reach - s->in[a]) / 2 : 0;
}

static int64_t before_of(const tfu_call *call, const conv_shape *s, int a, int from) {
  switch (call->attr[TFU_CONV_PADDING].i) {
    case TFU_CONV_PAD_SAME: return half_beyond(s, a);
    case TFU_CONV_PAD_CAUSAL: return s->window[a] > 0 ? (s->window[a] - 1) * s->dilation[a] : 0;
    default: return number(call, TFU_CONV_BEFORE, from);
  }
}

conv_shape tfu_conv_read(const tfu_call *call, const tfu_shape *x, const tfu_shape *kernel, const tfu_shape *y) {
  const int axes = x->rank - 2, missing = CONV_AXES - axes;
  const int64_t channels = tfu_cols(x), own = kernel->dim[axes];
  conv_shape s = {.batch = x->dim[0], .groups = own > 0 ? channels / own : 1, .c = own};
  s.k = tfu_cols(kernel) / s.groups;
  for (int a = 0; a < CONV_AXES; a++) {
    const int from = a - missing, there = from >= 0;
    s.in[a] = there ? x->dim[1 + from] : 1;
    s.out[a] = there ? y->dim[1 + from] : 1;
    s.window[a] = there ? kernel->dim[from] : 1;
    s.stride[a] = there ? number(call, TFU_CONV_STRIDES, from) : 1;
    s.dilation[a] = there ? number(call, TFU_CONV_DILATION, from) : 1;
    s.before[a] = there ? before_of(call, &s, a, from) : 0;
  }
  return s;
}

conv_shape tfu_conv_forward_read(const tfu_call *call) {
  return tfu_conv_read(call, &call->in[TFU_CONV_X].shape, &call->in[TFU_CONV_KERNEL].shape, &call->out[0].shape);
}

conv_shape tfu_conv_data_read(const tfu_call *call) {
  return tfu_conv_read(call, &call->out[0].shape, &call->in[TFU_CONV_DATA_KERNEL].shape,
                       &call->in[TFU_CONV_DATA_Y].shape);
}

conv_shape tfu_conv_filter_read(const tfu_call *call) {
  return tfu_conv_read(call, &call->in[TFU_CONV_FILTER_X].shape, &call->out[0].shape,
                       &call->in[TFU_CONV_FILTER_Y].shape);
}
