/* conv_graph.c - a convolution and its gradients as cuDNN knows them. Shapes are [batch, channels, spatial axes]; that
 * channels lie last in our memory is a matter of strides. Kernels are handed over as [outputs, spatial axes, channels]:
 * of our [spatial axes, channels, outputs] by their strides cuDNN plans the same engines, which then take no notice of
 * the strides. */
#include <limits.h>

#include "kernels/convolution/conv_cudnn.h"

/* ---- which there are ---- */

static int64_t reach_of(const conv_shape *s, int a) { return (s->window[a] - 1) * s->dilation[a] + 1; }

static int64_t out_of(const conv_shape *s, int a, int64_t after) {
  const int64_t room = s->in[a] + s->before[a] + after - reach_of(s, a);
  return room < 0 ? 0 : room / s->stride[a] + 1;
}

/* What is behind x: as much as before it where that gives the same result, since more engines take that, or as little
 * as can be. */
static int64_t after_of(const conv_shape *s, int a) {
  const int64_t needed = (s->out[a] - 1) * s->stride[a] + reach_of(s, a) - s->in[a] - s->before[a];
  if (out_of(s, a, s->before[a]) == s->out[a]) return s->before[a];
  return needed > 0 ? needed : 0;
}

static int fits(int64_t elements) { return elements > 0 && elements <= INT_MAX; }

static int aligned(const conv_args *a) {
  const uintptr_t all =
      (uintptr_t)a->x | (uintptr_t)a->kernel | (uintptr_t)a->y | (uintptr_t)a->bias | (uintptr_t)a->residual;
  return all % 16 == 0;
}

static conv_shape shape_of(const conv_key *k) {
  conv_shape s = {.batch = k->batch, .groups = k->groups, .c = k->c, .k = k->k};
  for (int a = 0; a < CONV_AXES; a++) {
    s.in[a] = k->in[a], s.out[a] = k->out[a], s.window[a] = k->window[a];
    s.stride[a] = k->stride[a], s.dilation[a] = k->dilation[a], s.before[a] = k->before[a];
  }
  return s;
}

const char *tfu_conv_key_of(const conv_args *args, conv_pass pass, tfu_dtype dtype, int tf32, int ordinal,
                            conv_key *key) {
  const conv_shape *s = &args->s;
  if (!fits(s->batch * s->groups * s->c * conv_volume(s->in)) ||
      !fits(s->batch * s->groups * s->k * conv_volume(s->out)) ||
      !fits(s->c * s->groups * s->k * conv_volume(s->window)))
    return "cuDNN takes tensors of 1 to 2^31 - 1 elements";
  if (!aligned(args)) return "cuDNN takes tensors that begin on 16 bytes";
  for (int a = 0; a < CONV_AXES; a++) {
    const int64_t after = after_of(s, a), reach = reach_of(s, a);
    if (s->before[a] >= reach || after >= reach || out_of(s, a, after) != s->out[a])
      return "cuDNN takes no padding as large as the window";
  }
  *key = (conv_key){.pass = (int32_t)pass,
                    .dtype = (int32_t)dtype,
                    .tf32 = dtype == TFU_F32 && tf32,
                    .ordinal = ordinal,
                    .epilogue = (args->residual ? CONV_ADDS_RESIDUAL : 0) | (args->bias ? CONV_ADDS_BIAS : 0) |
                                (args->relu ? CONV_RELU : 0),
                    .batch = (int32_t)s->batch,
                    .groups = (int32_t)s->groups,
                    .c = (int32_t)s->c,
                    .k = (int32_t)s->k};
  if (key->epilogue) key->epilogue |= CONV_ADDS_BIAS; /* there are no engines for the others alone */
  for (int a = 0; a < CONV_AXES; a++) {
    key->in[a] = (int32_t)s->in[a], key->out[a] = (int32_t)s->out[a], key->window[a] = (int32_t)s->window[a];
    key->stride[a] = (int32_t)s->stride[a], key->dilation[a] = (int32_t)s->dilation[a];
    key->before[a] = (int32_t)s->before[a];
  }
  return NULL;
}

int tfu_conv_exact(const conv_key *k) { return k->dtype == TFU_F32 && !k->tf32; }

/* In exact float32 cuDNN proposes one to six of one or two engines, and those that it falls back to may lose less. */
int tfu_conv_fewest(const conv_key *k) { return tfu_conv_exact(k) ? 10 : 1; }

/* Results repeat bit for bit, and are as exact as a sum of products in float: no additions by whoever comes first, none
 * in 16 bits, and no transforms. Without tf32, float32 is multiplied as it is. */
unsigned tfu_conv_avoid(const conv_key *k) {
  const unsigned always = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
                          1u << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION | 1u << CUDNN_NUMERICAL_NOTE_FFT |
                          1u << CUDNN_NUMERICAL_NOTE_WINOGRAD | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4 |
                          1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6 | 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13;
  const unsigned inexact = 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE | 1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
  return always | (tfu_conv_exact(k) ? inexact : 0);
}

