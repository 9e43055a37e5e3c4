/* Running results along an axis: y_i is made of x_0 … x_i, and of x_0 … x_{i-1} where it is exclusive; in reverse, of
 * what lies after instead of before. The first exclusive result is that of nothing: 0 for sums, 1 for products, minus
 * infinity (of integers, the lowest) for maxima and logarithms of sums of exponentials. NaN spreads in all of them. */
#include "tfuse.h"

static tfu_code check_axis(const tfu_shape *x, const tfu_value *attr, int64_t axis, tfu_error *err) {
  TFU_TRY(tfu_has_rows("x", x, err));
  TFU_REQUIRE(err, !attr || (axis >= -x->rank && axis < x->rank), "axis must be one of x %s, got %lld",
              tfu_show(x).text, (long long)axis);
  return TFU_OK;
}

TFU_SHAPE_RULE(scan_shape) {
  TFU_TRY(check_axis(&in[0], attr, attr ? attr[1].i : 0, err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_scan = {
    .name = "Scan",
    .doc = "Running sum, product, maximum or logarithm of the sum of exponentials along an axis.",
    .in = {"x: T"},
    .out = {"y: T"},
    .attr = {"kind: {'sum', 'prod', 'max', 'logsumexp'} = 'sum'", "axis: int = 0", "exclusive: bool = false",
             "reverse: bool = false", "T: {float, half, bfloat16, double, int32, int64}"},
    .shape = scan_shape,
    TFU_KERNELS(scan),
    .in_place = 1,
};

TFU_SHAPE_RULE(recurrence_shape) {
  TFU_TRY(check_axis(&in[0], attr, attr ? attr[0].i : 0, err));
  TFU_TRY(tfu_match("factor", &in[1], "x", &in[0], err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_scan_recurrence = {
    .name = "ScanRecurrence",
    .doc = "y_i = factor_i * y_{i-1} + x_i along an axis, which begins with 0; exclusive: y_{i-1} in the place of y_i.",
    .in = {"x: T", "factor: T"},
    .out = {"y: T"},
    .attr = {"axis: int = 0", "exclusive: bool = false", "reverse: bool = false", "T: {float, double}"},
    .shape = recurrence_shape,
    TFU_KERNELS(scan_recurrence),
    .in_place = 1,
};
