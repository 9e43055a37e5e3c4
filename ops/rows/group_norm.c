/* y = (x - mean) * rstd * gamma + beta, with mean and variance over one sample's group of channels and all its
 * positions.
 *
 * x is [samples, positions, groups, channels of a group]: a view of [samples, ..., channels] that costs nothing. gamma
 * and beta have a value per channel, or are empty; stats keeps (mean, rstd) of each sample and group. One group is
 * layer normalisation over all but the samples, one channel per group is instance normalisation. */
#include "tfuse.h"

static tfu_code check(const tfu_shape *x, const tfu_shape *gamma, const tfu_shape *beta, tfu_shape *stats,
                      tfu_error *err) {
  const tfu_shape *weights[] = {gamma, beta};
  static const char *const names[] = {"gamma", "beta"};
  *stats = (tfu_shape){.rank = TFU_UNKNOWN};
  if (x->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, x->rank == 4, "x must be [samples, positions, groups, channels of a group], got shape %s",
              tfu_show(x).text);
  const int known = x->dim[2] != TFU_UNKNOWN && x->dim[3] != TFU_UNKNOWN;
  tfu_shape channels = {.rank = 1, .dim = {known ? x->dim[2] * x->dim[3] : TFU_UNKNOWN}};
  for (int i = 0; i < 2; i++)
    if (tfu_given(weights[i])) TFU_TRY(tfu_match(names[i], weights[i], "x's channels", &channels, err));
  *stats = (tfu_shape){.rank = 3, .dim = {x->dim[0], x->dim[2], 2}};
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  TFU_TRY(check(&in[0], &in[1], &in[2], &out[1], err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_group_norm = {
    .name = "GroupNorm",
    .doc =
        "Normalisation of x, [samples, positions, groups, channels of a group], over a group's positions and channels, "
        "times "
        "gamma, plus beta; also mean and 1 / deviation.",
    .in = {"x: T", "gamma: S", "beta: S"},
    .out = {"y: T", "stats: S"},
    .attr = {"epsilon: float = 0.001", TFU_T_FLOATS, TFU_S_REALS},
    .shape = forward_shape,
    TFU_KERNELS(group_norm),
};

TFU_SHAPE_RULE(grad_shape) {
  tfu_shape stats;
  TFU_TRY(tfu_match("dy", &in[0], "x", &in[1], err));
  TFU_TRY(check(&in[1], &in[2], &in[3], &stats, err));
  TFU_TRY(tfu_match("stats", &in[4], "x's samples and groups with two values each", &stats, err));
  out[0] = in[1];
  out[1] = in[2];
  out[2] = in[3];
  return TFU_OK;
}

const tfu_op tfu_group_norm_grad = {
    .name = "GroupNormGrad",
    .doc = "Gradient of GroupNorm.",
    .in = {"dy: T", "x: T", "gamma: S", "beta: S", "stats: S"},
    .out = {"dx: T", "dgamma: S", "dbeta: S"},
    .attr = {TFU_T_FLOATS, TFU_S_REALS},
    .shape = grad_shape,
    TFU_KERNELS(group_norm_grad),
};
