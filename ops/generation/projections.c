/* Products of one x with up to three kernels, as decoders have them before attention and in their gated units:
 *
 *   n = x * gamma / sqrt(mean(x^2) + epsilon), or x where there is no gamma
 *   a = act(n . kernel_a + bias_a) + residual,  b = act(n . kernel_b + bias_b),  c = act(n . kernel_c + bias_c)
 *
 * and, where `gated`, a = act(n . kernel_a + bias_a) * (n . kernel_b + bias_b) alone, without residual and kernel_c.
 * What is not given is an empty vector, and so is what comes of it. gamma is in the type of the arithmetic. */
#include "ops/generation/projections.h"

#include "activations.h"
#include "tfuse.h"

const char *const tfu_project_kernels[TFU_PROJECTIONS] = {"kernel_a", "kernel_b", "kernel_c"};

tfu_code tfu_project_to(const tfu_shape *in, int i, int64_t outputs, const char *of, const tfu_shape *of_shape,
                        tfu_shape *y, tfu_error *err) {
  static const char *const names[TFU_PROJECTIONS] = {"bias_a", "bias_b", "bias_c"};
  const tfu_shape *bias = &in[TFU_PROJECT_BIAS + i];
  TFU_REQUIRE(err,
              !tfu_given(bias) || bias->rank == TFU_UNKNOWN || (bias->rank == 1 && tfu_may_be(bias->dim[0], outputs)),
              "%s must be a vector with one value per output of %s, got shapes %s and %s", names[i], of,
              tfu_show(bias).text, tfu_show(of_shape).text);
  *y = in[TFU_PROJECT_X];
  y->dim[y->rank - 1] = outputs;
  return TFU_OK;
}

tfu_code tfu_projections_shape(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_product_rule *product,
                               tfu_error *err) {
  const tfu_shape *x = &in[TFU_PROJECT_X], *residual = &in[TFU_PROJECT_RESIDUAL];
  TFU_REQUIRE(err, x->rank == TFU_UNKNOWN || x->rank >= 2,
              "x must be [..., inputs] with two dimensions or more, got shape %s", tfu_show(x).text);
  TFU_TRY(tfu_per_channel(x, "gamma", &in[TFU_PROJECT_GAMMA], err));
  for (int i = 0; i < TFU_PROJECTIONS; i++) {
    const tfu_shape *kernel = &in[TFU_PROJECT_KERNEL + i];
    out[i] = (tfu_shape){.rank = 1};
    if (kernel->rank == TFU_UNKNOWN || tfu_given(kernel)) TFU_TRY(product(in, i, &out[i], attr, err));
  }
  if (tfu_given(residual)) TFU_TRY(tfu_match("residual", residual, "x . kernel_a", &out[0], err));
  if (!attr || !attr[TFU_PROJECT_GATED].b) return TFU_OK;
  TFU_REQUIRE(err, !tfu_given(residual) && !tfu_given(&in[TFU_PROJECT_KERNEL + 2]),
              "a gated unit has kernel_a and kernel_b alone, got residual %s and kernel_c %s", tfu_show(residual).text,
              tfu_show(&in[TFU_PROJECT_KERNEL + 2]).text);
  TFU_TRY(tfu_match("x . kernel_b", &out[1], "x . kernel_a", &out[0], err));
  out[1] = (tfu_shape){.rank = 1};
  return TFU_OK;
}

static tfu_code product_shape(const tfu_shape *in, int i, tfu_shape *y, const tfu_value *attr, tfu_error *err) {
  const tfu_shape *x = &in[TFU_PROJECT_X], *kernel = &in[TFU_PROJECT_KERNEL + i];
  (void)attr;
  TFU_REQUIRE(err, kernel->rank == TFU_UNKNOWN || kernel->rank == 2, "%s must be [inputs, outputs], got shape %s",
              tfu_project_kernels[i], tfu_show(kernel).text);
  y->rank = TFU_UNKNOWN;
  if (x->rank == TFU_UNKNOWN || kernel->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, tfu_may_be(tfu_cols(x), kernel->dim[0]),
              "the last axis of x and the first of %s must be of one size, got shapes %s and %s",
              tfu_project_kernels[i], tfu_show(x).text, tfu_show(kernel).text);
  return tfu_project_to(in, i, kernel->dim[1], tfu_project_kernels[i], kernel, y, err);
}

TFU_SHAPE_RULE(projections_shape) { return tfu_projections_shape(in, out, attr, product_shape, err); }

/* What its parts want, the normed x, and the two factors of a gated unit. */
static size_t more_room(const tfu_call *call) {
  const tfu_shape *x = &call->in[TFU_PROJECT_X].shape, *kernel = &call->in[TFU_PROJECT_KERNEL].shape;
  const size_t parts = tfu_linear.room + tfu_norm.room;
  if (x->rank < 2 || kernel->rank != 2 || !tfu_known(x, 0)) return parts;
  const int64_t rows = tfu_cols(x) ? tfu_count(x) / tfu_cols(x) : 0;
  return (size_t)(rows * (tfu_cols(x) + 2 * kernel->dim[1])) * tfu_dtype_size(call->in[TFU_PROJECT_X].dtype) +
         (size_t)rows * 2 * sizeof(double) + 4096 + parts;
}

const tfu_op tfu_projections = {
    .name = "Projections",
    .doc = "Products of x, or of its RMS norm, with up to three kernels; where gated, act(a) * b of the first two.",
    .in = {"x: T", "gamma: S", "kernel_a: T", "kernel_b: T", "kernel_c: T", "bias_a: T", "bias_b: T", "bias_c: T",
           "residual: T"},
    .out = {"a: T", "b: T", "c: T"},
    .attr = {TFU_ACTIVATION_ATTR, "gated: bool = false", "epsilon: float = 1e-6", TFU_T_FLOATS, TFU_S_REALS},
    .shape = projections_shape,
    TFU_KERNELS(projections),
    .attr_shapes = 1,
    .capturable = 1,
    .more_room = more_room,
};
