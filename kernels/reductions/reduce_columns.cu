/* Reductions of columns that are computed in float, where a pack has elements of neighbouring columns and begins on 16
 * bytes (reduce.h, kinds.cuh). */
#include "kernels/reductions/kinds.cuh"

/* There are less than 2^31 columns in all. A pack's columns for each thread. 1 << lane_bits threads share the columns
 * and take their rows in turn. */
template <typename T, typename K>
__device__ inline void reduce_columns(const reduce_args &a) {
  enum { V = packed<T>::N, ROWS = TFU_BATCH / V, STATES = TFU_REDUCE_THREADS * V };
  const int across = TFU_REDUCE_THREADS >> a.lane_bits, lanes = 1 << a.lane_bits;
  const int lane = threadIdx.x >> (8 - a.lane_bits), beside = threadIdx.x & (across - 1);
  const unsigned first = blockIdx.x * across * V, inner = (unsigned)a.inner;
  const unsigned line = first + beside * V, outer = line / inner;
  const int64_t begin = blockIdx.y * a.share;
  const int n = (int)(a.count - begin < a.share ? a.count - begin : a.share);
  K kind[V];
  UNROLL
  for (int c = 0; c < V; c++) kind[c].start(a);
  if (line < a.outer * a.inner) {
    const int64_t step = a.inner << a.lane_bits;
    const T *x = (const T *)a.x + (outer * a.count + begin + lane) * a.inner + (line - outer * inner);
    int seen = 0;
    ONCE
    for (int row = lane; row < n; row += ROWS * lanes, x += ROWS * step) {
      int4 bits[ROWS];
      int there = ROWS;
      if (row + (ROWS - 1) * lanes < n) {
        UNROLL
        for (int i = 0; i < ROWS; i++) bits[i] = load_once(x + i * step);
      } else {
        const int none = (int)kind[0].nothing();
        there = (n - row + lanes - 1) >> a.lane_bits;
        UNROLL
        for (int i = 0; i < ROWS; i++) {
          bits[i] = make_int4(none, none, none, none);
          if (i < there) bits[i] = load_once(x + i * step);
        }
      }
      UNROLL
      for (int c = 0; c < V; c++)
        kind[c].template add<ROWS>([&](int i) { return element<T>(bits[i], c); }, [&](int i) { return i < there; },
                                   [&](int i) { return row + i * lanes; }, there, seen);
      seen += there;
    }
  }
  __shared__ float states[K::WORDS][STATES];
  const int columns = across * V;
  UNROLL
  for (int c = 0; c < V; c++) {
    const state<float> s = kind[c].known(begin);
    const int at = lane * columns + beside * V + c;
    states[0][at] = s.a;
    if (K::WORDS > 1) states[K::WORDS > 1][at] = s.b;
    if (K::WORDS > 2) states[K::WORDS > 2 ? 2 : 0][at] = s.c;
    if (K::WORDS > 3) states[K::WORDS - 1][at] = s.d;
  }
  const auto known = [&](int at) {
    return state<float>{states[0][at], K::WORDS > 1 ? states[K::WORDS > 1][at] : 0.0f,
                        K::WORDS > 2 ? states[K::WORDS > 2 ? 2 : 0][at] : 0.0f,
                        K::WORDS > 3 ? states[K::WORDS - 1][at] : 0.0f};
  };
  ONCE
  for (int half = lanes * columns / 2; half >= columns;
       half /= 2) { /* the upper half of the lanes with the lower one */
    __syncthreads();
    ONCE
    for (int i = threadIdx.x; i < half; i += TFU_REDUCE_THREADS) {
      const state<float> s = state<float>::joined_as<K::GROUP>(known(i), known(i + half));
      states[0][i] = s.a;
      if (K::WORDS > 1) states[K::WORDS > 1][i] = s.b;
      if (K::WORDS > 2) states[K::WORDS > 2 ? 2 : 0][i] = s.c;
      if (K::WORDS > 3) states[K::WORDS - 1][i] = s.d;
    }
  }
  __syncthreads();
  ONCE
  for (int i = threadIdx.x; i < columns; i += TFU_REDUCE_THREADS) {
    const unsigned at = first + i, o = at / inner;
    if (at < a.outer * a.inner)
      store_as<T, K>(a, a.outer * a.parts * a.inner, ((int64_t)o * a.parts + blockIdx.y) * a.inner + (at - o * inner),
                     known(i));
  }
}

#define KERNEL(name, ...)                                                                                           \
  extern "C" __global__ void __launch_bounds__(TFU_REDUCE_THREADS, 3) name(const __grid_constant__ reduce_args a) { \
    __VA_ARGS__(a);                                                                                                 \
  }
TFU_KINDS(KERNEL, reduce_columns, reduce_columns)
