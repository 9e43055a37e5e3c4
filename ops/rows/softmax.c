/* y = softmax(x * scale + mask) over the last axis, or its logarithm, and the gradient of x.
 *
 * mask broadcasts to x. A boolean one keeps what is true: the rest counts as minus infinity, and a row with nothing
 * kept is zero. One of x's type is added. An empty vector means "none". The gradient needs y alone: for softmax dx =
 * scale * y * (dy - sum of dy * y), for its logarithm dx = scale * (dy - exp(y) * sum of dy). */
#include "tfuse.h"

TFU_SHAPE_RULE(forward_shape) {
  TFU_TRY(tfu_has_rows("x", &in[0], err));
  if (tfu_given(&in[1])) TFU_TRY(tfu_broadcasts("mask", &in[1], "x", &in[0], err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_softmax = {
    .name = "Softmax",
    .doc = "softmax(x * scale + mask) over the last axis, or its logarithm; a boolean mask keeps what is true.",
    .in = {"x: T", "mask: M"},
    .out = {"y: T"},
    .attr = {"scale: float = 1.0", "log: bool = false", TFU_T_FLOATS,
             "M: {bool, float, half, bfloat16, double} = DT_BOOL"},
    .shape = forward_shape,
    TFU_KERNELS(softmax),
    .capturable = 1,
    .room = TFU_ROWS_ROOM,
    .in_place = 1,
};

TFU_SHAPE_RULE(grad_shape) {
  TFU_TRY(tfu_has_rows("y", &in[1], err));
  TFU_TRY(tfu_match("dy", &in[0], "y", &in[1], err));
  out[0] = in[1];
  return TFU_OK;
}

const tfu_op tfu_softmax_grad = {
    .name = "SoftmaxGrad",
    .doc = "Gradient of Softmax for x, from its result.",
    .in = {"dy: T", "y: T"},
    .out = {"dx: T"},
    .attr = {"scale: float = 1.0", "log: bool = false", TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(softmax_grad),
    .capturable = 1,
    .room = TFU_ROWS_ROOM,
    .in_place = 1,
};
