/* y = act(pre) + residual, pre = q(x) . q(kernel) + bias, over the last axis of x, with factors in float8:
 *
 *   q(v) = e4m3(v / scale) * scale
 *
 * where e4m3 rounds to the nearest number of 4 bits of exponent and 3 of fraction, to the even one of two, and what is
 * beyond the largest, 448, to that. x_scale is a scalar; where it is not given, an empty vector, each row of x has its
 * own, max|x| * (1 / 448), or 1 where that is 0 or not finite. kernel_scale is a scalar, or one value per output. A
 * kernel of bytes is kept in e4m3, and is multiplied with its scale alone; `order` says how it lies: 'rows' is [inputs,
 * outputs], 'columns' [outputs, inputs], as GPUs take it. pre is an output where `keep` is given, as of Linear.
 *
 * The gradient is that of Linear, of the same q(x) and q(kernel), as if rounding had slope 1:
 *
 *   dpre = dy * act'(pre),  dx = g(dpre) . q(kernel)^T,  dkernel = q(x)^T . g(dpre),  dbias = sum of dpre over the rows
 *
 * where g rounds as q does, to e5m2, 5 bits of exponent and 2 of fraction, up to 57344. Where dy_scale is not given g
 * is the identity.
 *
 * Training has delayed scaling. A history has the largest |v| of the calls before, and where one is given, of x, of
 * kernel or of dpre, the op also returns what takes its place and that of the scale:
 *
 *   new_history = [max|v|, history[2], ..., history[n - 1], history[0]]
 *   new_scale = 1 / (largest / max(history)), or the old one where max(history) is 0 or not finite
 *
 * as Keras keeps them in the weights of a layer that is quantised to "float8". */
#include "ops/products/float8_linear.h"

#include "ops/products/quantized_linear.h"

enum { UNKNOWN = TFU_UNKNOWN };

static int64_t last(const tfu_shape *s) { return s->rank == UNKNOWN ? UNKNOWN : tfu_cols(s); }

static tfu_shape with_last(const tfu_shape *x, int64_t size) {
  tfu_shape s = *x;
  if (s.rank != UNKNOWN) s.dim[s.rank - 1] = size;
  return s;
}

static tfu_code check_rows(const char *name, const tfu_shape *x, const char *axis, tfu_error *err) {
  TFU_REQUIRE(err, x->rank == UNKNOWN || x->rank >= 2, "%s must be [..., %s] with two dimensions or more, got shape %s",
              name, axis, tfu_show(x).text);
  return TFU_OK;
}

/* A scalar; or a vector of `each`, unless that is NULL; or an empty vector, where it may be missing. */
static tfu_code check_scale(const char *name, const tfu_shape *s, const char *each, int64_t size, int optional,
                            tfu_error *err) {
  if (s->rank == UNKNOWN || s->rank == 0 || (optional && !tfu_given(s))) return TFU_OK;
  TFU_REQUIRE(err, each && s->rank == 1 && tfu_may_be(s->dim[0], size), "%s must be a scalar%s%s, got shape %s", name,
              each ? " or a vector with one value per " : "", each ? each : "", tfu_show(s).text);
  return TFU_OK;
}

static tfu_code read_kernel(const tfu_shape *kernel, const tfu_value *attr, int64_t *inputs, int64_t *outputs,
                            tfu_error *err) {
  const int columns = attr && attr[TFU_FLOAT8_ORDER].i == TFU_FLOAT8_BY_COLUMNS;
  TFU_REQUIRE(err, kernel->rank == UNKNOWN || kernel->rank == 2, "kernel must be %s, got shape %s",
              columns ? "[outputs, inputs]" : "[inputs, outputs]", tfu_show(kernel).text);
  const int known = attr && kernel->rank == 2;
  *inputs = known ? kernel->dim[columns] : UNKNOWN;
  *outputs = known ? kernel->dim[!columns] : UNKNOWN;
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *x = &in[TFU_FLOAT8_X], *residual = &in[TFU_FLOAT8_RESIDUAL];
  int64_t inputs = UNKNOWN, outputs = UNKNOWN;
  TFU_TRY(check_rows("x", x, "inputs", err));
  TFU_TRY(read_kernel(&in[TFU_FLOAT8_KERNEL], attr, &inputs, &outputs, err));
  TFU_REQUIRE(err, tfu_may_be(last(x), inputs),
              "the last axis of x must be of size %lld, as kernel has it, got shapes %s and %s", (long long)inputs,
              tfu_show(x).text, tfu_show(&in[TFU_FLOAT8_KERNEL]).text);
  TFU_TRY(check_scale("x_scale", &in[TFU_FLOAT8_X_SCALE], NULL, 0, 1, err));
  TFU_TRY(check_scale("kernel_scale", &in[TFU_FLOAT8_KERNEL_SCALE], "output", outputs, 0, err));
  TFU_TRY(tfu_quant_vector("bias", &in[TFU_FLOAT8_BIAS], "output", outputs, err));
  out[TFU_FLOAT8_Y] = with_last(x, outputs);
  if (tfu_given(residual)) TFU_TRY(tfu_match("residual", residual, "x . kernel", &out[TFU_FLOAT8_Y], err));
  out[TFU_FLOAT8_PRE] = tfu_like_if(&out[TFU_FLOAT8_Y], &in[TFU_FLOAT8_KEEP]);
  return TFU_OK;
}

