/* Reductions of columns that are computed in float, where a pack has elements of neighbouring columns and begins on 16
 * bytes (reduce.h, kinds.cuh). */
#include "kernels/reductions/kinds.cuh"

/* There are less than 2^31 columns in all. A pack's columns for each thread. 1 << lane_bits threads share the columns
 * and take their rows in flip.
 *
 * Joined columns (a.period) are those of one outer for each block, without lanes. What the threads know of columns that
 * are the same in x is joined like what lanes know of theirs. */
template <typename T, typename K>
__device__ inline void reduce_columns(const reduce_args &a) {
  enum { V = packed<T>::N, ROWS = TFU_BATCH / V, STATES = TFU_REDUCE_THREADS * V };
  const int across = TFU_REDUCE_THREADS >> a.lane_bits, lanes = 1 << a.lane_bits;
  const int lane = threadIdx.x >> (8 - a.lane_bits), beside = threadIdx.x & (across - 1);
  const unsigned inner = (unsigned)a.inner, period = a.period, width = period ? inner : across * V;
  const unsigned first = blockIdx.x * width, line = first + beside * V, outer = line / inner;
  const int together = period ? inner / period : 1; /* rows of x in one */
  const int64_t begin = blockIdx.y * a.share;
  const int n = (int)(a.count - begin < a.share ? a.count - begin : a.share);
  K kind[V];
  UNROLLED(c, V) kind[c].start(a);
  if (beside * V < width && line < a.outer * a.inner) {
    const int64_t step = a.inner << a.lane_bits;
    const T *x =
        (const T *)a.x + (outer * a.count + begin + lane) * a.inner + (int64_t)outer * a.tail + (line - outer * inner);
    const auto index = [&](int row, int c) { return period ? row * together + (beside * V + c) / period : row; };
    int seen = 0;
    ONCE
    for (int row = lane; row < n; row += ROWS * lanes, x += ROWS * step) {
      int4 bits[ROWS];
      int there = ROWS;
      if (row + (ROWS - 1) * lanes < n) {
        UNROLLED(i, ROWS) bits[i] = load_once(x + i * step);
      } else {
        const int none = (int)kind[0].nothing();
        there = (n - row + lanes - 1) >> a.lane_bits;
        UNROLLED(i, ROWS) {
          bits[i] = make_int4(none, none, none, none);
          if (i < there) bits[i] = load_once(x + i * step);
        }
      }
      UNROLLED(c, V)
        kind[c].template add<ROWS>([&](int i) { return element<T>(bits[i], c); }, [&](int i) { return i < there; },
                                   [&](int i) { return index(row + i * lanes, c); }, there, seen);
      seen += there;
    }
    if (a.tail && blockIdx.y + 1 == a.parts) {
      const T *rest = (const T *)a.x + (outer + 1) * (a.count * a.inner + a.tail) - a.tail;
      UNROLLED(c, V) {
        if (beside * V + c >= a.tail) continue;
        const float v = single<T>(rest, beside * V + c);
        kind[c].template add<1>([&](int) { return v; }, [](int) { return true; }, [&](int) { return index(n, c); }, 1,
                                seen);
      }
    }
  }
  __shared__ float states[K::WORDS][STATES];
  const int columns = period ? period : width;
  UNROLLED(c, V) {
    const typename K::state s = kind[c].known(begin * together);
    UNROLLED(i, K::WORDS) states[i][lane * width + beside * V + c] = word_of<float>(s, i);
  }
  const auto known = [&](int at) {
    typename K::state s = {};
    UNROLLED(i, K::WORDS) ((float *)&s)[i] = states[i][at];
    return s;
  };
  ONCE
  for (int n = period ? together : lanes; n > 1; n -= n / 2) { /* the upper half with the lower one */
    const int upper = (n - n / 2) * columns;
    __syncthreads();
    ONCE
    for (int i = threadIdx.x; i < n / 2 * columns; i += TFU_REDUCE_THREADS) {
      typename K::state s = known(i);
      s.join(known(i + upper));
      UNROLLED(w, K::WORDS) states[w][i] = word_of<float>(s, w);
    }
  }
  __syncthreads();
  ONCE
  for (int i = threadIdx.x; i < columns; i += TFU_REDUCE_THREADS) {
    const unsigned at = first + i, o = at / inner;
    const int64_t beside_it = period ? period : a.inner;
    if (at < a.outer * a.inner)
      store_as<T, K>(a, a.outer * a.parts * beside_it,
                     ((int64_t)o * a.parts + blockIdx.y) * beside_it + (at - o * inner), known(i));
  }
}

#define KERNEL(name, ...) TFU_STAMP((TFU_REDUCE_THREADS, 3), name, __grid_constant__ reduce_args, __VA_ARGS__)
TFU_KINDS(KERNEL, reduce_columns)
