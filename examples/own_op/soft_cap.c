/* soft_cap(x, cap) = cap * tanh(x / cap): x where it is small, and never beyond cap. Language models keep their logits
 * in bounds so. cap is one number that may be learned. */
#include "tfuse.h"

static tfu_code check(const tfu_shape *cap, tfu_error *err) {
  TFU_REQUIRE(err, cap->rank == 0 || cap->rank == TFU_UNKNOWN, "cap must be a single number (shape []), got shape %s",
              tfu_show(cap).text);
  return TFU_OK;
}

static tfu_code forward_shape(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  TFU_TRY(check(&in[1], err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_soft_cap = {
    .name = "SoftCap",
    .doc = "cap * tanh(x / cap).",
    .in = {"x: T", "cap: S"},
    .out = {"y: T"},
    .attr = {TFU_T_FLOATS, TFU_S_REALS},
    .shape = forward_shape,
    TFU_KERNELS(soft_cap),
    .capturable = 1,
    .in_place = 1,
};

static tfu_code grad_shape(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  TFU_TRY(tfu_match("dy", &in[0], "x", &in[1], err));
  TFU_TRY(check(&in[2], err));
  out[0] = in[1];
  out[1] = in[2];
  return TFU_OK;
}

const tfu_op tfu_soft_cap_grad = {
    .name = "SoftCapGrad",
    .doc = "Gradient of SoftCap.",
    .in = {"dy: T", "x: T", "cap: S"},
    .out = {"dx: T", "dcap: S"},
    .attr = {TFU_T_FLOATS, TFU_S_REALS},
    .shape = grad_shape,
    TFU_KERNELS(soft_cap_grad),
    .in_place = 1,
};
