/* y = x with its axes in another order: axis i of y is axis perm[i] of x, as tf.transpose has it.
 *
 * The attribute perm has four bits for each axis of y, the lowest for the first. */
#include "tfuse.h"

TFU_SHAPE_RULE(shape) {
  const int rank = in[0].rank;
  unsigned seen = 0;
  out[0].rank = rank;
  for (int i = 0; i < rank; i++) {
    if (!attr) { /* a graph is built: only the rank is known */
      out[0].dim[i] = TFU_UNKNOWN;
      continue;
    }
    const int from = (int)(attr[0].i >> 4 * i & 15);
    seen |= 1u << from;
    TFU_REQUIRE(err, from < rank, "perm must name each axis of x %s once, got axis %d", tfu_show(&in[0]).text, from);
    out[0].dim[i] = in[0].dim[from];
  }
  TFU_REQUIRE(err, !attr || rank < 0 || seen == (1u << rank) - 1, "perm must name each axis of x %s once, got 0x%llx",
              tfu_show(&in[0]).text, (unsigned long long)attr[0].i);
  return TFU_OK;
}

const tfu_op tfu_transpose = {
    .name = "Transpose",
    .doc = "x with its axes in another order; perm has four bits for each axis of y, the lowest for the first.",
    .in = {"x: T"},
    .out = {"y: T"},
    .attr = {"perm: int", "T: {float, half, bfloat16, double, int32, int64, bool}"},
    .shape = shape,
    .attr_shapes = 1,
    TFU_KERNELS(transpose),
    .capturable = 1,
};
