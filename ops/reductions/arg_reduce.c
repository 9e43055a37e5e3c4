/* Where along an axis the greatest or the least value of x stands: the first such index. As in TensorFlow, a value
 * counts only if it is greater (less) than the lowest (highest) finite number: NaN never does, and where nothing counts
 * the index is 0. An axis without elements is refused unless the result has none either. */
#include "ops/reductions/axes.h"

TFU_SHAPE_RULE(shape) {
  unsigned reduced;
  TFU_TRY(tfu_has_rows("x", &in[0], err));
  out[0].rank = TFU_UNKNOWN;
  if (!attr || in[0].rank == TFU_UNKNOWN) return TFU_OK;
  const int64_t axis = attr[1].i < 0 ? TFU_FROM_END - 1 - attr[1].i : attr[1].i;
  TFU_REQUIRE(err, attr[1].i >= -in[0].rank && attr[1].i < in[0].rank,
              "axis must be one of the %d axes of x %s, got %lld", in[0].rank, tfu_show(&in[0]).text,
              (long long)attr[1].i);
  TFU_TRY(tfu_reduced_axes(&in[0], (int64_t)1 << axis, &reduced, err));
  out[0] = tfu_reduced_shape(&in[0], reduced, 0);
  int may_be_empty = 0;
  for (int i = 0; i < out[0].rank; i++) may_be_empty |= tfu_may_be(out[0].dim[i], 0);
  TFU_REQUIRE(err, in[0].dim[attr[1].i < 0 ? attr[1].i + in[0].rank : attr[1].i] != 0 || may_be_empty,
              "axis %lld of x %s must have elements", (long long)attr[1].i, tfu_show(&in[0]).text);
  return TFU_OK;
}

const tfu_op tfu_arg_reduce = {
    .name = "ArgReduce",
    .doc = "The first index along an axis where x is greatest, or least.",
    .in = {"x: T"},
    .out = {"y: I"},
    .attr = {"kind: {'max', 'min'} = 'max'", "axis: int = 0", "T: {float, half, bfloat16, double, int32, int64}",
             "I: {int32, int64} = DT_INT64"},
    .shape = shape,
    .attr_shapes = 1,
    TFU_KERNELS(arg_reduce),
};
