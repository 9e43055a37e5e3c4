/* The loss of softmax(logits), logits = x . kernel + bias, against integer labels (ops/rows/cross_entropy.c), in chunks
 * of rows, so that the logits of all rows never exist at once; and its gradient
 *
 *   dx = dlogits . kernel^T,  dkernel = x^T . dlogits,  dbias = sum of dlogits over the rows,
 *
 * with dlogits that of a row's loss times dloss of the row. `transposed` says that kernel is [classes, inputs], as
 * embeddings are, and not [inputs, classes].
 *
 * Without weights the result is the loss of every row, and the gradient has to compute the logits again. With weights,
 * one for each row, it is one number, the sum of weights times losses. What flows back to that is one number as well,
 * which can be multiplied in later: so the gradients can be had in the same go, while the logits are there. Those that
 * are wanted are given twice, as x and as dx_for. What is not given is an empty vector; weights have an axis of 1 more
 * than labels, so that they are none even where there are no rows. */
#include "ops/products/linear_cross_entropy.h"

#include "tfuse.h"

/* Whether an axis of the kernel may have this size: the one it is, or while that is not known, any. */
static int axis_may_be(const tfu_shape *kernel, const tfu_value *attr, int axis, int64_t size) {
  if (kernel->rank == TFU_UNKNOWN) return 1;
  if (attr) return tfu_may_be(kernel->dim[attr[TFU_LCE_TRANSPOSED].b ? 1 - axis : axis], size);
  return tfu_may_be(kernel->dim[0], size) || tfu_may_be(kernel->dim[1], size);
}

static tfu_code check_inputs(const tfu_shape *in, const tfu_value *attr, tfu_shape *rows, tfu_error *err) {
  const tfu_shape *x = &in[TFU_LCE_X], *kernel = &in[TFU_LCE_KERNEL], *bias = &in[TFU_LCE_BIAS];
  const char *axes = attr && attr[TFU_LCE_TRANSPOSED].b ? "[classes, inputs]" : "[inputs, classes]";
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || x->rank >= 2,
              "x must be [..., inputs] with two dimensions or more, got shape %s", tfu_show(x).text);
  TFU_REQUIRE(err, kernel->rank == TFU_UNKNOWN || kernel->rank == 2, "kernel must be %s, got shape %s", axes,
              tfu_show(kernel).text);
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || axis_may_be(kernel, attr, 0, tfu_cols(x)),
              "the last axis of x and the inputs of kernel, %s, must be of one size, got shapes %s and %s", axes,
              tfu_show(x).text, tfu_show(kernel).text);
  TFU_REQUIRE(err, !attr || !axis_may_be(kernel, attr, 1, 0), "kernel must have one class or more, got shape %s",
              tfu_show(kernel).text);
  TFU_REQUIRE(
      err,
      bias->rank == TFU_UNKNOWN || !tfu_given(bias) || (bias->rank == 1 && axis_may_be(kernel, attr, 1, bias->dim[0])),
      "bias must be a vector with one value per class of kernel %s, got shape %s", tfu_show(kernel).text,
      tfu_show(bias).text);
  *rows = tfu_leading(x);
  return tfu_match("labels", &in[TFU_LCE_LABELS], "the rows of x", rows, err);
}

/* A gradient is like what it is of, where that is given again. */
static tfu_code check_gradients(const tfu_shape *in, tfu_shape *out, tfu_error *err) {
  static const char *const names[] = {"dx_for", "dkernel_for", "dbias_for"}, *const of[] = {"x", "kernel", "bias"};
  for (int i = 0; i < TFU_COUNT(names); i++) {
    out[i] = in[TFU_LCE_DX_FOR + i];
    if (tfu_given(&out[i])) TFU_TRY(tfu_match(names[i], &out[i], of[i], &in[TFU_LCE_X + i], err));
  }
  return TFU_OK;
}

static int certainly_given(const tfu_shape *s) { return s->rank != TFU_UNKNOWN && tfu_given(s); }

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *weights = &in[TFU_LCE_WEIGHTS];
  tfu_shape rows;
  TFU_TRY(check_inputs(in, attr, &rows, err));
  TFU_TRY(check_gradients(in, out + 1, err));
  if (tfu_given(weights)) {
    const tfu_shape wanted = tfu_append(&rows, 1);
    TFU_TRY(tfu_match("weights", weights, "the rows of x, and an axis of 1,", &wanted, err));
  } else {
    for (int i = 0; i < 3; i++)
      TFU_REQUIRE(err, !certainly_given(&out[1 + i]), "gradients need weights: they are those of a sum");
  }
  out[0] = weights->rank == TFU_UNKNOWN ? *weights : tfu_given(weights) ? (tfu_shape){.rank = 0} : rows;
  return TFU_OK;
}

const tfu_op tfu_linear_cross_entropy = {
    .name = "LinearCrossEntropy",
    .doc =
        "Loss of softmax(x . kernel + bias) against integer labels; with weights, the sum of weights times losses, and "
        "the gradients that are wanted.",
    .in = {"x: T", "kernel: T", "bias: T", "labels: L", "weights: S", "dx_for: T", "dkernel_for: T", "dbias_for: T"},
    .out = {"loss: S", "dx: T", "dkernel: T", "dbias: T"},
    .attr = {TFU_LCE_ATTRS, TFU_T_FLOATS, TFU_S_REALS},
    .shape = forward_shape,
    TFU_KERNELS(linear_cross_entropy),
};

TFU_SHAPE_RULE(grad_shape) {
  tfu_shape rows;
  TFU_TRY(check_inputs(in, attr, &rows, err));
  TFU_TRY(tfu_match("dloss", &in[TFU_LCE_WEIGHTS], "the rows of x", &rows, err));
  return check_gradients(in, out, err);
}

const tfu_op tfu_linear_cross_entropy_grad = {
    .name = "LinearCrossEntropyGrad",
    .doc = "Gradient of LinearCrossEntropy where it gives the loss of every row: dx where dx_for is given, and so on.",
    .in = {"x: T", "kernel: T", "bias: T", "labels: L", "dloss: S", "dx_for: T", "dkernel_for: T", "dbias_for: T"},
    .out = {"dx: T", "dkernel: T", "dbias: T"},
    .attr = {TFU_LCE_ATTRS, TFU_T_FLOATS, TFU_S_REALS},
    .shape = grad_shape,
    TFU_KERNELS(linear_cross_entropy_grad),
};

TFU_SHAPE_RULE(scale_shape) {
  TFU_REQUIRE(err, in[1].rank == 0 || in[1].rank == TFU_UNKNOWN, "by must be a single number (shape []), got shape %s",
              tfu_show(&in[1]).text);
  out[0] = in[0];
  return TFU_OK;
}

/* The number is in the arithmetic type: rounded to 16 bits it would put all of a gradient off by the same part. */
const tfu_op tfu_scale_linear_cross_entropy = {
    .name = "ScaleLinearCrossEntropy",
    .doc = "x times one number, for the gradients that LinearCrossEntropy has kept.",
    .in = {"x: T", "by: S"},
    .out = {"y: T"},
    .attr = {TFU_T_FLOATS, TFU_S_REALS},
    .shape = scale_shape,
    TFU_KERNELS(scale_linear_cross_entropy),
    .in_place = 1,
};
