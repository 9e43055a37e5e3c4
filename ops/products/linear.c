/* y = act(pre) + residual, pre = x . kernel + bias, over the last axis of x; and its gradient
 *
 *   dpre = dy * act'(pre),  dx = dpre . kernel^T,  dkernel = x^T . dpre,  dbias = sum of dpre over the rows.
 *
 * (The gradient of residual is dy.) bias and residual are empty vectors where there are none. pre is an output only
 * where `keep` is given, a tensor of any shape but the empty vector's: it is what the gradient needs, and inference has
 * no use for it. Of the gradient's inputs, what is not given is not wanted: dx takes kernel, dkernel takes x, and bias
 * is there for the shape of dbias alone. pre may be any tensor where the activation has the same slope as in pre:
 * relu's own y is one. Where the activation is linear it is not read.
 *
 * tf32 allows float32 products to read their factors with 10 bits after the point. */
#include "ops/products/linear.h"

#include "tfuse.h"

static tfu_code check_matrix(const char *name, const tfu_shape *s, int least, const char *axes, tfu_error *err) {
  TFU_REQUIRE(err, s->rank == TFU_UNKNOWN || (least ? s->rank >= 2 : s->rank == 2), "%s must be %s, got shape %s", name,
              axes, tfu_show(s).text);
  return TFU_OK;
}

/* The last dimension, where it is known. */
static int64_t last(const tfu_shape *s) { return s->rank == TFU_UNKNOWN ? TFU_UNKNOWN : tfu_cols(s); }

/* Like x, with another last axis. */
static tfu_shape with_last(const tfu_shape *x, int64_t size) {
  tfu_shape s = *x;
  if (s.rank != TFU_UNKNOWN) s.dim[s.rank - 1] = size;
  return s;
}

static tfu_code check_bias(const tfu_shape *bias, int64_t outputs, const char *of, const tfu_shape *shape,
                           tfu_error *err) {
  if (bias->rank == TFU_UNKNOWN || !tfu_given(bias)) return TFU_OK;
  TFU_REQUIRE(err, bias->rank == 1 && tfu_may_be(bias->dim[0], outputs),
              "bias must be a vector with one value per output, the last axis of %s %s, got shape %s", of,
              tfu_show(shape).text, tfu_show(bias).text);
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *x = &in[TFU_LINEAR_X], *kernel = &in[TFU_LINEAR_KERNEL], *residual = &in[TFU_LINEAR_RESIDUAL];
  TFU_TRY(check_matrix("x", x, 1, "[..., inputs] with two dimensions or more", err));
  TFU_TRY(check_matrix("kernel", kernel, 0, "[inputs, outputs]", err));
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || kernel->rank == TFU_UNKNOWN || tfu_may_be(tfu_cols(x), kernel->dim[0]),
              "the last axis of x and the first of kernel must be of one size, got shapes %s and %s", tfu_show(x).text,
              tfu_show(kernel).text);
  TFU_TRY(check_bias(&in[TFU_LINEAR_BIAS], last(kernel), "kernel", kernel, err));
  out[TFU_LINEAR_Y] = with_last(x, last(kernel));
  if (tfu_given(residual)) TFU_TRY(tfu_match("residual", residual, "x . kernel", &out[TFU_LINEAR_Y], err));
  out[TFU_LINEAR_PRE] = tfu_like_if(&out[TFU_LINEAR_Y], &in[TFU_LINEAR_KEEP]);
  return TFU_OK;
}

const tfu_op tfu_linear = {
    .name = "Linear",
    .doc = "act(x . kernel + bias) + residual over the last axis of x; and, where keep is given, what act is taken of.",
    .in = {"x: T", "kernel: T", "bias: T", "residual: T", "keep: T"},
    .out = {"y: T", "pre: T"},
    .attr = {TFU_LINEAR_ATTRS, TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(linear),
    .capturable = 1,
    .room = TFU_LINEAR_ROOM,
};

/* [rows, cols], an empty vector where `when` is not given, unknown where that is not known. */
static tfu_shape matrix_if(const tfu_shape *when, int64_t rows, int64_t cols) {
  const tfu_shape matrix = {.rank = 2, .dim = {rows, cols}};
  return tfu_like_if(&matrix, when);
}

TFU_SHAPE_RULE(grad_shape) {
  const tfu_shape *dy = &in[TFU_LINGRAD_DY], *x = &in[TFU_LINGRAD_X], *kernel = &in[TFU_LINGRAD_KERNEL];
  const tfu_shape *bias = &in[TFU_LINGRAD_BIAS], *pre = &in[TFU_LINGRAD_PRE];
  TFU_TRY(check_matrix("dy", dy, 1, "[..., outputs] with two dimensions or more", err));
  if (tfu_given(x)) {
    const tfu_shape wanted = with_last(dy, last(x));
    TFU_TRY(tfu_match("x", x, "dy up to the last axis", &wanted, err));
  }
  if (tfu_given(kernel)) {
    TFU_TRY(check_matrix("kernel", kernel, 0, "[inputs, outputs]", err));
    const tfu_shape wanted = {.rank = 2, .dim = {tfu_given(x) ? last(x) : TFU_UNKNOWN, last(dy)}};
    TFU_TRY(tfu_match("kernel", kernel, "[inputs of x, outputs of dy]", &wanted, err));
  }
  TFU_TRY(check_bias(bias, last(dy), "dy", dy, err));
  if (tfu_given(pre)) TFU_TRY(tfu_match("pre", pre, "dy", dy, err));
  TFU_REQUIRE(err, !attr || attr[TFU_LINEAR_ACTIVATION].i == TFU_ACT_linear || tfu_given(pre),
              "pre must be given where the activation is not linear, got shape %s", tfu_show(pre).text);
  const tfu_shape dx = with_last(dy, kernel->rank == 2 ? kernel->dim[0] : TFU_UNKNOWN);
  out[TFU_LINGRAD_DX] = tfu_like_if(&dx, kernel);
  out[TFU_LINGRAD_DKERNEL] = matrix_if(x, last(x), last(dy));
  out[TFU_LINGRAD_DBIAS] = *bias;
  return TFU_OK;
}

const tfu_op tfu_linear_grad = {
    .name = "LinearGrad",
    .doc = "Gradient of Linear: dx where kernel is given, dkernel where x is, dbias where bias is.",
    .in = {"dy: T", "x: T", "kernel: T", "bias: T", "pre: T"},
    .out = {"dx: T", "dkernel: T", "dbias: T"},
    .attr = {TFU_LINEAR_ATTRS, TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(linear_grad),
};
