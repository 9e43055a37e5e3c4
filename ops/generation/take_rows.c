/* y[r] = table[ids[r]]: rows of a table by their numbers, as an embedding has them. A number that there is not gives
 * zeros. */
#include "tfuse.h"

static tfu_code rule(const tfu_shape *in, tfu_shape *out, const tfu_value *attr, tfu_error *err) {
  (void)attr;
  TFU_REQUIRE(err, in[0].rank == TFU_UNKNOWN || in[0].rank == 2, "table must be [rows, width], got shape %s",
              tfu_show(&in[0]).text);
  out[0].rank = TFU_UNKNOWN;
  if (in[1].rank == TFU_UNKNOWN) return TFU_OK;
  out[0] = tfu_append(&in[1], in[0].rank == 2 ? in[0].dim[1] : TFU_UNKNOWN);
  return TFU_OK;
}

const tfu_op tfu_take_rows = {
    .name = "TakeRows",
    .doc = "Rows of a table by their numbers; zeros for a number that there is not.",
    .in = {"table: T", "ids: int64"},
    .out = {"y: T"},
    .attr = {"T: {float, half, bfloat16, double, int64}"},
    .shape = rule,
    TFU_KERNELS(take_rows),
    .capturable = 1,
};
