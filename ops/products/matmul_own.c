/* y = a . b over the last two axes, by our own kernels (kernels/products/matmul_own.h); and its gradient
 *
 *   da = dy . b^T,  db = a^T . dy.
 *
 * `kind` says by which of the kernels, on a GPU; the CPU has one. */
#include "ops/products/matmul_own.h"

#include "tfuse.h"

static tfu_code check_matrices(const char *name, const tfu_shape *s, const char *axes, tfu_error *err) {
  TFU_REQUIRE(err, s->rank == TFU_UNKNOWN || s->rank >= 2, "%s must be %s, got shape %s", name, axes, tfu_show(s).text);
  return TFU_OK;
}

/* The shape with other last two axes. */
static tfu_shape with_matrix(const tfu_shape *s, int64_t rows, int64_t cols) {
  tfu_shape out = *s;
  if (out.rank != TFU_UNKNOWN) out.dim[out.rank - 2] = rows, out.dim[out.rank - 1] = cols;
  return out;
}

static int64_t rows_of(const tfu_shape *s) { return s->rank == TFU_UNKNOWN ? TFU_UNKNOWN : s->dim[s->rank - 2]; }
static int64_t cols_of(const tfu_shape *s) { return s->rank == TFU_UNKNOWN ? TFU_UNKNOWN : s->dim[s->rank - 1]; }

TFU_SHAPE_RULE(forward_shape) {
  const tfu_shape *a = &in[TFU_MATMUL_A], *b = &in[TFU_MATMUL_B];
  TFU_TRY(check_matrices("a", a, "[..., rows, inner] with two dimensions or more", err));
  TFU_TRY(check_matrices("b", b, "[..., inner, columns] with two dimensions or more", err));
  const tfu_shape wanted = with_matrix(a, cols_of(a), TFU_UNKNOWN);
  tfu_error ignored;
  TFU_REQUIRE(err, tfu_match("b", b, "a", &wanted, &ignored) == TFU_OK,
              "the last axis of a and the one before the last of b must be of one size, and the axes before those the "
              "same, got shapes %s and %s",
              tfu_show(a).text, tfu_show(b).text);
  const tfu_shape *known = a->rank == TFU_UNKNOWN ? b : a;
  out[0] = with_matrix(known, rows_of(a), cols_of(b));
  return TFU_OK;
}

const tfu_op tfu_matmul_own = {
    .name = "MatmulOwn",
    .doc = "a . b over the last two axes, by tfuse's own kernels: on tensor cores, tiled or naive.",
    .in = {"a: T", "b: T"},
    .out = {"y: T"},
    .attr = {TFU_MATMUL_OWN_ATTRS, TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(matmul_own),
};

TFU_SHAPE_RULE(grad_shape) {
  tfu_shape y;
  const tfu_shape *a = &in[TFU_MATMULGRAD_A], *b = &in[TFU_MATMULGRAD_B];
  TFU_TRY(forward_shape((const tfu_shape[]){[TFU_MATMUL_A] = *a, [TFU_MATMUL_B] = *b}, &y, attr, err));
  TFU_TRY(tfu_match("dy", &in[TFU_MATMULGRAD_DY], "a . b", &y, err));
  out[TFU_MATMULGRAD_DA] = *a;
  out[TFU_MATMULGRAD_DB] = *b;
  return TFU_OK;
}

const tfu_op tfu_matmul_own_grad = {
    .name = "MatmulOwnGrad",
    .doc = "Gradient of MatmulOwn.",
    .in = {"dy: T", "a: T", "b: T"},
    .out = {"da: T", "db: T"},
    .attr = {TFU_MATMUL_OWN_ATTRS, TFU_T_FLOATS},
    .shape = grad_shape,
    TFU_KERNELS(matmul_own_grad),
};
