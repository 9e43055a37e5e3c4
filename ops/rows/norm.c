/* Normalisation over the last axis, with what stands around it in a transformer:
 *
 *   h = residual + dropout(x),  y = (h - mean) * rstd * gamma + beta,
 *
 * rstd = 1 / sqrt(variance + epsilon); for the kind 'rms', mean is 0, the variance is the mean of h^2, and there is no
 * beta. residual,
 * gamma, beta and seed are empty vectors where not given; without a seed nothing is dropped. `sum` is h, empty where h
 * is x itself; stats keeps (mean, rstd) of each row. gamma, beta and stats are in the type of the arithmetic, so that
 * 16-bit layers keep float32 weights.
 *
 * The gradient takes h as `x`, and dsum, the gradient that reaches h by itself. dx passes through dropout again; where
 * there is a dropout, the gradient of the residual is apart. */
#include "ops/rows/norm.h"

#include "tfuse.h"

static tfu_code check_weights(const tfu_shape *x, const tfu_shape *gamma, const tfu_shape *beta, const tfu_shape *seed,
                              tfu_error *err) {
  TFU_TRY(tfu_has_rows("x", x, err));
  TFU_TRY(tfu_per_channel(x, "gamma", gamma, err));
  TFU_TRY(tfu_per_channel(x, "beta", beta, err));
  TFU_REQUIRE(err, seed->rank <= 0 || !tfu_given(seed), "seed must be a single number (shape []), got shape %s",
              tfu_show(seed).text);
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  TFU_TRY(check_weights(&in[TFU_NORM_X], &in[TFU_NORM_GAMMA], &in[TFU_NORM_BETA], &in[TFU_NORM_SEED], err));
  TFU_REQUIRE(err, !attr || attr[TFU_NORM_KIND].i != TFU_RMS_NORM || !tfu_given(&in[TFU_NORM_BETA]),
              "kind 'rms' has no beta; add it afterwards");
  if (tfu_given(&in[TFU_NORM_RESIDUAL]))
    TFU_TRY(tfu_match("residual", &in[TFU_NORM_RESIDUAL], "x", &in[TFU_NORM_X], err));
  const tfu_shape rows = tfu_leading(&in[TFU_NORM_X]);
  out[TFU_NORM_Y] = in[TFU_NORM_X];
  out[TFU_NORM_SUM] =
      tfu_like_if(&in[TFU_NORM_X], tfu_given(&in[TFU_NORM_SEED]) ? &in[TFU_NORM_SEED] : &in[TFU_NORM_RESIDUAL]);
  out[TFU_NORM_STATS] = tfu_append(&rows, 2);
  return TFU_OK;
}

const tfu_op tfu_norm = {
    .name = "Norm",
    .doc =
        "Layer or RMS normalisation of h = residual + dropout(x) over the last axis, times gamma, plus beta; also h, "
        "and "
        "mean and 1 / deviation of each row.",
    .in = {"x: T", "residual: T", "gamma: S", "beta: S", "seed: int64"},
    .out = {"y: T", "sum: T", "stats: S"},
    .attr = {TFU_NORM_KIND_ATTR, "epsilon: float = 0.001", "rate: float = 0.0", TFU_T_FLOATS, TFU_S_REALS},
    .shape = forward_shape,
    TFU_KERNELS(norm),
    .capturable = 1,
    .room = TFU_ROWS_ROOM,
};

TFU_SHAPE_RULE(grad_shape) {
  TFU_TRY(
      check_weights(&in[TFU_NORMGRAD_X], &in[TFU_NORMGRAD_GAMMA], &in[TFU_NORMGRAD_BETA], &in[TFU_NORMGRAD_SEED], err));
  TFU_TRY(tfu_match("dy", &in[TFU_NORMGRAD_DY], "x", &in[TFU_NORMGRAD_X], err));
  if (tfu_given(&in[TFU_NORMGRAD_DSUM]))
    TFU_TRY(tfu_match("dsum", &in[TFU_NORMGRAD_DSUM], "x", &in[TFU_NORMGRAD_X], err));
  const tfu_shape rows = tfu_leading(&in[TFU_NORMGRAD_X]), stats = tfu_append(&rows, 2);
  TFU_TRY(tfu_match("stats", &in[TFU_NORMGRAD_STATS], "the rows of x with two values each", &stats, err));
  out[TFU_NORMGRAD_DX] = in[TFU_NORMGRAD_X];
  out[TFU_NORMGRAD_DRESIDUAL] = tfu_like_if(&in[TFU_NORMGRAD_X], &in[TFU_NORMGRAD_SEED]);
  out[TFU_NORMGRAD_DGAMMA] = in[TFU_NORMGRAD_GAMMA];
  out[TFU_NORMGRAD_DBETA] = in[TFU_NORMGRAD_BETA];
  return TFU_OK;
}

const tfu_op tfu_norm_grad = {
    .name = "NormGrad",
    .doc = "Gradient of Norm; x is what was normalised.",
    .in = {"dy: T", "dsum: T", "x: T", "gamma: S", "beta: S", "stats: S", "seed: int64"},
    .out = {"dx: T", "dresidual: T", "dgamma: S", "dbeta: S"},
    .attr = {TFU_NORM_KIND_ATTR, "rate: float = 0.0", TFU_T_FLOATS, TFU_S_REALS},
    .shape = grad_shape,
    TFU_KERNELS(norm_grad),
    .in_place = 1,
};
