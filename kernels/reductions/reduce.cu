/* Reductions: of contiguous rows, of columns, and of states to fewer states (reduce.h, reduce.cuh). */
#include "kernels/reductions/reduce.cuh"

/* Result number `at` of n, or the state itself. */
template <typename R>
__device__ inline void store(const reduce_args &a, int64_t n, int64_t at, const state<R> &s) {
  if (!a.y) store_state<R>(a, n, at, s);
  else if (a.kind == TFU_REDUCE_ARG) store_one(a.y, at, a.to, s.indices.index());
  else store_one(a.y, at, a.to, s.result(a));
}

/* Joins the states of the lanes of a column or row, threads that are `apart` from each other, by halves; the first lane
 * gets the result. */
template <typename R>
__device__ inline void join_block(const reduce_args &a, state<R> &s, int lane, int apart) {
  __shared__ state<R> states[TFU_REDUCE_THREADS];
  __syncthreads();
  states[threadIdx.x] = s;
  ONCE
  for (int half = 1 << a.lane_bits >> 1; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
      s.join(a, states[threadIdx.x + half * apart]);
      states[threadIdx.x] = s;
    }
  }
}

/* Two neighbouring columns for each thread, where they can be read at once. 1 << lane_bits threads share the columns
 * and take their rows in flip. */
__device__ inline void reduce_twos(const reduce_args &a) {
  enum { AHEAD = 8 };
  const int size = size_bits(a.from), across = TFU_REDUCE_THREADS >> a.lane_bits, lanes = 1 << a.lane_bits;
  const int lane = threadIdx.x / (unsigned)across;
  const int64_t item = ((int64_t)blockIdx.x * across + (threadIdx.x & (across - 1))) * 2;
  const int64_t outer = divide(item, a.inner), column = item - outer * a.inner;
  const int64_t begin = blockIdx.y * a.share, end = begin + a.share < a.count ? begin + a.share : a.count;
  const int64_t result = (outer * a.parts + blockIdx.y) * a.inner + column;
  state<float> s[2] = {state<float>::none(a), state<float>::none(a)};
  if (outer < a.outer) {
    const int64_t step = a.inner << (size + a.lane_bits);
    int64_t row = begin + lane;
    const char *at = (const char *)a.x + (((outer * a.count + row) * a.inner + column) << size);
    if (a.kind <= TFU_REDUCE_MEAN) { /* whole blocks of rows, the same as below in fewer instructions */
      ONCE
      for (; row + (AHEAD - 1) * lanes < end; row += AHEAD * lanes, at += AHEAD * step) {
        two_elements bits[AHEAD];
        float v[2][AHEAD];
        UNROLLED(i, AHEAD) bits[i].load(at + i * step, size);
        UNROLLED(i, AHEAD) {
          const float2 both = bits[i].values(a.from);
          v[0][i] = both.x, v[1][i] = both.y;
        }
        s[0].sums.sum += sum_of(v[0]);
        s[1].sums.sum += sum_of(v[1]);
      }
    }
    ONCE
    for (; row < end; row += AHEAD * lanes, at += AHEAD * step) {
      two_elements bits[AHEAD];
      float v[2][AHEAD];
      const int64_t left = (end - row + lanes - 1) >> a.lane_bits;
      const int m = left < AHEAD ? (int)left : AHEAD;
      UNROLLED(i, AHEAD) bits[i].load(at + (i < m ? i * step : 0), size);
      UNROLLED(i, AHEAD) {
        const float2 both = bits[i].values(a.from);
        v[0][i] = both.x, v[1][i] = both.y;
      }
      ONCE
      for (int c = 0; c < 2; c++) { /* in turn, so that the loop is there once */
        s[0].add(a, v[0], m, row, lanes);
        const state<float> other = s[1];
        s[1] = s[0], s[0] = other;
        UNROLLED(i, AHEAD) v[0][i] = v[1][i];
      }
    }
  }
  ONCE
  for (int c = 0; c < 2; c++) {
    if (c) s[0] = s[1];
    join_block(a, s[0], lane, across);
    if (lane == 0 && outer < a.outer) store(a, a.outer * a.parts * a.inner, result + c, s[0]);
  }
}

