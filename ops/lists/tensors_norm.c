/* Over a list of tensors, in one pass: norm = sqrt(sum of all x * x), norms, the same of each, and finite, whether no
 * value is NaN or infinite. And y = x * clip / max(norm, clip) for all of them, the way TensorFlow and Keras clip by a
 * global norm: x * (clip * min(1 / norm, 1 / clip)), NaN where the norm is not finite. */
#include "tfuse.h"

static tfu_code norm_rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  (void)attr, (void)err;
  l->shapes[0] = (tfu_shape){.rank = 0};
  l->shapes[1] = (tfu_shape){.rank = 1, .dim = {l->in[0].n}};
  l->shapes[2] = (tfu_shape){.rank = 0};
  return TFU_OK;
}

const tfu_op tfu_tensors_norm = {
    .name = "TensorsNorm",
    .doc = "The norm of a list of tensors, the norm of each, and whether all values are finite.",
    .in = {"x: N * T"},
    .out = {"norm: S", "norms: S", "finite: bool"},
    .attr = {"N: int >= 1", TFU_T_FLOATS, TFU_S_REALS},
    .lists = norm_rule,
    TFU_KERNELS(tensors_norm),
};

static tfu_code clip_rule(tfu_lists *l, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  const tfu_dtype wanted = tfu_real(l->in[0].at->dtype);
  for (int i = 1; i <= 2; i++)
    TFU_REQUIRE(err, l->in[i].at->shape.rank == 0, "%s must be a single number, got shape %s", i == 1 ? "norm" : "clip",
                tfu_show(&l->in[i].at->shape).text);
  TFU_REQUIRE(err, l->in[1].at->dtype == wanted, "norm and clip must be %s where x is %s, got %s",
              tfu_dtype_name(wanted), tfu_dtype_name(l->in[0].at->dtype), tfu_dtype_name(l->in[1].at->dtype));
  for (int i = 0; i < l->in[0].n; i++) l->shapes[i] = l->in[0].at[i].shape;
  return TFU_OK;
}

const tfu_op tfu_clip_by_tensors_norm = {
    .name = "ClipByTensorsNorm",
    .doc = "A list of tensors, scaled so that its norm, which is given, is at most clip.",
    .in = {"x: N * T", "norm: S", "clip: S"},
    .out = {"y: N * T"},
    .attr = {"N: int >= 1", TFU_T_FLOATS, TFU_S_REALS},
    .lists = clip_rule,
    TFU_KERNELS(clip_by_tensors_norm),
    .capturable = 1,
    .in_place = 1,
};
