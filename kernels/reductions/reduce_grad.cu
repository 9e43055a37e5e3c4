/* The gradient of reductions whose states are known: a pass over x that writes dx (reduce.h, slope.cuh). */
#include "kernels/reductions/kinds.cuh"
#include "kernels/reductions/slope.cuh"

/* The two numbers of each result. In double for both types, since there are few. */
extern "C" __global__ void __launch_bounds__(TFU_REDUCE_THREADS)
    reduce_pairs_f32(const __grid_constant__ reduce_pairs_args a) {
  const int64_t at = (int64_t)blockIdx.x * TFU_REDUCE_THREADS + threadIdx.x;
  if (at >= a.n) return;
  const int wide = a.from == TFU_AS_F64;
  state<double> s;
  if (a.y) {
    const double y = wide ? ((const double *)a.y)[at] : load_one<float>(a.y, at, a.from);
    s = {{y * y}};
  } else if (wide) {
    s = load_state<double>(a.states, TFU_STATE_WORDS, a.n, at);
  } else {
    const state<float> narrow = load_state<float>(a.states, TFU_STATE_WORDS, a.n, at);
    s = {{narrow.word[0], narrow.word[1], narrow.word[2]}};
  }
  const double dy = wide ? ((const double *)a.dy)[at] : load_one<float>(a.dy, at, a.from);
  slope_pair<double> pair;
  switch (a.kind) {
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN: pair = pair_from(a.kind, a.all, s.tops, dy); break;
    case TFU_REDUCE_LSE: pair = pair_from(a.kind, a.all, s.exponentials, dy); break;
    case TFU_REDUCE_PROD: pair = pair_from(a.kind, a.all, s.products, dy); break;
    case TFU_REDUCE_L2: pair = pair_from(a.kind, a.all, s.sums, dy); break;
    default: pair = pair_from(a.kind, a.all, s.spreads, dy);
  }
  if (wide) ((slope_pair<double> *)a.pairs)[at] = pair;
  else ((slope_pair<float> *)a.pairs)[at] = {(float)pair.p, (float)pair.q};
}

/* The result that an element belongs to. */
static __device__ __noinline__ int64_t result_of(const reduce_grad_args &a, int64_t at) {
  int64_t result = 0, results = 1;
  bool kept = a.kept_last;
  ONCE
  for (int g = 0; g < a.groups; g++, kept = !kept) {
    const int64_t size = a.size[g], rest = divide(at, size), index = at - rest * size;
    if (kept) result += index * results, results *= size;
    at = rest;
  }
  return result;
}

template <typename R>
__device__ inline R slope_of(int kind, R v, R p, R q) {
  switch (kind) {
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN: return slope<TFU_TOPS>(v, p, q);
    case TFU_REDUCE_LSE: return slope<TFU_EXPONENTIALS>(v, p, q);
    case TFU_REDUCE_PROD: return slope<TFU_PRODUCTS>(v, p, q);
    default: return slope<TFU_SPREADS>(v, p, q);
  }
}

/* An element for each thread: any axes, any type, and products, whose gradient is long. */
template <typename R>
__device__ inline void reduce_grad(const reduce_grad_args &a) {
  const int64_t at = (int64_t)blockIdx.x * TFU_REDUCE_THREADS + threadIdx.x;
  if (at >= a.n) return;
  const slope_pair<R> pair = ((const slope_pair<R> *)a.pairs)[result_of(a, at)];
  store_one(a.dx, at, a.from, slope_of(a.kind, load_one<R>(a.x, at, a.from), pair.p, pair.q));
}

/* The gradient of a sum: dy of its result (a.x) for each element, bit for bit. */
template <typename T>
__device__ inline void spread_any(const reduce_grad_args &a) {
  const int64_t at = (int64_t)blockIdx.x * TFU_REDUCE_THREADS + threadIdx.x;
  if (at < a.n) ((T *)a.dx)[at] = ((const T *)a.x)[result_of(a, at)];
}

enum { AHEAD = 4 };

