/* y = act((x - mean) / sqrt(variance + epsilon) * gamma + beta + residual) with a mean and variance of each channel.
 * Those of BatchNorm are x's own, which BatchNormStatistics takes, and its gradient goes through them; those of
 * FrozenBatchNorm are inputs like others.
 *
 * x is [outer, channels, inner], a view of [..., channels] or [samples, channels, ...] that costs nothing. gamma, beta
 * and residual may be empty. BatchNormStatistics also gives the running mean and variance, running * (1 - update) +
 * batch * update, or as they were where x is empty; to the batch's mean, shift, rounded to T, is added there, where it
 * is given: a bias that x lacks. Variances are biased, as Keras has them. update is 1 - momentum, which is the smaller
 * number: it loses less.
 *
 * Where relu follows a residual, its gradient needs where y > 0, and no more of y. That is `signs`, [words, 1]: a byte
 * for each pack of 16 bytes of y, whose bit k says whether the pack's element k, as it is stored, is above 0; the
 * last word is filled up with zeros. Words are int64, since TensorFlow keeps int32 in the CPU's memory; and no vector,
 * so that signs of an empty y are given, too. BatchNorm makes them if asked to, by signs_for, [words, 0]: it says their
 * number, for that depends on T, which a shape rule does not see, and inside XLA the sizes of a result must be some
 * input's.
 *
 * The gradient's `kept` is given where an activation follows a residual: it is y for relu, unless signs are given, else
 * the residual. With kept or signs dresidual is dy * act'. Without an activation dresidual is dy, for which no op is
 * needed. dy_more is given where what comes from above is the sum dy + dy_more, as where the result was read twice. */
#include "batch_norm.h"

#include "activations.h"
#include "tfuse.h"

static tfu_shape channels_of(const tfu_shape *x) {
  return x->rank == 3 ? (tfu_shape){.rank = 1, .dim = {x->dim[1]}} : (tfu_shape){.rank = TFU_UNKNOWN};
}

/* Fails unless x has three axes and gamma, beta, mean and variance a value per channel, or, the first two, none. */
static tfu_code check(const tfu_shape *x, const tfu_shape *weights, tfu_error *err) {
  static const char *const names[] = {"gamma", "beta", "mean", "variance"};
  enum { OPTIONAL = 2 };
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || x->rank == 3, "x must be [outer, channels, inner], got shape %s",
              tfu_show(x).text);
  const tfu_shape channels = channels_of(x);
  for (int i = 0; i < TFU_COUNT(names); i++)
    if (i >= OPTIONAL || tfu_given(&weights[i]))
      TFU_TRY(tfu_match(names[i], &weights[i], "x's channels", &channels, err));
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *x = &in[TFU_BATCHNORM_X], *residual = &in[TFU_BATCHNORM_RESIDUAL];
  TFU_TRY(check(x, &in[TFU_BATCHNORM_GAMMA], err));
  if (tfu_given(residual)) TFU_TRY(tfu_match("residual", residual, "x", x, err));
  out[TFU_BATCHNORM_Y] = *x;
  return TFU_OK;
}

/* Whether it can be [words, last]. While a graph is built, a vector of unknown size may be one that is not given. */
static int may_have_words(const tfu_shape *s, int64_t last) {
  if (s->rank == 1) return s->dim[0] == TFU_UNKNOWN;
  return s->rank == TFU_UNKNOWN || (s->rank == 2 && tfu_may_be(s->dim[1], last));
}

TFU_SHAPE_RULE(training_shape) {
  const tfu_shape *wanted = &in[TFU_BATCHNORM_SIGNS_FOR];
  TFU_TRY(forward_shape(in, out, attr, err));
  TFU_REQUIRE(err, !tfu_given(wanted) || may_have_words(wanted, 0), "signs_for must be [words, 0], got shape %s",
              tfu_show(wanted).text);
  TFU_REQUIRE(err, !attr || !tfu_given(wanted) || tfu_given(&in[TFU_BATCHNORM_RESIDUAL]),
              "signs are those of a sum with a residual, and there is none");
  out[TFU_BATCHNORM_SIGNS] = tfu_like_if(&(tfu_shape){.rank = 2, .dim = {wanted->dim[0], 1}}, wanted);
  return TFU_OK;
}

TFU_SHAPE_RULE(statistics_shape) {
  const tfu_shape *x = &in[TFU_BATCHSTATISTICS_X], none = {.rank = 1};
  const tfu_shape weights[] = {none, none, in[TFU_BATCHSTATISTICS_MEAN], in[TFU_BATCHSTATISTICS_VARIANCE]};
  TFU_TRY(check(x, weights, err));
  const tfu_shape channels = channels_of(x), *shift = &in[TFU_BATCHSTATISTICS_SHIFT];
  if (tfu_given(shift)) TFU_TRY(tfu_match("shift", shift, "x's channels", &channels, err));
  for (int i = TFU_BATCHSTATISTICS_NEW_MEAN; i <= TFU_BATCHSTATISTICS_BATCH_VARIANCE; i++) out[i] = channels_of(x);
  return TFU_OK;
}

const tfu_op tfu_batch_norm_statistics = {
    .name = "BatchNormStatistics",
    .doc =
        "Mean and variance of each channel of x, [outer, channels, inner], and the running ones after a step towards "
        "them; the running mean as if shift, rounded to x's type, were added to x.",
    .in = {"x: T", "mean: S", "variance: S", "shift: S"},
    .out = {"new_mean: S", "new_variance: S", "batch_mean: S", "batch_variance: S"},
    .attr = {"update: float = 0.01", TFU_T_FLOATS, TFU_S_REALS},
    .shape = statistics_shape,
    TFU_KERNELS(batch_norm_statistics),
};

