/* Reductions of contiguous rows that are computed in float (reduce.h, kinds.cuh). */
#include "kernels/reductions/reduce_rows.cuh"

/* A part of a row for every 1 << lane_bits threads. The row may begin anywhere: what lies before its first whole pack
 * and after its last one is taken element by element. */
template <typename T, typename K>
__device__ inline void reduce_rows(const reduce_args &a) {
  enum { V = packed<T>::N, PACKS = TFU_BATCH / V };
  const int lanes = 1 << a.lane_bits, lane = threadIdx.x & (lanes - 1);
  const int64_t row = (int64_t)blockIdx.x * (TFU_REDUCE_THREADS >> a.lane_bits) + (threadIdx.x >> a.lane_bits);
  const int64_t begin = blockIdx.y * a.share;
  const int64_t left = row < a.outer ? a.count - begin : 0;
  const int n = (int)(left < a.share ? left : a.share);
  const T *x = (const T *)a.x + row * a.count + begin;
  const int over = (int)((uintptr_t)x & 15) / (int)sizeof(T), before = over ? V - over : 0;
  const int head = before < n ? before : n, packs = (n - head) / V;
  const T *whole = x + head + lane * V;
  K kind;
  kind.start(a);
  int seen = 0;
  ONCE
  for (int p = lane; p < packs; p += PACKS * lanes, whole += (int64_t)PACKS * lanes * V) {
    int4 bits[PACKS];
    int there = PACKS;
    if (p + (PACKS - 1) * lanes < packs) {
      UNROLLED(i, PACKS) bits[i] = load_once(whole + (int64_t)i * lanes * V);
    } else {
      const int none = (int)kind.nothing();
      there = (packs - p + lanes - 1) >> a.lane_bits;
      UNROLLED(i, PACKS) {
        bits[i] = make_int4(none, none, none, none);
        if (i < there) bits[i] = load_once(whole + (int64_t)i * lanes * V);
      }
    }
    add_packs<T>(kind, bits, there, head + p * V, lanes * V, seen);
    seen += there * V;
  }
  if constexpr (by_packs<K>) kind.settle(lanes);
  typename K::state s = kind.known(begin);
  const int after = head + packs * V, alone = head + n - after;
  ONCE
  for (int i = lane; i < alone; i += lanes) {
    K one;
    one.start(a);
    const int at = i < head ? i : after + i - head;
    const float v = single<T>(x, at);
    one.template add<1>([&](int) { return v; }, [](int) { return true; }, [&](int) { return at; }, 1, 0);
    s.join(one.known(begin));
  }
  join_row<K, false>(s, lanes);
  if (row < a.outer && lane == 0) store_as<T, K>(a, a.outer * a.parts, row * a.parts + blockIdx.y, s);
}

#define KERNEL(name, ...) TFU_STAMP((TFU_REDUCE_THREADS, 4), name, __grid_constant__ reduce_args, __VA_ARGS__)
TFU_KINDS(KERNEL, reduce_rows)
