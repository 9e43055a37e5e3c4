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

static tfu_code forward_shape(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  TFU_TRY(check_weights(&in[0], &in[2], &in[3], &in[4], err));
  TFU_REQUIRE(err, !attr || attr[0].i != TFU_RMS_NORM || !tfu_given(&in[3]),
              "kind 'rms' has no beta; add it afterwards");
  if (tfu_given(&in[1])) TFU_TRY(tfu_match("residual", &in[1], "x", &in[0], err));
  const tfu_shape rows = tfu_leading(&in[0]);
  out[0] = in[0];
  out[1] = tfu_like_if(&in[0], tfu_given(&in[4]) ? &in[4] : &in[1]);
  out[2] = tfu_append(&rows, 2);
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
    .cpu = tfu_norm_cpu,
    .gpu = tfu_norm_gpu,
};

static tfu_code grad_shape(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  TFU_TRY(check_weights(&in[2], &in[3], &in[4], &in[6], err));
  TFU_TRY(tfu_match("dy", &in[0], "x", &in[2], err));
  if (tfu_given(&in[1])) TFU_TRY(tfu_match("dsum", &in[1], "x", &in[2], err));
  const tfu_shape rows = tfu_leading(&in[2]), stats = tfu_append(&rows, 2);
  TFU_TRY(tfu_match("stats", &in[5], "the rows of x with two values each", &stats, err));
  out[0] = in[2];
  out[1] = tfu_like_if(&in[2], &in[6]);
  out[2] = in[3];
  out[3] = in[4];
  return TFU_OK;
}

const tfu_op tfu_norm_grad = {
    .name = "NormGrad",
    .doc = "Gradient of Norm; x is what was normalised.",
    .in = {"dy: T", "dsum: T", "x: T", "gamma: S", "beta: S", "stats: S", "seed: int64"},
    .out = {"dx: T", "dresidual: T", "dgamma: S", "dbeta: S"},
    .attr = {TFU_NORM_KIND_ATTR, "rate: float = 0.0", TFU_T_FLOATS, TFU_S_REALS},
    .shape = grad_shape,
    .cpu = tfu_norm_grad_cpu,
    .gpu = tfu_norm_grad_gpu,
    .in_place = 1,
};
