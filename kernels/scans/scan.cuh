/* scan.cuh - what scans are made of on the GPU: states of lanes, joined by warp shuffle, and how tiles of one row
 * tell each other theirs (decoupled look-back).
 * States are always joined in the same order, so that results repeat bit for bit. */
#pragma once

#include "kernels/core/device/look_back.cuh"
#include "kernels/core/device/shared.cuh"
#include "kernels/scans/scan.h"
#include "kernels/scans/scan_kinds.cuh"

/* ---- lanes ---- */

template <typename R>
__device__ inline R lane_before(R v, int distance, int width) {
  return __shfl_up_sync(0xffffffffu, v, distance, width);
}
template <typename R>
__device__ inline pair<R> lane_before(pair<R> v, int distance, int width) {
  return {lane_before(v.a, distance, width), lane_before(v.b, distance, width)};
}
template <typename R>
__device__ inline R of_lane(R v, int lane, int width) {
  return __shfl_sync(0xffffffffu, v, lane, width);
}
template <typename R>
__device__ inline pair<R> of_lane(pair<R> v, int lane, int width) {
  return {of_lane(v.a, lane, width), of_lane(v.b, lane, width)};
}

/* The state of all lanes up to this one, among `width` that stand side by side. */
template <typename OP>
__device__ inline typename OP::state scan_lanes(typename OP::state s, int width) {
  const int lane = threadIdx.x & (width - 1);
  ONCE
  for (int distance = 1; distance < width; distance *= 2) {
    const typename OP::state before = lane_before(s, distance, width);
    if (lane >= distance) s = OP::join(before, s);
  }
  return s;
}

/* ---- tiles ---- */

/* What lies before a tile of a row, from the totals of the others. They are joined through a fixed tree: 32 tiles are a
 * group, 32 groups a large one. A tile waits for the totals of the tiles before it in its group, of the groups before
 * that in the large group, and for all that lies before the large group; the last tile of each tells the total of it.
 * So only one in 1024 tiles waits for a chain, and which sums are taken does not depend on who comes first.
 *
 * A tile waits only for those before it, whose numbers are lower tickets (look_back.cuh). Called by a whole warp. */
template <typename OP>
__device__ inline typename OP::state state_before(told_state<typename OP::state> *slots, int tiles, int groups,
                                                  int tile, const typename OP::state &total) {
  enum { M = TFU_SCAN_GROUP };
  typedef typename OP::state S;
  const int lane = threadIdx.x % M;
  told_state<S> *slot = slots + tile, *end = slots + tiles; /* this tile's, then this group's; where its level's end */
  S all = total, before = OP::none();
  int position = tile, length = groups;
  bool last = true;
  ONCE
  for (int level = 0; level < 2; level++) {
    if (last && lane == 0) slot->tell(all);
    const int within = position % M;
    S s = OP::none();
    if (lane < within) s = (slot - within + lane)->wait();
    s = of_lane(scan_lanes<OP>(s, M), M - 1, M);
    all = OP::join(s, all); /* of the group, as far as this tile */
    before = OP::join(s, before);
    last = last && within == M - 1;
    position /= M;
    slot = end + position;
    end += length;
  }
  if (position > 0) {
    const S s = slot->wait();
    all = OP::join(s, all), before = OP::join(s, before);
  }
  if (last && lane == 0) (slot + 1)->tell(all);
  return before;
}
