/* y[s] = the sum of data[i] over all i with segment_ids[i] = s, for s from 0 up to the number of segments, which is the
 * first dimension of `room`, a tensor without elements: [segments, 0]. Sums of integers wrap; those of 16-bit floats
 * are rounded once.
 *
 * Ids that are sorted begin at 0 or later; others are dropped where they are negative. On the CPU an id that is too
 * large is refused, and so is one that is not sorted or negative though it should be. On a GPU such rows are dropped.
 * There, ids that are not sorted need `order`, the numbers of the rows in the order of their ids; equal ids keep the
 * order that it gives them. */
#include "tfuse.h"

TFU_SHAPE_RULE(shape) {
  const tfu_shape *data = &in[0], *ids = &in[1], *order = &in[2], *room = &in[3];
  if (ids->rank != TFU_UNKNOWN)
    TFU_REQUIRE(err, ids->rank == 1, "segment_ids must be a vector, got shape %s", tfu_show(ids).text);
  if (data->rank != TFU_UNKNOWN) {
    TFU_TRY(tfu_has_rows("data", data, err));
    TFU_REQUIRE(err, ids->rank == TFU_UNKNOWN || tfu_may_be(ids->dim[0], data->dim[0]),
                "segment_ids must have an id for each row of data %s, got shape %s", tfu_show(data).text,
                tfu_show(ids).text);
  }
  if (order->rank != TFU_UNKNOWN && ids->rank != TFU_UNKNOWN && tfu_given(order))
    TFU_TRY(tfu_match("order", order, "segment_ids", ids, err));
  if (room->rank != TFU_UNKNOWN)
    TFU_REQUIRE(err, room->rank == 2 && tfu_may_be(room->dim[1], 0), "room must be [segments, 0], got %s",
                tfu_show(room).text);
  out[0] = *data;
  if (data->rank != TFU_UNKNOWN) out[0].dim[0] = room->rank == TFU_UNKNOWN ? TFU_UNKNOWN : room->dim[0];
  return TFU_OK;
}

const tfu_op tfu_segment_sum = {
    .name = "SegmentSum",
    .doc = "Sums of the rows of data that have the same id.",
    .in = {"data: T", "segment_ids: L", "order: int32", "room: bool"},
    .out = {"y: T"},
    .attr = {"sorted: bool = true", "T: {float, half, bfloat16, double, int32, int64}", "L: {int32, int64} = DT_INT64"},
    .shape = shape,
    TFU_KERNELS(segment_sum),
};
