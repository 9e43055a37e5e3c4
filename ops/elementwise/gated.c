/* y = act(a) * b, and its gradient: da = dy * b * act'(a), db = dy * act(a).
 *
 * Where b is an empty vector, a is the two side by side: the first half of its last axis is activated, the second half
 * is what it multiplies; da then has both. */
#include "activations.h"
#include "tfuse.h"

static tfu_code halve(const tfu_shape *a, tfu_shape *y, tfu_error *err) {
  TFU_TRY(tfu_has_rows("a", a, err));
  *y = *a;
  if (a->rank == TFU_UNKNOWN || tfu_cols(a) == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, tfu_cols(a) % 2 == 0, "the last axis of a must be two halves of one size, got shape %s",
              tfu_show(a).text);
  y->dim[y->rank - 1] /= 2;
  return TFU_OK;
}

TFU_SHAPE_RULE(forward_shape) {
  if (!tfu_given(&in[1])) return halve(&in[0], &out[0], err);
  TFU_TRY(tfu_match("b", &in[1], "a", &in[0], err));
  /* Whether b is given may not be known yet. */
  const int open = in[1].rank == TFU_UNKNOWN || (in[1].rank == 1 && in[1].dim[0] == TFU_UNKNOWN);
  out[0] = open ? (tfu_shape){.rank = TFU_UNKNOWN} : in[0];
  return TFU_OK;
}

const tfu_op tfu_gated = {
    .name = "Gated",
    .doc = "act(a) * b; without b, a's last axis holds the two side by side.",
    .in = {"a: T", "b: T"},
    .out = {"y: T"},
    .attr = {TFU_ACTIVATION_ATTR, TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(gated),
    .capturable = 1,
};

TFU_SHAPE_RULE(grad_shape) {
  tfu_shape y;
  TFU_TRY(forward_shape(in + 1, &y, attr, err));
  TFU_TRY(tfu_match("dy", &in[0], "the result", &y, err));
  out[0] = in[1];
  out[1] = in[2];
  return TFU_OK;
}

const tfu_op tfu_gated_grad = {
    .name = "GatedGrad",
    .doc = "Gradient of Gated.",
    .in = {"dy: T", "a: T", "b: T"},
    .out = {"da: T", "db: T"},
    .attr = {TFU_ACTIVATION_ATTR, TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(gated_grad),
    .capturable = 1,
};
