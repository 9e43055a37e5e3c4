/* How many values fall into each of several bins of one width. `bins` is [size, 0]: its first axis says how many there
 * are.
 *
 *   bin of v = min(floor((v - range[0]) / width), size - 1), 0 below the range,  width = (range[1] - range[0]) / size,
 *
 * computed in double. NaN is in no bin. A range whose second value is not greater is an error on the CPU; on the GPU
 * nothing is counted then. */
#include "bins.h"

TFU_SHAPE_RULE(histogram_shape) {
  int64_t size;
  if (in[1].rank != TFU_UNKNOWN)
    TFU_REQUIRE(err, in[1].rank == 1 && tfu_may_be(in[1].dim[0], 2), "range must be two values, got shape %s",
                tfu_show(&in[1]).text);
  TFU_TRY(tfu_bins_of(&in[2], &size, err));
  TFU_REQUIRE(err, size != 0, "bins must be at least one, got none");
  out[0] = (tfu_shape){.rank = 1, .dim = {size}};
  return TFU_OK;
}

const tfu_op tfu_histogram = {
    .name = "Histogram",
    .doc = "How many values fall into each of size bins that divide the range evenly; bins is [size, 0].",
    .in = {"values: T", "range: T", "bins: bool"},
    .out = {"counts: int64"},
    .attr = {TFU_T_NUMBERS},
    .shape = histogram_shape,
    TFU_KERNELS(histogram),
};
