/* The distinct values of a vector x, in the order in which they first come: x[i] = y[idx[i]], and y[j] comes count[j]
 * times. How many there are depends on the data, so y and count have x's length; what is behind the first `number` of
 * them is 0. -0.0 and 0.0 are equal, and each NaN is a value of its own. */
#include "tfuse.h"

TFU_SHAPE_RULE(unique_shape) {
  TFU_REQUIRE(err, in[0].rank == 1 || in[0].rank == TFU_UNKNOWN, "x must be a vector, got shape %s",
              tfu_show(&in[0]).text);
  TFU_REQUIRE(err, in[0].rank != 1 || in[0].dim[0] <= INT32_MAX, "x must have less than 2^31 values, got %lld",
              (long long)in[0].dim[0]);
  const tfu_shape x = in[0].rank == 1 ? in[0] : (tfu_shape){.rank = 1, .dim = {TFU_UNKNOWN}};
  out[0] = out[1] = out[2] = x;
  out[3] = (tfu_shape){.rank = 0};
  return TFU_OK;
}

const tfu_op tfu_unique = {
    .name = "Unique",
    .doc =
        "The distinct values of a vector in the order of their first indices, where each is, and how often it comes.",
    .in = {"x: T"},
    .out = {"y: T", "idx: int32", "count: int32", "number: int32"},
    .attr = {TFU_T_NUMBERS},
    .shape = unique_shape,
    TFU_KERNELS(unique),
};
