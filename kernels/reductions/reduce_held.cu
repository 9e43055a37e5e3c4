/* The gradient of reductions of contiguous rows that stay in registers: x is read once (reduce.h, slope.cuh). */
#include "kernels/reductions/reduce_rows.cuh"
#include "kernels/reductions/slope.cuh"

/* A row of whole packs for every 1 << lane_bits threads, TFU_BATCH elements or less for each. */
template <typename T, typename K>
__device__ inline void reduce_held(const reduce_args &a) {
  enum { V = packed<T>::N, PACKS = TFU_BATCH / V };
  const int lanes = 1 << a.lane_bits, lane = threadIdx.x & (lanes - 1), packs = (int)a.count / V;
  const int64_t row = (int64_t)blockIdx.x * (blockDim.x >> a.lane_bits) + (threadIdx.x >> a.lane_bits);
  const int mine = row < a.outer && lane < packs ? (packs - lane + lanes - 1) >> a.lane_bits : 0;
  const int64_t first = row * a.count + lane * V;
  K kind;
  kind.start(a);
  int4 bits[PACKS];
  const int none = (int)kind.nothing();
  UNROLLED(i, PACKS) {
    bits[i] = make_int4(none, none, none, none);
    if (i < mine) bits[i] = load_once((const T *)a.x + first + (int64_t)i * lanes * V);
  }
  const float dy = row < a.outer ? single<T>(a.dy, row) : 0;
  if (mine) add_packs<T>(kind, bits, mine, 0, 0, 0);
  typename K::state s = kind.known(0);
  join_row<K, true>(s, lanes);
  const slope_pair<float> pair = pair_from(a.kind, a.all, s, dy);
  UNROLLED(i, PACKS) {
    float v[V];
    UNROLLED(k, V) v[k] = slope<K::GROUP>(element<T>(bits[i], k), pair.p, pair.q);
    if (i < mine) store_bits((T *)a.y + first + (int64_t)i * lanes * V, narrow_pack<T>(v));
  }
}

#define KERNEL(name, ...) TFU_STAMP((TFU_HELD_THREADS, 2), name, __grid_constant__ reduce_args, __VA_ARGS__)
TFU_KINDS_WITH_SLOPES(KERNEL, reduce_held)