/* Packs whose elements all belong to one result, a few for each thread. */
template <typename T, typename K>
__device__ inline void slopes_rows(const reduce_grad_args &a) {
  enum { V = packed<T>::N, RUN = V * TFU_REDUCE_THREADS };
  const int64_t first = (int64_t)blockIdx.x * AHEAD * RUN + threadIdx.x * V;
  int4 bits[AHEAD];
  UNROLLED(i, AHEAD)
    if (first + i * RUN < a.n) bits[i] = load_once((const T *)a.x + first + i * RUN);
  UNROLLED(i, AHEAD) {
    const int64_t at = first + i * RUN;
    if (at >= a.n) return;
    const float2 pair = ((const float2 *)a.pairs)[result_of(a, at)];
    float v[V];
    UNROLLED(k, V) v[k] = slope<K::GROUP>(element<T>(bits[i], k), pair.x, pair.y);
    store_bits((T *)a.dx + at, narrow_pack<T>(v));
  }
}

/* Packs whose elements belong to neighbouring results: a thread keeps the numbers of its columns and goes down. */
template <typename T, typename K>
__device__ inline void slopes_columns(const reduce_grad_args &a) {
  enum { V = packed<T>::N };
  const int across = TFU_REDUCE_THREADS >> a.lane_bits, lanes = 1 << a.lane_bits;
  const int lane = threadIdx.x >> (8 - a.lane_bits), beside = threadIdx.x & (across - 1);
  const int64_t line = ((int64_t)blockIdx.x * across + beside) * V, outer = divide(line, a.inner);
  if (outer >= a.outer) return;
  float2 pair[V];
  UNROLLED(k, V) pair[k] = ((const float2 *)a.pairs)[line + k];
  const int64_t begin = blockIdx.y * a.share, end = begin + a.share < a.count ? begin + a.share : a.count;
  const int64_t step = a.inner << a.lane_bits, column = line - outer * a.inner;
  ONCE
  for (int64_t row = begin + lane; row < end; row += AHEAD * lanes) {
    const int64_t at = (outer * a.count + row) * a.inner + column;
    int4 bits[AHEAD];
    UNROLLED(i, AHEAD)
      if (row + i * lanes < end) bits[i] = load_once((const T *)a.x + at + i * step);
    UNROLLED(i, AHEAD) {
      float v[V];
      UNROLLED(k, V) v[k] = slope<K::GROUP>(element<T>(bits[i], k), pair[k].x, pair[k].y);
      if (row + i * lanes < end) store_bits((T *)a.dx + at + i * step, narrow_pack<T>(v));
    }
  }
}

/* The gradient of sums of columns, dy (a.x) for every row: slopes_columns without an x. */
template <typename T>
__device__ inline void spread_columns(const reduce_grad_args &a) {
  enum { V = packed<T>::N };
  const int across = TFU_REDUCE_THREADS >> a.lane_bits, lanes = 1 << a.lane_bits;
  const int lane = threadIdx.x >> (8 - a.lane_bits), beside = threadIdx.x & (across - 1);
  const int64_t line = ((int64_t)blockIdx.x * across + beside) * V, outer = divide(line, a.inner);
  if (outer >= a.outer) return;
  const int4 bits = load_once((const T *)a.x + line);
  const int64_t begin = blockIdx.y * a.share, end = begin + a.share < a.count ? begin + a.share : a.count;
  T *dx = (T *)a.dx + (outer * a.count + begin + lane) * a.inner + (line - outer * a.inner);
  _Pragma("unroll 4") for (int64_t row = begin + lane; row < end; row += lanes, dx += a.inner << a.lane_bits)
      store_bits(dx, bits);
}

#define KERNEL(name, ...) TFU_STAMP((TFU_REDUCE_THREADS), name, __grid_constant__ reduce_grad_args, __VA_ARGS__)
KERNEL(reduce_grad_f32, reduce_grad<float>)
KERNEL(reduce_grad_f64, reduce_grad<double>)
#define SPREAD(name, tag, T) KERNEL(name##_##tag, name<T>)
TFU_TYPES(SPREAD, spread_any)
TFU_SINGLES(SPREAD, spread_columns)
#define SLOPES(name, tag, T)                          \
  KERNEL(name##_ties_##tag, name<T, ties<T>>)         \
  KERNEL(name##_exps_##tag, name<T, exponentials<T>>) \
  KERNEL(name##_spreads_##tag, name<T, spreads<T>>)
TFU_SINGLES(SLOPES, slopes_rows)
TFU_SINGLES(SLOPES, slopes_columns)
