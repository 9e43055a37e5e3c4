/* y = act(pre), pre = bias + each channel of x convolved with filters of its own; and its gradient
 *
 *   pre[n, i, j, c * M + m] = bias[c * M + m] + sum of x[n, i * stride + r * dilation - before, j …, c] * kernel[r, s,
 * c, m] dpre = dy * act'(pre),  dx and dkernel by the products with the other one,  dbias = sum of dpre over all
 * positions.
 *
 * window.h says what padding means. bias is an empty vector where there is none. size is [height, width, 0] of the
 * result: a size that comes of another one by a formula is known to no shape rule while a graph is built. pre is an
 * output only where `keep` is given, a tensor of any shape but the empty vector's. Of the gradient's inputs, pre may be
 * any tensor where the activation has the same slope as in pre, as relu's own y is; where the activation is linear it
 * is not read. dx and dkernel are wanted where want_dx and want_dkernel are given, dbias where bias is. */
#include "ops/convolution/depthwise_conv.h"

#include "tfuse.h"

static int known(const tfu_shape *s) { return s->rank != TFU_UNKNOWN; }

static int64_t product(int64_t a, int64_t b) { return a == TFU_UNKNOWN || b == TFU_UNKNOWN ? TFU_UNKNOWN : a * b; }

/* The channels of the result, as far as they are known. */
static int64_t outputs(const tfu_shape *kernel) {
  return known(kernel) ? product(kernel->dim[2], kernel->dim[3]) : TFU_UNKNOWN;
}

static tfu_code check(const tfu_shape *x, const tfu_shape *kernel, const tfu_shape *bias, tfu_error *err) {
  TFU_REQUIRE(err, !known(x) || x->rank == 4, "x must be [batch, height, width, channels], got shape %s",
              tfu_show(x).text);
  TFU_REQUIRE(err, !known(kernel) || kernel->rank == 4,
              "kernel must be [height, width, channels, multiplier], got shape %s", tfu_show(kernel).text);
  TFU_REQUIRE(err, !known(x) || !known(kernel) || tfu_may_be(x->dim[3], kernel->dim[2]),
              "the last axis of x and the third of kernel must be of one size, got shapes %s and %s", tfu_show(x).text,
              tfu_show(kernel).text);
  TFU_REQUIRE(err, !known(bias) || !tfu_given(bias) || (bias->rank == 1 && tfu_may_be(bias->dim[0], outputs(kernel))),
              "bias must be a vector with one value for each channel of the result, the last two axes of kernel %s, "
              "got shape %s",
              tfu_show(kernel).text, tfu_show(bias).text);
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *x = &in[TFU_DEPTHWISE_X], *kernel = &in[TFU_DEPTHWISE_KERNEL], *size = &in[TFU_DEPTHWISE_SIZE];
  TFU_TRY(check(x, kernel, &in[TFU_DEPTHWISE_BIAS], err));
  TFU_REQUIRE(err, !known(size) || (size->rank == 3 && tfu_may_be(size->dim[2], 0)),
              "size must be [height, width, 0] of the result, got shape %s", tfu_show(size).text);
  tfu_depthwise d;
  if (attr) {
    TFU_TRY(tfu_depthwise_read(x, kernel, attr, &d, err));
    TFU_REQUIRE(err, size->dim[0] == d.h.out && size->dim[1] == d.w.out,
                "size must be [%lld, %lld, 0], as x %s and kernel %s give it, got %s", (long long)d.h.out,
                (long long)d.w.out, tfu_show(x).text, tfu_show(kernel).text, tfu_show(size).text);
  }
  out[TFU_DEPTHWISE_Y] =
      (tfu_shape){.rank = 4,
                  .dim = {known(x) ? x->dim[0] : TFU_UNKNOWN, known(size) ? size->dim[0] : TFU_UNKNOWN,
                          known(size) ? size->dim[1] : TFU_UNKNOWN, outputs(kernel)}};
  out[TFU_DEPTHWISE_PRE] = tfu_like_if(&out[TFU_DEPTHWISE_Y], &in[TFU_DEPTHWISE_KEEP]);
  return TFU_OK;
}

const tfu_op tfu_depthwise_conv = {
    .name = "DepthwiseConv",
    .doc =
        "act(bias + each channel of x convolved with filters of its own); and, where keep is given, what act is taken "
        "of.",
    .in = {"x: T", "kernel: T", "bias: T", "size: bool", "keep: T"},
    .out = {"y: T", "pre: T"},
    .attr = {TFU_DEPTHWISE_ATTRS, TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(depthwise_conv),
    .capturable = 1,
};

/* [0, 0], or not given. */
static tfu_code check_mark(const char *name, const tfu_shape *s, tfu_error *err) {
  TFU_REQUIRE(err, !known(s) || !tfu_given(s) || (s->rank == 2 && tfu_may_be(s->dim[0], 0) && tfu_may_be(s->dim[1], 0)),
              "%s must be [0, 0] for yes or [0] for no, got shape %s", name, tfu_show(s).text);
  return TFU_OK;
}

TFU_SHAPE_RULE(grad_shape) {
  const tfu_shape *dy = &in[TFU_DEPTHGRAD_DY], *x = &in[TFU_DEPTHGRAD_X], *kernel = &in[TFU_DEPTHGRAD_KERNEL];
  const tfu_shape *bias = &in[TFU_DEPTHGRAD_BIAS], *pre = &in[TFU_DEPTHGRAD_PRE];
  TFU_TRY(check(x, kernel, bias, err));
  TFU_REQUIRE(err, !known(dy) || dy->rank == 4, "dy must be [batch, height, width, channels], got shape %s",
              tfu_show(dy).text);
  if (tfu_given(pre)) TFU_TRY(tfu_match("pre", pre, "dy", dy, err));
  TFU_TRY(check_mark("want_dx", &in[TFU_DEPTHGRAD_WANT_DX], err));
  TFU_TRY(check_mark("want_dkernel", &in[TFU_DEPTHGRAD_WANT_DKERNEL], err));
  if (attr) {
    tfu_depthwise d;
    TFU_TRY(tfu_depthwise_read(x, kernel, attr, &d, err));
    const tfu_shape y = {.rank = 4, .dim = {d.batch, d.h.out, d.w.out, outputs(kernel)}};
    TFU_TRY(tfu_match("dy", dy, "the result of x and kernel", &y, err));
    TFU_REQUIRE(err, attr[TFU_DEPTHWISE_ACTIVATION].i == TFU_ACT_linear || tfu_given(pre),
                "pre must be given where the activation is not linear, got shape %s", tfu_show(pre).text);
  }
  out[TFU_DEPTHGRAD_DX] = tfu_like_if(x, &in[TFU_DEPTHGRAD_WANT_DX]);
  out[TFU_DEPTHGRAD_DKERNEL] = tfu_like_if(kernel, &in[TFU_DEPTHGRAD_WANT_DKERNEL]);
  out[TFU_DEPTHGRAD_DBIAS] = *bias;
  return TFU_OK;
}

const tfu_op tfu_depthwise_conv_grad = {
    .name = "DepthwiseConvGrad",
    .doc = "Gradient of DepthwiseConv: dx where want_dx is given, dkernel where want_dkernel is, dbias where bias is.",
    .in = {"dy: T", "x: T", "kernel: T", "bias: T", "pre: T", "want_dx: bool", "want_dkernel: bool"},
    .out = {"dx: T", "dkernel: T", "dbias: T"},
    .attr = {TFU_DEPTHWISE_ATTRS, TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(depthwise_conv_grad),
};
