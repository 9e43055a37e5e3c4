/* Sort: the values of each row (the last axis) in order. Argsort: their indices in the row, in that order; of equal
 * values the lower index comes first. Unsort: what is at index j of a row of dy goes to index indices[j] of dx, and all
 * else is 0; this is the gradient of values that were moved so.
 *
 * NaN is greater than all others. -0.0 and 0.0 are equal for indices; among the values of Sort -0.0 is the less. */
#include "tfuse.h"

TFU_SHAPE_RULE(sort_shape) {
  TFU_TRY(tfu_has_rows("values", &in[0], err));
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_sort = {
    .name = "Sort",
    .doc = "The values of each row (last axis) in order; NaN is the greatest.",
    .in = {"values: T"},
    .out = {"sorted: T"},
    .attr = {"descending: bool = false", TFU_T_NUMBERS},
    .shape = sort_shape,
    TFU_KERNELS(sort),
};

const tfu_op tfu_argsort = {
    .name = "Argsort",
    .doc = "The indices of each row's values in order; of equal values the lower index comes first.",
    .in = {"values: T"},
    .out = {"indices: int32"},
    .attr = {"descending: bool = false", TFU_T_NUMBERS},
    .shape = sort_shape,
    TFU_KERNELS(argsort),
};

TFU_SHAPE_RULE(unsort_shape) {
  TFU_TRY(tfu_has_rows("values", &in[2], err));
  TFU_TRY(tfu_match("dy", &in[0], "indices", &in[1], err));
  const tfu_shape rows = tfu_leading(&in[1]), wanted = tfu_leading(&in[2]);
  if (in[1].rank != TFU_UNKNOWN && in[2].rank != TFU_UNKNOWN)
    TFU_TRY(tfu_match("the rows of indices", &rows, "the rows of values", &wanted, err));
  out[0] = in[2];
  return TFU_OK;
}

const tfu_op tfu_unsort = {
    .name = "Unsort",
    .doc = "Row by row dx[indices[j]] = dy[j], and 0 elsewhere; dx is like values. No index may come twice.",
    .in = {"dy: T", "indices: int32", "values: T"},
    .out = {"dx: T"},
    .attr = {TFU_T_NUMBERS},
    .shape = unsort_shape,
    TFU_KERNELS(unsort),
    .capturable = 1,
};
