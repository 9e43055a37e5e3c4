/* The k greatest of each row (the last axis) and their indices, greatest first, as Argsort descending gives them: of
 * equal values the lower index comes first, and NaN is greater than all others. `k` is [k, 0]: its first axis says
 * k. */
#include "tfuse.h"

TFU_SHAPE_RULE(top_k_shape) {
  TFU_TRY(tfu_has_rows("input", &in[0], err));
  int64_t k = TFU_UNKNOWN;
  if (in[1].rank != TFU_UNKNOWN) {
    TFU_REQUIRE(err, in[1].rank == 2, "k must be [k, 0], got %s", tfu_show(&in[1]).text);
    k = in[1].dim[0];
  }
  if (in[0].rank != TFU_UNKNOWN && k != TFU_UNKNOWN)
    TFU_REQUIRE(err, tfu_cols(&in[0]) == TFU_UNKNOWN || k <= tfu_cols(&in[0]),
                "k must be at most %lld, the size of the last axis of input %s, got %lld", (long long)tfu_cols(&in[0]),
                tfu_show(&in[0]).text, (long long)k);
  out[0] = tfu_leading(&in[0]);
  if (in[0].rank == TFU_UNKNOWN) out[0].rank = TFU_UNKNOWN;
  out[0] = tfu_append(&out[0], k);
  out[1] = out[0];
  return TFU_OK;
}

const tfu_op tfu_top_k = {
    .name = "TopK",
    .doc = "The k greatest of each row (last axis) and their indices, greatest first; k is [k, 0].",
    .in = {"input: T", "k: bool"},
    .out = {"values: T", "indices: int32"},
    .attr = {TFU_T_NUMBERS},
    .shape = top_k_shape,
    TFU_KERNELS(top_k),
};
