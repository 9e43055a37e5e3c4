/* How often each number from 0 on comes in a row of ids (the last axis), or the sum of the weights that come with it.
 * `bins` is [size, 0]: its first axis says how many there are. Ids that are no bin are passed over; less than 0, they
 * are an error on the CPU. Counts are exact, and sums are taken in an order that depends on the shapes alone. */
#include "bins.h"

TFU_SHAPE_RULE(counts_shape) {
  int64_t size;
  TFU_TRY(tfu_has_rows("ids", &in[0], err));
  TFU_TRY(tfu_bins_of(&in[1], &size, err));
  out[0] = tfu_leading(&in[0]);
  out[0] = tfu_append(&out[0], size);
  return TFU_OK;
}

const tfu_op tfu_bincount = {
    .name = "Bincount",
    .doc = "How often each id from 0 up to size comes in a row (last axis), or whether it does; bins is [size, 0].",
    .in = {"ids: T", "bins: bool"},
    .out = {"counts: int64"},
    .attr = {"binary: bool = false", "T: {int32, int64}"},
    .shape = counts_shape,
    TFU_KERNELS(bincount),
};

TFU_SHAPE_RULE(sums_shape) {
  TFU_TRY(tfu_match("weights", &in[0], "ids", &in[1], err));
  return counts_shape(&in[1], out, attr, err);
}

const tfu_op tfu_weighted_bincount = {
    .name = "WeightedBincount",
    .doc = "The sum of the weights whose id is 0, 1, … up to size, of each row (last axis); bins is [size, 0].",
    .in = {"weights: T", "ids: L", "bins: bool"},
    .out = {"sums: T"},
    .attr = {"L: {int32, int64}", TFU_T_NUMBERS},
    .shape = sums_shape,
    TFU_KERNELS(weighted_bincount),
};

TFU_SHAPE_RULE(weights_shape) {
  TFU_TRY(tfu_has_rows("dsums", &in[0], err));
  TFU_TRY(tfu_has_rows("ids", &in[1], err));
  const tfu_shape sums = tfu_leading(&in[0]), ids = tfu_leading(&in[1]);
  TFU_TRY(tfu_match("all but the last axis of dsums", &sums, "ids there", &ids, err));
  out[0] = in[1];
  return TFU_OK;
}

const tfu_op tfu_weighted_bincount_grad = {
    .name = "WeightedBincountGrad",
    .doc =
        "Gradient of WeightedBincount with respect to its weights: of each id, what dsums has there; 0 beyond the "
        "bins.",
    .in = {"dsums: T", "ids: L"},
    .out = {"dweights: T"},
    .attr = {"L: {int32, int64}", TFU_T_NUMBERS},
    .shape = weights_shape,
    TFU_KERNELS(weighted_bincount_grad),
    .capturable = 1,
};
