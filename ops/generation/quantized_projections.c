/* Projections with kernels in tiles of 8 or 4 bits, as ops/products/quantized_linear.c has them: what they are
 * otherwise, they are here. Where `quantize_rows`, the rows of x, or of its norm, are rounded to 8 bits as well, as
 * QuantizedLinear does it. */
#include "ops/generation/quantized_projections.h"

#include "activations.h"
#include "tfuse.h"

enum { TILE_ROWS = 16, TILE_COLUMNS = 64 };

static const char *const scale_names[TFU_PROJECTIONS] = {"scale_a", "scale_b", "scale_c"};

/* Tiles and scales that belong together. */
static tfu_code check_tiles(const tfu_shape *kernel, const tfu_shape *scale, int i, const tfu_value *attr,
                            tfu_error *err) {
  const int64_t bits = attr[TFU_PROJECT_BITS].i, group = attr[TFU_PROJECT_GROUP].i;
  TFU_REQUIRE(err, bits == 8 || bits == 4, "bits must be 8 or 4, got %lld", (long long)bits);
  TFU_REQUIRE(err, group >= 0, "group must be rows of the kernel, or 0 where all are one group, got %lld",
              (long long)group);
  const int64_t inputs = kernel->dim[1] * TILE_ROWS, groups = group ? (inputs + group - 1) / group : 1;
  const int64_t across = (scale->dim[2] + TILE_COLUMNS - 1) / TILE_COLUMNS, bytes = TILE_ROWS * TILE_COLUMNS * bits / 8;
  TFU_REQUIRE(err, tfu_may_be(kernel->dim[2], bytes) && (scale->dim[2] < 0 || tfu_may_be(kernel->dim[0], across)),
              "%s, tiles of %lld bits, must be [%lld, tiles down, %lld] for a scale of shape %s, got shape %s",
              tfu_project_kernels[i], (long long)bits, (long long)across, (long long)bytes, tfu_show(scale).text,
              tfu_show(kernel).text);
  TFU_REQUIRE(err, kernel->dim[1] < 0 || tfu_may_be(scale->dim[0], groups),
              "%s must have %lld groups for %lld inputs in groups of %lld, got shape %s", scale_names[i],
              (long long)groups, (long long)inputs, (long long)(group ? group : inputs), tfu_show(scale).text);
  return TFU_OK;
}

static tfu_code product_shape(const tfu_shape *in, int i, tfu_shape *y, const tfu_value *attr, tfu_error *err) {
  const tfu_shape *x = &in[TFU_PROJECT_X], *kernel = &in[TFU_PROJECT_KERNEL + i], *scale = &in[TFU_PROJECT_SCALE + i];
  y->rank = TFU_UNKNOWN;
  if (x->rank == TFU_UNKNOWN || kernel->rank == TFU_UNKNOWN || scale->rank == TFU_UNKNOWN) return TFU_OK;
  TFU_REQUIRE(err, kernel->rank == 3, "%s must be [tiles across, tiles down, bytes], got shape %s",
              tfu_project_kernels[i], tfu_show(kernel).text);
  TFU_REQUIRE(err, scale->rank == 3 && tfu_may_be(scale->dim[1], 2), "%s must be [groups, 2, outputs], got shape %s",
              scale_names[i], tfu_show(scale).text);
  if (attr) TFU_TRY(check_tiles(kernel, scale, i, attr, err));
  TFU_REQUIRE(err, kernel->dim[1] < 0 || tfu_may_be(tfu_cols(x), kernel->dim[1] * TILE_ROWS),
              "the last axis of x must be of size %lld, as %s has it, got shape %s",
              (long long)(kernel->dim[1] * TILE_ROWS), tfu_project_kernels[i], tfu_show(x).text);
  return tfu_project_to(in, i, scale->dim[2], scale_names[i], scale, y, err);
}

TFU_SHAPE_RULE(projections_shape) { return tfu_projections_shape(in, out, attr, product_shape, err); }

/* What its parts want, w and sums among that, the normed x, as it is and rounded, and the two factors of a gated unit.
 */
static size_t more_room(const tfu_call *call) {
  const tfu_shape *x = &call->in[TFU_PROJECT_X].shape;
  const int64_t size = (int64_t)tfu_dtype_size(call->in[TFU_PROJECT_X].dtype);
  const size_t parts = tfu_quantized_linear.room + tfu_norm.room + 8192;
  int64_t widest = 0;
  if (x->rank < 2 || !tfu_known(x, 0)) return parts;
  const int64_t inputs = tfu_cols(x), rows = inputs ? tfu_count(x) / inputs : 0;
  for (int i = 0; i < TFU_PROJECTIONS; i++) {
    const tfu_shape *scale = &call->in[TFU_PROJECT_SCALE + i].shape;
    if (scale->rank == 3 && scale->dim[2] > widest) widest = scale->dim[2];
  }
  return (size_t)(inputs * widest * (size + 1) + rows * (widest * (2 * size + 4) + inputs * (2 * size + 1) + 32)) +
         parts;
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