/* Values, or states where a.joins says so: [outer][count][inner] become [outer][parts][inner]. A thread reads one
 * element at a time, and neighbours read neighbours: they are of inner, or of count where a.beside says so. Wide types
 * need no more than that; values that are computed in float are taken by the two kernels above, but for columns that do
 * not come in pairs. Those, and states of float, are computed in double here (a.float_states). */
template <typename R>
__device__ inline void reduce_any(const reduce_args &a) {
  enum { AHEAD = 4 };
  const int across = TFU_REDUCE_THREADS >> a.lane_bits, lanes = 1 << a.lane_bits;
  const int lane = a.beside ? threadIdx.x & (lanes - 1) : threadIdx.x / (unsigned)across;
  const int line = a.beside ? threadIdx.x >> a.lane_bits : threadIdx.x & (across - 1);
  const int64_t item = (int64_t)blockIdx.x * across + line, outer = divide(item, a.inner),
                column = item - outer * a.inner;
  const int64_t lines = a.outer * a.inner, begin = blockIdx.y * a.share;
  const int64_t end = begin + a.share < a.count ? begin + a.share : a.count;
  state<R> s = state<R>::none(a);
  if (outer < a.outer) {
    const int64_t from = outer * a.count * a.inner + column;
    const bool float_states = is_real<R>::value && a.float_states;
    ONCE
    for (int64_t i = begin + lane; i < end && !a.joins; i += AHEAD * lanes) {
      const int64_t left = (end - i + lanes - 1) >> a.lane_bits;
      const int m = left < AHEAD ? (int)left : AHEAD;
      R v[AHEAD];
      UNROLLED(j, AHEAD) {
        const int64_t at = from + (i + (j < m ? j * lanes : 0)) * a.inner;
        v[j] = float_states ? (R)load_one<float>(a.x, at, a.from) : load_one<R>(a.x, at, a.from);
      }
      s.add(a, v, m, i, lanes);
    }
    ONCE
    for (int64_t i = begin + lane; i < end && a.joins; i += AHEAD * lanes) {
      const int64_t n = lines * a.count, left = (end - i + lanes - 1) >> a.lane_bits;
      const int m = left < AHEAD ? (int)left : AHEAD;
      state<R> others[AHEAD];
      UNROLLED(j, AHEAD) {
        const int64_t at = from + (i + (j < m ? j * lanes : 0)) * a.inner;
        others[j] = float_states ? converted<R>(load_state<float>(a.x, a.words, n, at), a.group)
                                 : load_state<R>(a.x, a.words, n, at);
      }
      ONCE
      for (int j = 0; j < m; j++) {
        s.join(a, others[0]);
        UNROLL
        for (int k = 1; k < AHEAD; k++) others[k - 1] = others[k]; /* so that the loop is there once */
      }
    }
  }
  join_block(a, s, lane, a.beside ? 1 : across);
  if (lane != 0 || outer >= a.outer) return;
  const int64_t result = (outer * a.parts + blockIdx.y) * a.inner + column;
  if (!is_real<R>::value || !a.float_states) return store(a, lines * a.parts, result, s);
  if (!a.y) return store(a, lines * a.parts, result, converted<float>(s, a.group));
  if (a.kind == TFU_REDUCE_ARG) store_one(a.y, result, a.to, s.indices.index());
  else store_one(a.y, result, a.to, (float)s.result(a));
}

/* Four blocks or more on a multiprocessor: what is on its way from memory is what counts. */
#define KERNEL(name, ...) TFU_STAMP((TFU_REDUCE_THREADS, 4), name, __grid_constant__ reduce_args, __VA_ARGS__)
KERNEL(reduce_twos_f32, reduce_twos)
KERNEL(reduce_any_f64, reduce_any<double>)
KERNEL(reduce_any_i64, reduce_any<int64_t>)
