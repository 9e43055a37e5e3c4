/* y = x / (1 - rate) where element i is kept, else 0. Its gradient is the same op on dy with the same seed: the mask is
 * computed from seed and i (kernels/core/philox.h), never stored, and the same on CPU, GPU and in XLA. */
#include "tfuse.h"

TFU_SHAPE_RULE(shape) {
  TFU_REQUIRE(err, in[1].rank <= 0, "seed must be a single number (shape []), got shape %s", tfu_show(&in[1]).text);
  out[0] = in[0];
  return TFU_OK;
}

const tfu_op tfu_dropout = {
    .name = "Dropout",
    .doc = "x / (1 - rate), or 0 with probability rate; which, follows from the seed and the element's place.",
    .in = {"x: T", "seed: int64"},
    .out = {"y: T"},
    .attr = {"rate: float", TFU_T_FLOATS},
    .shape = shape,
    TFU_KERNELS(dropout),
    .capturable = 1,
    .in_place = 1,
};