/* The filter gradient's engine 1 computes as if there were as much padding after x as before it. */
int tfu_conv_trusts(const conv_key *k, int engine) {
  const conv_shape s = shape_of(k);
  if (k->pass != CONV_FILTER || engine != 1) return 1;
  for (int a = 0; a < CONV_AXES; a++)
    if (after_of(&s, a) != s.before[a]) return 0;
  return 1;
}

/* ---- graphs ---- */

static const cudnnDataType_t types[TFU_FLOATS] = {[TFU_F32] = CUDNN_DATA_FLOAT,
                                                  [TFU_F16] = CUDNN_DATA_HALF,
                                                  [TFU_BF16] = CUDNN_DATA_BFLOAT16,
                                                  [TFU_F64] = CUDNN_DATA_DOUBLE};

/* What every step needs. Axes that come first and have one element alone are left out, down to two: convolutions of one
 * axis are planes with a height of 1. */
typedef struct sketch {
  tfu_graph *g;
  conv_shape s;
  cudnnDataType_t type;
  int first, axes;
} sketch;

static sketch open_sketch(tfu_graph *g, const conv_key *k) {
  sketch t = {.g = g, .s = shape_of(k), .type = types[k->dtype]};
  t.first = t.s.in[0] == 1 && t.s.out[0] == 1 && t.s.window[0] == 1;
  t.axes = CONV_AXES - t.first;
  return t;
}

/* [n, c, spatial axes] with the channels last in memory; virtual where slot is negative. */
static tfu_node image(sketch *t, int slot, int64_t n, int64_t c, const int64_t *sizes) {
  const cudnnDataType_t sums = t->type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  int64_t d[TFU_GRAPH_RANK] = {n, c}, step[TFU_GRAPH_RANK] = {0, 1}, next = c;
  for (int a = t->axes - 1; a >= 0; a--) {
    d[2 + a] = sizes[t->first + a];
    step[2 + a] = next;
    next *= d[2 + a];
  }
  step[0] = next;
  return slot < 0 ? tfu_graph_virtual(t->g, sums, 2 + t->axes, d, step)
                  : tfu_graph_real(t->g, slot, t->type, 2 + t->axes, d, step);
}

static tfu_graph_window window_of(const sketch *t) {
  tfu_graph_window w = {.axes = t->axes};
  for (int i = 0; i < t->axes; i++) {
    const int a = t->first + i;
    w.before[i] = t->s.before[a], w.after[i] = after_of(&t->s, a);
    w.stride[i] = t->s.stride[a], w.dilation[i] = t->s.dilation[a];
  }
  return w;
}

/* One step after the convolution: x = mode(x, b), which is y itself where it is the last. */
static void follow(sketch *t, cudnnPointwiseMode_t mode, cudnnDataType_t compute, tfu_node *x, const tfu_node *b,
                   int last) {
  const conv_shape *s = &t->s;
  const tfu_node y = image(t, last ? CONV_AT_Y : -1, s->batch, s->groups * s->k, s->out);
  tfu_graph_pointwise(t->g, mode, compute, -1, x, b, NULL, &y);
  *x = y;
}

void tfu_conv_describe(tfu_graph *g, const conv_key *k) {
  static const tfu_graph_conv_kind kinds[CONV_PASSES] = {[CONV_FORWARD] = TFU_GRAPH_FORWARD,
                                                         [CONV_DATA] = TFU_GRAPH_BACKWARD_DATA,
                                                         [CONV_FILTER] = TFU_GRAPH_BACKWARD_FILTER};
  sketch t = open_sketch(g, k);
  const conv_shape *s = &t.s;
  const cudnnDataType_t compute = t.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  const int64_t outputs = s->groups * s->k, one[CONV_AXES] = {1, 1, 1};
  const tfu_graph_window window = window_of(&t);
  const tfu_node x = image(&t, CONV_AT_X, s->batch, s->groups * s->c, s->in),
                 kernel = image(&t, CONV_AT_KERNEL, outputs, s->c, s->window);
  tfu_node y = image(&t, k->epilogue ? -1 : CONV_AT_Y, s->batch, outputs, s->out);
  tfu_graph_conv(g, kinds[k->pass], compute, &window, &x, &kernel, &y);
  if (k->epilogue & CONV_ADDS_RESIDUAL) {
    const tfu_node residual = image(&t, CONV_AT_RESIDUAL, s->batch, outputs, s->out);
    follow(&t, CUDNN_POINTWISE_ADD, compute, &y, &residual, k->epilogue < 2 * CONV_ADDS_RESIDUAL);
  }
  if (k->epilogue & CONV_ADDS_BIAS) {
    const tfu_node bias = image(&t, CONV_AT_BIAS, 1, outputs, one);
    follow(&t, CUDNN_POINTWISE_ADD, compute, &y, &bias, k->epilogue < 2 * CONV_ADDS_BIAS);
  }
  if (k->epilogue & CONV_RELU) follow(&t, CUDNN_POINTWISE_RELU_FWD, compute, &y, NULL, 1);
}
