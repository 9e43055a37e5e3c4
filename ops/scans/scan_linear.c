/* A linear recurrence along an axis, h_i = a_i h_{i-1} + b_i, which begins with `initial`, or with 0 where that is not
 * given; in reverse, from the end on. y is all h_i. The gradient goes the other way:
 *
 *   g_i = dy_i + a_{i+1} g_{i+1},  da_i = g_i h_{i-1},  db_i = g_i,  dinitial = a_0 g_0
 *
 * Of complex numbers the gradient has the conjugates of a and h, as all of TensorFlow's have: dy is the derivative of a
 * real number by the real part, plus i times that by the imaginary part.
 *
 * initial has the shape of a, but for the axis, which has 1. */
#include "tfuse.h"

static tfu_code check(const tfu_shape *a, const tfu_shape *initial, const tfu_value *attr, tfu_error *err) {
  TFU_TRY(tfu_has_rows("a", a, err));
  if (!attr || a->rank == TFU_UNKNOWN) return TFU_OK;
  const int64_t axis = attr[0].i;
  TFU_REQUIRE(err, axis >= -a->rank && axis < a->rank, "axis must be one of a %s, got %lld", tfu_show(a).text,
              (long long)axis);
  if (!tfu_given(initial)) return TFU_OK;
  tfu_shape wanted = *a;
  wanted.dim[axis < 0 ? axis + a->rank : axis] = 1;
  return tfu_match("initial", initial, "a with 1 along the axis", &wanted, err);
}

TFU_SHAPE_RULE(forward_shape) {
  TFU_TRY(tfu_match("b", &in[1], "a", &in[0], err));
  TFU_TRY(check(&in[0], &in[2], attr, err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_scan_linear = {
    .name = "ScanLinear",
    .doc = "h_i = a_i * h_{i-1} + b_i along an axis, which begins with initial, or with 0.",
    .in = {"a: T", "b: T", "initial: T"},
    .out = {"y: T"},
    .attr = {"axis: int = 0", "reverse: bool = false", TFU_T_COMPLEX},
    .shape = forward_shape,
    TFU_KERNELS(scan_linear),
};

TFU_SHAPE_RULE(grad_shape) {
  TFU_TRY(tfu_match("a", &in[1], "dy", &in[0], err));
  TFU_TRY(tfu_match("y", &in[2], "dy", &in[0], err));
  TFU_TRY(check(&in[0], &in[3], attr, err));
  out[0] = out[1] = in[0];
  out[2] = in[3];
  return TFU_OK;
}

const tfu_op tfu_scan_linear_grad = {
    .name = "ScanLinearGrad",
    .doc = "Gradient of ScanLinear: of a, of b, and of initial where it is given.",
    .in = {"dy: T", "a: T", "y: T", "initial: T"},
    .out = {"da: T", "db: T", "dinitial: T"},
    .attr = {"axis: int = 0", "reverse: bool = false", TFU_T_COMPLEX},
    .shape = grad_shape,
    TFU_KERNELS(scan_linear_grad),
};
