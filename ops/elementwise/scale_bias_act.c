/* y = act(x * scale + bias) along the last axis (the channels), and its gradient.
 *
 * scale is one number, one value per channel, or an empty vector for "none"; bias the same without the single number.
 * The gradient computes x * scale + bias again: reading x beats keeping a third tensor. */
#include "activations.h"
#include "tfuse.h"

static tfu_code check_operands(const tfu_shape *x, const tfu_shape *scale, const tfu_shape *bias, tfu_error *err) {
  if (scale->rank != 0) TFU_TRY(tfu_per_channel(x, "scale", scale, err));
  return tfu_per_channel(x, "bias", bias, err);
}

TFU_SHAPE_RULE(forward_shape) {
  TFU_TRY(check_operands(&in[0], &in[1], &in[2], err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_scale_bias_act = {
    .name = "ScaleBiasAct",
    .doc = "act(x * scale + bias); scale is a number or per channel, bias per channel, the last axis of x.",
    .in = {"x: T", "scale: T", "bias: T"},
    .out = {"y: T"},
    .attr = {TFU_ACTIVATION_ATTR, TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(scale_bias_act),
    .capturable = 1,
    .in_place = 1,
};

TFU_SHAPE_RULE(grad_shape) {
  TFU_TRY(tfu_match("dy", &in[0], "x", &in[1], err));
  TFU_TRY(check_operands(&in[1], &in[2], &in[3], err));
  out[0] = in[1];
  out[1] = in[2];
  out[2] = in[3];
  return TFU_OK;
}

const tfu_op tfu_scale_bias_act_grad = {
    .name = "ScaleBiasActGrad",
    .doc = "Gradient of ScaleBiasAct.",
    .in = {"dy: T", "x: T", "scale: T", "bias: T"},
    .out = {"dx: T", "dscale: T", "dbias: T"},
    .attr = {TFU_ACTIVATION_ATTR, TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(scale_bias_act_grad),
    .in_place = 1,
};
