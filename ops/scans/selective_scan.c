/* Mamba's selective scan. Each channel d of x [batch, length, channels] has a few states h, which begin with `initial`,
 * or with 0 where that is not given:
 *
 *   h_t = exp(delta_t a) h_{t-1} + delta_t x_t b_t,   y_t = c_t . h_t + skip x_t
 *
 * a is [channels, states], delta like x. b and c are [batch, length, groups, states]: channels are in as many groups of
 * equal size, one after the other, and those of a group share them. skip has a value for each channel, 0 where it is
 * not given. last is h after the last step, [batch, channels, states].
 *
 * The gradient goes the other way, with g_t = dh_t:
 *
 *   g_t = dy_t c_t + exp(delta_{t+1} a) g_{t+1}
 *   da += g_t delta_t exp(delta_t a) h_{t-1},   ddelta_t = sum of g_t (a exp(delta_t a) h_{t-1} + x_t b_t)
 *   dx_t = delta_t g_t . b_t + skip dy_t,       db_t += g_t delta_t x_t,       dc_t += dy_t h_t
 *
 * Gradients of skip and initial are empty vectors where these are not given. */
#include "ops/scans/selective_scan.h"

#include "tfuse.h"

/* Of x and what follows it in both ops; *last is the shape of the states. */
static tfu_code check(const tfu_shape *in, tfu_shape *last, tfu_error *err) {
  const tfu_shape *x = &in[TFU_SELECT_X], *a = &in[TFU_SELECT_A], *b = &in[TFU_SELECT_B];
  TFU_TRY(tfu_has_rank("x", x, 3, "[batch, length, channels]", err));
  TFU_TRY(tfu_match("delta", &in[TFU_SELECT_DELTA], "x", x, err));
  TFU_TRY(tfu_has_rank("a", a, 2, "[channels, states]", err));
  TFU_TRY(tfu_has_rank("b", b, 4, "[batch, length, groups, states]", err));
  const int64_t channels = tfu_axis(x, 2), states = tfu_axis(a, 1), groups = tfu_axis(b, 2);
  TFU_REQUIRE(err, tfu_may_be(tfu_axis(a, 0), channels), "a must have a row for each channel of x %s, got shape %s",
              tfu_show(x).text, tfu_show(a).text);
  TFU_REQUIRE(err, states <= TFU_SELECT_STATES, "a channel may have up to %d states, got a of shape %s",
              TFU_SELECT_STATES, tfu_show(a).text);
  TFU_REQUIRE(err,
              tfu_may_be(tfu_axis(b, 0), tfu_axis(x, 0)) && tfu_may_be(tfu_axis(b, 1), tfu_axis(x, 1)) &&
                  tfu_may_be(tfu_axis(b, 3), states),
              "b must be [batch, length, groups, states], with those of x %s and a %s, got shape %s", tfu_show(x).text,
              tfu_show(a).text, tfu_show(b).text);
  TFU_REQUIRE(err, groups == TFU_UNKNOWN || (groups > 0 && (channels == TFU_UNKNOWN || channels % groups == 0)),
              "the groups of b must divide the channels of x %s, got b of shape %s", tfu_show(x).text,
              tfu_show(b).text);
  TFU_TRY(tfu_match("c", &in[TFU_SELECT_C], "b", b, err));
  TFU_TRY(tfu_per_channel(x, "skip", &in[TFU_SELECT_SKIP], err));
  *last = (tfu_shape){.rank = 3, .dim = {tfu_axis(x, 0), channels, states}};
  if (!tfu_given(&in[TFU_SELECT_INITIAL])) return TFU_OK;
  return tfu_match("initial", &in[TFU_SELECT_INITIAL], "[batch, channels, states]", last, err);
}

TFU_SHAPE_RULE(forward_shape) {
  out[TFU_SELECT_Y] = in[TFU_SELECT_X];
  return check(in, &out[TFU_SELECT_LAST], err);
}

const tfu_op tfu_selective_scan = {
    .name = "SelectiveScan",
    .doc =
        "h_t = exp(delta_t * a) * h_{t-1} + delta_t * x_t * b_t, of some states for each channel: y_t = c_t . h_t + "
        "skip * x_t, and the last h.",
    .in = {"x: T", "delta: T", "a: S", "b: T", "c: T", "skip: S", "initial: S"},
    .out = {"y: T", "last: S"},
    .attr = {TFU_T_FLOATS, TFU_S_REALS},
    .shape = forward_shape,
    TFU_KERNELS(selective_scan),
};

TFU_SHAPE_RULE(grad_shape) {
  const tfu_shape *from = in + TFU_SELGRAD_X;
  tfu_shape last;
  TFU_TRY(check(from, &last, err));
  TFU_TRY(tfu_match("dy", &in[TFU_SELGRAD_DY], "x", from, err));
  if (tfu_given(&in[TFU_SELGRAD_DLAST])) TFU_TRY(tfu_match("dlast", &in[TFU_SELGRAD_DLAST], "last", &last, err));
  for (int i = 0; i < TFU_SELECT_INPUTS; i++) out[i] = from[i];
  return TFU_OK;
}

const tfu_op tfu_selective_scan_grad = {
    .name = "SelectiveScanGrad",
    .doc = "Gradient of SelectiveScan: of all its inputs that are given.",
    .in = {"dy: T", "dlast: S", "x: T", "delta: T", "a: S", "b: T", "c: T", "skip: S", "initial: S"},
    .out = {"dx: T", "ddelta: T", "da: S", "db: T", "dc: T", "dskip: S", "dinitial: S"},
    .attr = {TFU_T_FLOATS, TFU_S_REALS},
    .shape = grad_shape,
    TFU_KERNELS(selective_scan_grad),
};
