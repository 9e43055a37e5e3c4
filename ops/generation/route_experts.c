/* The router of a mixture of experts: which experts a row goes to, and how much each of them counts.
 *
 *   p = softmax(logits), rounded to T
 *   numbers = the top_k experts of the largest p, the larger first, of equal ones the first
 *   weights = p of these and, where `normalized`, divided by their sum
 *
 * NaN counts as larger than any number, so that it shows. */
#include "ops/generation/experts.h"
#include "tfuse.h"

TFU_SHAPE_RULE(route_shape) {
  const tfu_shape *logits = &in[0];
  TFU_REQUIRE(err, logits->rank == TFU_UNKNOWN || logits->rank == 2, "logits must be [rows, experts], got shape %s",
              tfu_show(logits).text);
  out[TFU_ROUTE_WEIGHTS].rank = out[TFU_ROUTE_NUMBERS].rank = TFU_UNKNOWN;
  if (!attr || logits->rank == TFU_UNKNOWN) return TFU_OK;
  const int64_t k = attr[TFU_ROUTE_TOP_K].i;
  TFU_REQUIRE(err, k >= 0 && (logits->dim[1] == TFU_UNKNOWN || k <= logits->dim[1]),
              "top_k must be from 0 to the number of experts, got %lld for logits of shape %s", (long long)k,
              tfu_show(logits).text);
  out[TFU_ROUTE_WEIGHTS] = *logits;
  out[TFU_ROUTE_WEIGHTS].dim[1] = k;
  out[TFU_ROUTE_NUMBERS] = out[TFU_ROUTE_WEIGHTS];
  return TFU_OK;
}

const tfu_op tfu_route_experts = {
    .name = "RouteExperts",
    .doc = "The top_k experts of each row of router logits, and their weights: the softmax, normalized or not.",
    .in = {"logits: T"},
    .out = {"weights: T", "numbers: int64"},
    .attr = {"top_k: int = 1", "normalized: bool = true", TFU_T_FLOATS},
    .shape = route_shape,
    TFU_KERNELS(route_experts),
    .attr_shapes = 1,
    .capturable = 1,
};
