/* Projections with kernels in tiles of 8 or 4 bits, as ops/products/quantized_linear.c has them: what they are
 * otherwise, they are here. Where `quantize_rows`, the rows of x, or of its norm, are rounded to 8 bits as well, as
 * QuantizedLinear does it. */
#include "ops/generation/quantized_projections.h"

#include "activations.h"
#include "ops/products/quantized_linear.h"

static const char *const kernel_names[] = {"kernel_a", "kernel_b", "kernel_c"};
static const char *const scale_names[] = {"scale_a", "scale_b", "scale_c"};

/* x . kernel, or an empty vector where there is no kernel. What else is wrong with them, QuantizedLinear says. */
static tfu_code product_shape(const tfu_shape *in, int i, tfu_shape *y, const tfu_value *attr, tfu_error *err) {
  const tfu_shape *x = &in[TFU_PROJECT_X], *kernel = &in[TFU_PROJECT_KERNEL + i], *scale = &in[TFU_PROJECT_SCALE + i];
  tfu_shape linear[TFU_MAX_ARGS];
  *y = (tfu_shape){.rank = 1};
  if (kernel->rank != TFU_UNKNOWN && !tfu_given(kernel)) return TFU_OK;
  TFU_REQUIRE(err, tfu_given(scale), "%s must be given with %s, got shape %s", scale_names[i], kernel_names[i],
              tfu_show(scale).text);
  for (int k = 0; k < TFU_MAX_ARGS; k++) linear[k] = (tfu_shape){.rank = 1};
  linear[TFU_QUANT_X] = *x;
  linear[TFU_QUANT_KERNEL] = *kernel;
  linear[TFU_QUANT_SCALE] = *scale;
  linear[TFU_QUANT_BIAS] = in[TFU_PROJECT_BIAS + i];
  if (i == 0) linear[TFU_QUANT_RESIDUAL] = in[TFU_PROJECT_RESIDUAL];
  if (!attr) return tfu_quantized_linear.shape(linear, y, NULL, err);
  tfu_value how[TFU_MAX_ATTRS] = {[TFU_QUANT_BITS] = attr[TFU_PROJECT_BITS],
                                  [TFU_QUANT_GROUP] = attr[TFU_PROJECT_GROUP],
                                  [TFU_QUANT_ORDER] = {.i = TFU_QUANT_TILES}};
  return tfu_quantized_linear.shape(linear, y, how, err);
}

TFU_SHAPE_RULE(projections_shape) {
  const tfu_shape *x = &in[TFU_PROJECT_X], *residual = &in[TFU_PROJECT_RESIDUAL];
  TFU_TRY(tfu_per_channel(x, "gamma", &in[TFU_PROJECT_GAMMA], err));
  for (int i = 0; i < TFU_PROJECTIONS; i++) TFU_TRY(product_shape(in, i, &out[i], attr, err));
  if (!attr || !attr[TFU_PROJECT_GATED].b) return TFU_OK;
  TFU_REQUIRE(err, !tfu_given(residual) && !tfu_given(&in[TFU_PROJECT_KERNEL + 2]),
              "a gated unit has kernel_a and kernel_b alone, got residual %s and kernel_c %s", tfu_show(residual).text,
              tfu_show(&in[TFU_PROJECT_KERNEL + 2]).text);
  TFU_TRY(tfu_match("x . kernel_b", &out[1], "x . kernel_a", &out[0], err));
  out[1] = (tfu_shape){.rank = 1};
  return TFU_OK;
}

/* What its parts want, the normed x, and the two factors of a gated unit. */
static size_t more_room(const tfu_call *call) {
  const tfu_shape *x = &call->in[TFU_PROJECT_X].shape;
  const size_t size = tfu_dtype_size(call->in[TFU_PROJECT_X].dtype), parts = tfu_linear.room + tfu_norm.room + 8192;
  size_t most = 0;
  if (x->rank < 2 || tfu_count(x) < 0) return parts;
  const int64_t inputs = tfu_cols(x), rows = inputs ? tfu_count(x) / inputs : 0;
  for (int i = 0; i < TFU_PROJECTIONS; i++) {
    const tfu_shape *scale = &call->in[TFU_PROJECT_SCALE + i].shape;
    const int64_t outputs = scale->rank == 3 ? scale->dim[2] : 0;
    const size_t room = tfu_quant_room(rows, inputs, outputs, size, call->attr[TFU_PROJECT_ROWS].b);
    if (room > most) most = room;
    if (call->attr[TFU_PROJECT_GATED].b) most += (size_t)(rows * outputs) * size;
  }
  return most + (size_t)(rows * inputs) * size + (size_t)rows * 2 * sizeof(double) + parts;
}

const tfu_op tfu_quantized_projections = {
    .name = "QuantizedProjections",
    .doc = "Projections with kernels in tiles of 8 or 4 bits.",
    .in = {"x: T", "gamma: S", "kernel_a: uint8", "kernel_b: uint8", "kernel_c: uint8", "bias_a: T", "bias_b: T",
           "bias_c: T", "residual: T", "scale_a: K", "scale_b: K", "scale_c: K"},
    .out = {"a: T", "b: T", "c: T"},
    .attr = {TFU_ACTIVATION_ATTR, "gated: bool = false", "epsilon: float = 1e-6", "bits: int = 8", "group: int = 0",
             "quantize_rows: bool = false", TFU_T_FLOATS, TFU_S_REALS, TFU_K_KEPT},
    .shape = projections_shape,
    TFU_KERNELS(quantized_projections),
    .attr_shapes = 1,
    .capturable = 1,
    .more_room = more_room,
};