const tfu_op tfu_batch_norm = {
    .name = "BatchNorm",
    .doc =
        "act of x, [outer, channels, inner], normalised by its own mean and variance, times gamma, plus beta and "
        "residual; and where that is above 0, in bits, if signs_for says so.",
    .in = {"x: T", "gamma: S", "beta: S", "mean: S", "variance: S", "residual: T", "signs_for: bool"},
    .out = {"y: T", "signs: int64"},
    .attr = {TFU_ACTIVATION_ATTR, "epsilon: float = 0.001", TFU_T_FLOATS, TFU_S_REALS},
    .shape = training_shape,
    TFU_KERNELS(batch_norm),
    .capturable = 1,
    .in_place = 1,
};

const tfu_op tfu_frozen_batch_norm = {
    .name = "FrozenBatchNorm",
    .doc = "BatchNorm with a mean and variance that are given.",
    .in = {"x: T", "gamma: S", "beta: S", "mean: S", "variance: S", "residual: T"},
    .out = {"y: T"},
    .attr = {TFU_ACTIVATION_ATTR, "epsilon: float = 0.001", TFU_T_FLOATS, TFU_S_REALS},
    .shape = forward_shape,
    TFU_KERNELS(frozen_batch_norm),
    .capturable = 1,
    .in_place = 1,
};

/* What both gradients have. */
static tfu_code shared_grad_shape(const tfu_shape *in, tfu_shape *out, tfu_error *err) {
  const tfu_shape *x = &in[TFU_BATCHNORMGRAD_X], *kept = &in[TFU_BATCHNORMGRAD_KEPT],
                  *more = &in[TFU_BATCHNORMGRAD_DY_MORE];
  TFU_TRY(tfu_match("dy", &in[TFU_BATCHNORMGRAD_DY], "x", x, err));
  TFU_TRY(check(x, &in[TFU_BATCHNORMGRAD_GAMMA], err));
  if (tfu_given(kept)) TFU_TRY(tfu_match("kept", kept, "x", x, err));
  if (tfu_given(more)) TFU_TRY(tfu_match("dy_more", more, "x", x, err));
  out[TFU_BATCHNORMGRAD_DX] = *x;
  out[TFU_BATCHNORMGRAD_DRESIDUAL] = tfu_like_if(x, kept);
  out[TFU_BATCHNORMGRAD_DGAMMA] = in[TFU_BATCHNORMGRAD_GAMMA];
  out[TFU_BATCHNORMGRAD_DBETA] = in[TFU_BATCHNORMGRAD_BETA];
  return TFU_OK;
}

/* How many words of signs there must be is for the kernels to say, which know T. */
TFU_SHAPE_RULE(grad_shape) {
  const tfu_shape *signs = &in[TFU_BATCHNORMGRAD_SIGNS];
  TFU_TRY(shared_grad_shape(in, out, err));
  if (!tfu_given(signs)) return TFU_OK;
  TFU_REQUIRE(err, may_have_words(signs, 1), "signs must be [words, 1], got shape %s", tfu_show(signs).text);
  TFU_REQUIRE(err,
              !attr || (attr[TFU_BATCHNORM_ACTIVATION].i == TFU_ACT_relu && !tfu_given(&in[TFU_BATCHNORMGRAD_KEPT])),
              "signs are for relu, and in the place of kept");
  out[TFU_BATCHNORMGRAD_DRESIDUAL] = tfu_like_if(&in[TFU_BATCHNORMGRAD_X], signs);
  return TFU_OK;
}

const tfu_op tfu_batch_norm_grad = {
    .name = "BatchNormGrad",
    .doc =
        "Gradient of BatchNorm by dy + dy_more, with x's own mean and variance; where an activation follows a "
        "residual, relu wants y as kept or its signs, others the residual as kept.",
    .in = {"dy: T", "x: T", "gamma: S", "beta: S", "mean: S", "variance: S", "kept: T", "dy_more: T", "signs: int64"},
    .out = {"dx: T", "dresidual: T", "dgamma: S", "dbeta: S"},
    .attr = {TFU_ACTIVATION_ATTR, "epsilon: float = 0.001", TFU_T_FLOATS, TFU_S_REALS},
    .shape = grad_shape,
    TFU_KERNELS(batch_norm_grad),
    .in_place = 1,
};

TFU_SHAPE_RULE(frozen_grad_shape) {
  TFU_TRY(shared_grad_shape(in, out, err));
  out[TFU_BATCHNORMGRAD_DMEAN] = in[TFU_BATCHNORMGRAD_MEAN];
  out[TFU_BATCHNORMGRAD_DVARIANCE] = in[TFU_BATCHNORMGRAD_VARIANCE];
  return TFU_OK;
}

const tfu_op tfu_frozen_batch_norm_grad = {
    .name = "FrozenBatchNormGrad",
    .doc =
        "Gradient of FrozenBatchNorm by dy + dy_more; kept is y for relu and else the residual, where an activation "
        "follows one.",
    .in = {"dy: T", "x: T", "gamma: S", "beta: S", "mean: S", "variance: S", "kept: T", "dy_more: T"},
    .out = {"dx: T", "dresidual: T", "dgamma: S", "dbeta: S", "dmean: S", "dvariance: S"},
    .attr = {TFU_ACTIVATION_ATTR, "epsilon: float = 0.001", TFU_T_FLOATS, TFU_S_REALS},
    .shape = frozen_grad_shape,
    TFU_KERNELS(frozen_batch_norm_grad),
    .in_place = 1,
};
