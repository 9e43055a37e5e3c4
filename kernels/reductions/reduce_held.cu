/* The gradient of reductions of contiguous rows that stay in registers: x is read once (reduce.h, slope.cuh). */
#include "kernels/reductions/reduce_rows.cuh"
#include "kernels/reductions/slope.cuh"

/* A thread's part of a row: packs of T, of which the first `mine` are there; the others are nothing() of its kind. */
template <typename T>
struct held_packs {
  enum { V = packed<T>::N, PACKS = TFU_BATCH / V };
  int4 bits[PACKS];
  int mine, lanes;
};

/* What one walk gives is joined with that of all lanes before the next walk: so lanes exchange plain sums and maxima,
 * which takes fewer instructions than joining states. */
template <typename T, typename K>
__device__ inline void write_row(const reduce_args &a, const held_packs<T> &row, const K &given, float dy, T *dx) {
  enum { V = packed<T>::N, PACKS = held_packs<T>::PACKS };
  K kind = given;
  if (row.mine) add_packs<T>(kind, row.bits, row.mine, 0, 0, 0);
  typename K::state s = kind.known(0);
  join_row<K, true>(s, row.lanes);
  const slope_pair<float> pair = pair_from(a.kind, a.all, s, dy);
  UNROLLED(i, PACKS) {
    float v[V];
    UNROLLED(k, V) v[k] = slope<K::GROUP>(element<T>(row.bits[i], k), pair.p, pair.q);
    if (i < row.mine) store_bits(dx + (int64_t)i * row.lanes * V, narrow_pack<T>(v));
  }
}

/* The mean of a row, then of the differences from it, which corrects what the first mean has lost. */
template <typename T>
__device__ inline void write_row(const reduce_args &a, const held_packs<T> &row, const spreads<T> &, float dy, T *dx) {
  enum { V = packed<T>::N, PACKS = held_packs<T>::PACKS };
  const float each = 1.0f / (float)a.count;
  float mean[1] = {0}, off[2] = {0, 0};
  UNROLLED(i, PACKS) {
    float part[2] = {0, 0};
    UNROLLED(k, V) part[k % 2] += element<T>(row.bits[i], k) * each; /* not the sum, which may be infinite */
    mean[0] += part[0] + part[1];
  }
  fold_row<0>(mean, row.lanes, plus());
  UNROLLED(i, PACKS) {
    if (i >= row.mine) continue;
    float part[2] = {0, 0}, squares[2] = {0, 0};
    UNROLLED(k, V) {
      const float v = element<T>(row.bits[i], k) - mean[0];
      part[k % 2] += v;
      if (a.kind == TFU_REDUCE_STD) squares[k % 2] += v * v;
    }
    off[0] += part[0] + part[1];
    off[1] += squares[0] + squares[1];
  }
  fold_row<1>(off, row.lanes, plus());
  const float by = off[0] * each, rest = off[1] - by * off[0];
  const spread_state<float> s = {mean[0] + by, rest < 0 ? 0 : rest, (float)a.count, 0};
  const slope_pair<float> pair = pair_from(a.kind, a.all, s, dy);
  UNROLLED(i, PACKS) {
    float v[V];
    UNROLLED(k, V) v[k] = slope<TFU_SPREADS>(element<T>(row.bits[i], k), pair.p, pair.q);
    if (i < row.mine) store_bits(dx + (int64_t)i * row.lanes * V, narrow_pack<T>(v));
  }
}

/* The maximum of a row, then the sum of exponentials, which are kept: so there is one of each value. */
template <typename T>
__device__ inline void write_row(const reduce_args &a, const held_packs<T> &row, const exponentials<T> &, float dy,
                                 T *dx) {
  enum { V = packed<T>::N, PACKS = held_packs<T>::PACKS };
  float top[1] = {-infinity<float>()}, sum[1] = {0}, e[PACKS][V];
  UNROLLED(i, PACKS) top[0] = larger(top[0], folded<V>([&](int k) { return element<T>(row.bits[i], k); }, most()));
  fold_row<0>(top, row.lanes, most());
  exponential_state<float> s = {top[0], 0};
  const float shift = s.shift();
  UNROLLED(i, PACKS) {
    UNROLLED(k, V) e[i][k] = online_softmax<T>::power(element<T>(row.bits[i], k), shift, online_softmax<T>::unit());
    if (i < row.mine) sum[0] += folded<V>([&](int k) { return e[i][k]; }, plus());
  }
  fold_row<1>(sum, row.lanes, plus());
  s.sum = sum[0];
  const float p = pair_from(a.kind, a.all, s, dy).p;
  UNROLLED(i, PACKS) {
    UNROLLED(k, V) e[i][k] *= p;
    if (i < row.mine) store_bits(dx + (int64_t)i * row.lanes * V, narrow_pack<T>(e[i]));
  }
}

/* A row of whole packs for every 1 << lane_bits threads, TFU_BATCH elements or less for each. */
template <typename T, typename K>
__device__ inline void reduce_held(const reduce_args &a) {
  enum { V = packed<T>::N, PACKS = held_packs<T>::PACKS };
  const int lanes = 1 << a.lane_bits, lane = threadIdx.x & (lanes - 1), packs = (int)a.count / V;
  const int64_t row = (int64_t)blockIdx.x * (blockDim.x >> a.lane_bits) + (threadIdx.x >> a.lane_bits);
  const int64_t first = row * a.count + lane * V;
  K kind;
  kind.start(a);
  held_packs<T> held;
  held.mine = row < a.outer && lane < packs ? (packs - lane + lanes - 1) >> a.lane_bits : 0;
  held.lanes = lanes;
  const int none = (int)kind.nothing();
  UNROLLED(i, PACKS) {
    held.bits[i] = make_int4(none, none, none, none);
    if (i < held.mine) held.bits[i] = load_once((const T *)a.x + first + (int64_t)i * lanes * V);
  }
  const float dy = row < a.outer ? single<T>(a.dy, row) : 0;
  write_row(a, held, kind, dy, (T *)a.y + first);
}

#define KERNEL(name, ...) TFU_STAMP((TFU_HELD_THREADS, 2), name, __grid_constant__ reduce_args, __VA_ARGS__)
TFU_KINDS_WITH_SLOPES(KERNEL, reduce_held)
