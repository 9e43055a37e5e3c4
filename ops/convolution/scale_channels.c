/* y = x * scale, where scale has a number for each image and channel, as squeeze-and-excitation has it; and its
 * gradient: dx = dy * scale, dscale = sum of dy * x over the positions of an image.
 *
 * x is [images, positions …, channels], and scale the same with 1 for all positions. With `drop`, what is multiplied by
 * 0 is 0, also if it is infinite or no number: the dropout of whole images. */
#include "tfuse.h"

static tfu_code check_scale(const tfu_shape *x, const tfu_shape *scale, tfu_error *err) {
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || x->rank >= 2, "x must be [images, positions …, channels], got shape %s",
              tfu_show(x).text);
  if (x->rank == TFU_UNKNOWN || scale->rank == TFU_UNKNOWN) return TFU_OK;
  int fits = x->rank == scale->rank;
  for (int i = 0; fits && i < x->rank; i++)
    fits = tfu_may_be(scale->dim[i], i == 0 || i == x->rank - 1 ? x->dim[i] : 1);
  TFU_REQUIRE(err, fits, "scale must have the shape of x, %s, with 1 for all but the first and last axis, got %s",
              tfu_show(x).text, tfu_show(scale).text);
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  TFU_TRY(check_scale(&in[0], &in[1], err));
  out[0] = in[0];
  return TFU_OK;
}

TFU_SHAPE_RULE(grad_shape) {
  TFU_TRY(check_scale(&in[1], &in[2], err));
  TFU_TRY(tfu_match("dy", &in[0], "x", &in[1], err));
  out[0] = in[1];
  out[1] = in[2];
  return TFU_OK;
}

const tfu_op tfu_scale_channels = {
    .name = "ScaleChannels",
    .doc = "x times a number for each image and channel; with drop, 0 times anything is 0.",
    .in = {"x: T", "scale: T"},
    .out = {"y: T"},
    .attr = {"drop: bool = false", TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(scale_channels),
    .capturable = 1,
};

const tfu_op tfu_scale_channels_grad = {
    .name = "ScaleChannelsGrad",
    .doc = "Gradient of ScaleChannels.",
    .in = {"dy: T", "x: T", "scale: T"},
    .out = {"dx: T", "dscale: T"},
    .attr = {TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(scale_channels_grad),
};
