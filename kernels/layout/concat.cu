/* concat and concat_split on the GPU: bits are moved in the largest units that all rows are made of, whatever they
 * mean. Units are dealt out in the order of the whole, so that a warp touches a stretch of it; of short rows that
 * stretch is several rows, and what it has of each part is a stretch, too. */
#include "kernels/layout/concat.h"

#include "kernels/core/device/pack.cuh"

template <typename U, int ROUNDS>
__device__ inline void move_units(const concat_args &a) {
  const uint32_t begin = blockIdx.x * (ROUNDS * CONCAT_THREADS) + threadIdx.x;
  uint32_t row[ROUNDS], place[ROUNDS];
  int owner[ROUNDS];
  UNROLLED(k, ROUNDS) {
    const uint32_t i = begin + k * CONCAT_THREADS;
    row[k] = divide(i, a.span), place[k] = i - row[k] * a.span.by, owner[k] = 0;
  }
  ONCE
  for (int part = 1; part < a.parts; part++) {
    const uint32_t first = a.first[part];
    UNROLLED(k, ROUNDS) owner[k] += place[k] >= first;
  }
  U unit[ROUNDS], *to[ROUNDS];
  UNROLLED(k, ROUNDS) {
    U *whole = (U *)a.whole + (row[k] * a.pitch + place[k]);
    U *part = (U *)a.part[owner[k]] + (row[k] * a.width[owner[k]] + (place[k] - a.first[owner[k]]));
    to[k] = a.split ? part : whole;
    if (begin + k * CONCAT_THREADS < a.units) unit[k] = *(a.split ? whole : part);
  }
  UNROLLED(k, ROUNDS)
    if (begin + k * CONCAT_THREADS < a.units) *to[k] = unit[k];
}

extern "C" __global__ void __launch_bounds__(CONCAT_THREADS) concat_packs_any(const concat_args a) {
  move_units<int4, CONCAT_ROUNDS / 2>(a);
}
extern "C" __global__ void __launch_bounds__(CONCAT_THREADS) concat_units_any(const concat_args a) {
  if (a.bytes == 8) move_units<uint2, CONCAT_ROUNDS>(a);
  else if (a.bytes == 4) move_units<uint32_t, CONCAT_ROUNDS>(a);
  else if (a.bytes == 2) move_units<uint16_t, CONCAT_ROUNDS>(a);
  else move_units<uint8_t, CONCAT_ROUNDS>(a);
}
