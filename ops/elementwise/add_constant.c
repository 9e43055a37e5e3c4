/* add_constant(x, constant) = x + constant. The constant is a tensor without dimensions, not an attribute, so that it
 * can change from call to call without a new graph. Its gradient is the sum of dy, by Reduce; that of x is dy itself.
 */
#include "tfuse.h"

TFU_SHAPE_RULE(forward_shape) {
  TFU_REQUIRE(err, in[1].rank == 0 || in[1].rank == TFU_UNKNOWN,
              "constant must be a single number (shape []), got shape %s", tfu_show(&in[1]).text);
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_add_constant = {
    .name = "AddConstant",
    .doc = "x + constant, for one number that may change at every call.",
    .in = {"x: T", "constant: T"},
    .out = {"y: T"},
    .attr = {TFU_T_FLOATS},
    .shape = forward_shape,
    TFU_KERNELS(add_constant),
    .capturable = 1,
    .in_place = 1,
};
