/* y = scale * a . b, over the last two axes of each; the axes before them, the batch, broadcast as in NumPy.
 *
 * Where `like` is given, y has its shape: batch axes that a and b have and like has not, or of which like has 1, are
 * summed over. So the op is its own gradient: da is dy . b^T like a, db is a^T . dy like b, and so on. Of like only the
 * shape is read.
 *
 * transpose_a and transpose_b, where given, say that a is stored as [..., k, m] and b as [..., n, k]. They are inputs
 * without elements, not attributes, since a shape rule cannot see those while a graph is being built.
 *
 * tf32 allows float32 products to read their factors with 10 bits after the point. */
#include "ops/products/batched_matmul.h"

#include "ops/products/linear.h"
#include "tfuse.h"

static tfu_code check_matrices(const char *name, const tfu_shape *s, tfu_error *err) {
  TFU_REQUIRE(err, s->rank == TFU_UNKNOWN || s->rank >= 2,
              "%s must be [..., rows, columns] with two dimensions or more, got shape %s", name, tfu_show(s).text);
  return TFU_OK;
}

/* Whether it is known if an optional input is given. */
static int is_known(const tfu_shape *s) { return s->rank != TFU_UNKNOWN && (s->rank != 1 || s->dim[0] >= 0); }

static int64_t size_at(const tfu_shape *s, int from_last) {
  return from_last <= s->rank ? s->dim[s->rank - from_last] : 1;
}

/* a . b, of known rank. */
static tfu_code product_shape(const tfu_shape *a, int transpose_a, const tfu_shape *b, int transpose_b, tfu_shape *y,
                              tfu_error *err) {
  const char *after_a = transpose_a ? " transposed" : "", *after_b = transpose_b ? " transposed" : "";
  TFU_REQUIRE(err, tfu_may_be(size_at(a, transpose_a ? 2 : 1), size_at(b, transpose_b ? 1 : 2)),
              "the last axis of a and the last but one of b must be of one size, got shapes %s%s and %s%s",
              tfu_show(a).text, after_a, tfu_show(b).text, after_b);
  y->rank = a->rank > b->rank ? a->rank : b->rank;
  y->dim[y->rank - 2] = size_at(a, transpose_a ? 1 : 2);
  y->dim[y->rank - 1] = size_at(b, transpose_b ? 2 : 1);
  for (int i = 3; i <= y->rank; i++) {
    const int64_t in_a = size_at(a, i), in_b = size_at(b, i);
    TFU_REQUIRE(err, in_a == 1 || in_b == 1 || tfu_may_be(in_a, in_b),
                "the axes of a and b before the last two must broadcast, got shapes %s and %s", tfu_show(a).text,
                tfu_show(b).text);
    /* Of an unknown size and one of 2 or more, it is the latter. */
    y->dim[y->rank - i] = in_a == 1 || (in_a == TFU_UNKNOWN && in_b != 1) ? in_b : in_a;
  }
  return TFU_OK;
}

static tfu_code check_like(const tfu_shape *like, const tfu_shape *y, tfu_error *err) {
  TFU_TRY(check_matrices("like", like, err));
  TFU_REQUIRE(err, tfu_may_be(size_at(like, 1), size_at(y, 1)) && tfu_may_be(size_at(like, 2), size_at(y, 2)),
              "like must end in the last two axes of a . b, %s, got shape %s", tfu_show(y).text, tfu_show(like).text);
  return tfu_broadcasts("like", like, "a . b", y, err);
}

TFU_SHAPE_RULE(batched_shape) {
  const tfu_shape *a = &in[TFU_BATCHED_A], *b = &in[TFU_BATCHED_B], *like = &in[TFU_BATCHED_LIKE];
  const tfu_shape *transpose_a = &in[TFU_BATCHED_TRANSPOSE_A], *transpose_b = &in[TFU_BATCHED_TRANSPOSE_B];
  TFU_TRY(check_matrices("a", a, err));
  TFU_TRY(check_matrices("b", b, err));
  *out = *like;
  if (is_known(like) && !tfu_given(like)) out->rank = TFU_UNKNOWN;
  if (a->rank == TFU_UNKNOWN || b->rank == TFU_UNKNOWN || !is_known(transpose_a) || !is_known(transpose_b) ||
      !is_known(like))
    return TFU_OK;
  tfu_shape y;
  TFU_TRY(product_shape(a, tfu_given(transpose_a), b, tfu_given(transpose_b), &y, err));
  if (tfu_given(like)) return check_like(like, &y, err);
  *out = y;
  return TFU_OK;
}

const tfu_op tfu_batched_matmul = {
    .name = "BatchedMatmul",
    .doc =
        "scale * a . b over the last two axes, transposed where given; axes before them broadcast, and are "
        "summed over where like, if given, has them not.",
    .in = {"a: T", "b: T", "like: T", "transpose_a: T", "transpose_b: T"},
    .out = {"y: T"},
    .attr = {"scale: float = 1.0", "tf32: bool = false", TFU_T_FLOATS},
    .shape = batched_shape,
    TFU_KERNELS(batched_matmul),
    .room = TFU_LINEAR_ROOM, /* in a chain: XLA does not capture it */
};