/* What x, kernel and bias take where they are rounded: their codes or themselves, and numbers of rows and columns. */
static size_t more_room(const tfu_call *call) {
  const tfu_shape *x = &call->in[TFU_FLOAT8_X].shape, *kernel = &call->in[TFU_FLOAT8_KERNEL].shape;
  const int64_t size = (int64_t)tfu_dtype_size(call->in[TFU_FLOAT8_X].dtype);
  if (x->rank < 2 || kernel->rank != 2 || !tfu_known(x, 0) || !tfu_known(kernel, 0)) return TFU_NO_ROOM;
  return (size_t)((tfu_count(x) + tfu_count(kernel)) * (size + 1) +
                  (tfu_rows(x) + kernel->dim[0] + kernel->dim[1]) * (int64_t)sizeof(float) + 4096);
}

const tfu_op tfu_float8_linear = {
    .name = "Float8Linear",
    .doc =
        "act(x . kernel + bias) + residual over the last axis of x, with factors that are rounded to float8; and, "
        "where keep is given, what act is taken of.",
    .in = {"x: T", "kernel: W", "x_scale: float", "kernel_scale: float", "bias: T", "residual: T", "keep: T"},
    .out = {"y: T", "pre: T"},
    .attr = {TFU_FLOAT8_ATTRS},
    .shape = forward_shape,
    TFU_KERNELS(float8_linear),
    .attr_shapes = 1,
    .capturable = 1,
    .room = TFU_LINEAR_ROOM,
    .more_room = more_room,
};

TFU_SHAPE_RULE(grad_shape) {
  static const char *const scales[] = {"x_scale", "kernel_scale", "dy_scale"};
  static const char *const histories[] = {"x_history", "kernel_history", "dy_history"};
  static const int of[] = {TFU_F8GRAD_X, TFU_F8GRAD_KERNEL, TFU_F8GRAD_DY};
  const tfu_shape *dy = &in[TFU_F8GRAD_DY], *x = &in[TFU_F8GRAD_X], *kernel = &in[TFU_F8GRAD_KERNEL];
  const tfu_shape *bias = &in[TFU_F8GRAD_BIAS], *pre = &in[TFU_F8GRAD_PRE];
  int64_t inputs = UNKNOWN, outputs = UNKNOWN;
  TFU_TRY(check_rows("dy", dy, "outputs", err));
  if (tfu_given(kernel)) TFU_TRY(read_kernel(kernel, attr, &inputs, &outputs, err));
  TFU_REQUIRE(err, tfu_may_be(last(dy), outputs),
              "the last axis of dy must be of size %lld, as kernel has it, got shapes %s and %s", (long long)outputs,
              tfu_show(dy).text, tfu_show(kernel).text);
  if (tfu_given(x)) {
    const tfu_shape wanted = with_last(dy, inputs);
    TFU_TRY(tfu_match("x", x, "dy with the inputs of kernel as its last axis", &wanted, err));
    TFU_REQUIRE(err, !attr || attr[TFU_FLOAT8_ORDER].i == TFU_FLOAT8_BY_ROWS,
                "the gradient of a kernel in the order of columns is none: x must not be given, got shape %s",
                tfu_show(x).text);
  }
  for (int i = 0; i < TFU_FLOAT8_TENSORS; i++) {
    const tfu_shape *scale = &in[TFU_F8GRAD_SCALE + i], *history = &in[TFU_F8GRAD_HISTORY + i];
    const int columns = i == TFU_FLOAT8_OF_KERNEL;
    TFU_TRY(check_scale(scales[i], scale, columns ? "output" : NULL, last(dy), 1, err));
    TFU_REQUIRE(err, history->rank == UNKNOWN || history->rank == 1, "%s must be a vector, got shape %s", histories[i],
                tfu_show(history).text);
    if (history->rank == 1 && history->dim[0] > 0)
      TFU_REQUIRE(err, tfu_given(&in[of[i]]) && (scale->rank == UNKNOWN || scale->rank == 0),
                  "%s must not be given without the tensor and its scale, a scalar; got shapes %s and %s", histories[i],
                  tfu_show(&in[of[i]]).text, tfu_show(scale).text);
    out[TFU_F8GRAD_NEW_SCALE + i] = tfu_like_if(scale, history);
    out[TFU_F8GRAD_NEW_HISTORY + i] = *history;
  }
  TFU_TRY(tfu_quant_vector("bias", bias, "output", last(dy), err));
  if (tfu_given(pre)) TFU_TRY(tfu_match("pre", pre, "dy", dy, err));
  TFU_REQUIRE(err, !attr || attr[TFU_FLOAT8_ACTIVATION].i == TFU_ACT_linear || tfu_given(pre),
              "pre must be given where the activation is not linear, got shape %s", tfu_show(pre).text);
  const tfu_shape dx = with_last(dy, inputs), dkernel = {.rank = 2, .dim = {last(x), last(dy)}};
  out[TFU_F8GRAD_DX] = tfu_like_if(&dx, kernel);
  out[TFU_F8GRAD_DKERNEL] = tfu_like_if(&dkernel, x);
  out[TFU_F8GRAD_DBIAS] = *bias;
  return TFU_OK;
}

const tfu_op tfu_float8_linear_grad = {
    .name = "Float8LinearGrad",
    .doc =
        "Gradient of Float8Linear: dx where kernel is given, dkernel where x is, dbias where bias is; and the scale "
        "and history that come next, of each tensor that has a history.",
    .in = {"dy: T", "x: T", "kernel: W", "x_scale: float", "kernel_scale: float", "dy_scale: float", "x_history: float",
           "kernel_history: float", "dy_history: float", "bias: T", "pre: T"},
    .out = {"dx: T", "dkernel: T", "dbias: T", "new_x_scale: float", "new_kernel_scale: float", "new_dy_scale: float",
            "new_x_history: float", "new_kernel_history: float", "new_dy_history: float"},
    .attr = {TFU_FLOAT8_ATTRS},
    .shape = grad_shape,
    TFU_KERNELS(float8_linear_grad),
    .attr_shapes = 1,
};
