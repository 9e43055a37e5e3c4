/* The gradient of reductions, once the states of all results are known (reduce.h, ops/reductions/reduce.c). A state and
 * dy give two numbers, (p, q), and these give the gradient of every value v that the result is made of:
 *
 *   max, min: p where v is q, else 0; p everywhere where q is NaN       logsumexp: p exp(v - q)
 *   variance, std, l2: p (v - q)                                        prod: p / v, with p as m * 2^q
 *
 * Of a product with one zero, q is infinite and p the gradient of the zero; all others have 0. */
#include "kernels/reductions/reduce.cuh"

/* In double for both types, since there are few. */
extern "C" __global__ void __launch_bounds__(TFU_REDUCE_THREADS)
    reduce_pairs_f32(const __grid_constant__ reduce_pairs_args a) {
  const int64_t at = (int64_t)blockIdx.x * TFU_REDUCE_THREADS + threadIdx.x;
  if (at >= a.n) return;
  const int wide = a.from == TFU_AS_F64;
  state<double> s;
  if (wide) s = load_state<double>(a.states, TFU_STATE_WORDS, a.n, at);
  else {
    const state<float> narrow = load_state<float>(a.states, TFU_STATE_WORDS, a.n, at);
    s = {narrow.a, narrow.b, narrow.c};
  }
  double p = wide ? ((const double *)a.dy)[at] : load_one<float>(a.dy, at, a.from), q = 0, under = 1;
  const double y = state<double>::finished(a.kind, a.all, s);
  switch (a.kind) {
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN:
      q = y;
      under = q == q ? s.b : q;
      break;
    case TFU_REDUCE_LSE: q = y; break;
    case TFU_REDUCE_PROD:
      p *= s.b == 0 ? s.a : s.b == 1 ? scaled(s.a, s.c) : s.a * 0;
      q = s.b == 0 ? s.c : infinity<double>();
      break;
    case TFU_REDUCE_VARIANCE:
      q = s.a;
      under = 0.5 * (double)a.all;
      break;
    case TFU_REDUCE_STD:
      q = s.a;
      under = (double)a.all * y;
      break;
    default: under = y;
  }
  p /= under;
  if (wide) ((double *)a.pairs)[2 * at] = p, ((double *)a.pairs)[2 * at + 1] = q;
  else ((float *)a.pairs)[2 * at] = (float)p, ((float *)a.pairs)[2 * at + 1] = (float)q;
}

/* The result that an element belongs to, and how many elements behind it belong to the same one, or to those that
 * follow it one by one. */
__device__ inline int64_t result_of(const reduce_grad_args &a, int64_t at, int64_t &left) {
  int64_t result = 0, results = 1;
  bool kept = a.kept_last;
  ONCE
  for (int g = 0; g < a.groups; g++, kept = !kept) {
    const int64_t size = a.size[g], rest = divide(at, size), place = at - rest * size;
    if (g == 0) left = size - place;
    if (kept) result += place * results, results *= size;
    at = rest;
  }
  return result;
}

template <typename R>
__device__ inline R slope(int kind, R v, R p, R q) {
  switch (kind) {
    case TFU_REDUCE_MAX:
    case TFU_REDUCE_MIN: return v == q || q != q ? p : 0;
    case TFU_REDUCE_LSE: return p * power_of(v, q);
    case TFU_REDUCE_PROD: {
      if (q == infinity<R>()) return v == 0 ? p : p * 0;
      R e = 0;
      const R m = split(v, e);
      return scaled(p / m, q - e);
    }
    default: return p * (v - q);
  }
}

/* Some elements for each thread, from several runs of neighbours: with float two at a time, if a.aligned. */
template <typename R>
__device__ inline void reduce_grad(const reduce_grad_args &a) {
  enum { AHEAD = 4, PAIRS = sizeof(R) == 4, EACH = PAIRS ? 2 : 1, RUN = EACH * TFU_REDUCE_THREADS };
  const int64_t first = (int64_t)blockIdx.x * AHEAD * RUN + threadIdx.x * EACH;
  R v[AHEAD][2];
  if (PAIRS && a.aligned) {
    two_elements bits[AHEAD];
    const int size = size_bits(a.from);
    UNROLL
    for (int i = 0; i < AHEAD; i++)
      if (first + i * RUN + 1 < a.n) bits[i].load((const char *)a.x + ((first + i * RUN) << size), size);
    UNROLL
    for (int i = 0; i < AHEAD; i++) {
      const float2 both = bits[i].values(a.from);
      v[i][0] = both.x, v[i][1] = both.y;
    }
  } else {
    UNROLL
    for (int i = 0; i < AHEAD; i++)
      if (first + i * RUN < a.n) v[i][0] = load_one<R>(a.x, first + i * RUN, a.from);
  }
  ONCE
  for (int64_t at = first; at < a.n && at < first + AHEAD * RUN; at += RUN) {
    int64_t left = 0, result = 0;
    ONCE
    for (int k = 0; k < EACH && at + k < a.n; k++) {
      if (left == 0) result = result_of(a, at + k, left);
      else result += a.kept_last;
      left--;
      if (PAIRS && (a.aligned ? at + 1 == a.n : k)) v[0][0] = load_one<R>(a.x, at + k, a.from);
      const R *pair = (const R *)a.pairs + 2 * result;
      store_one(a.dx, at + k, a.from, slope(a.kind, v[0][0], pair[0], pair[1]));
      v[0][0] = v[0][1];
    }
    UNROLL
    for (int i = 1; i < AHEAD; i++) v[i - 1][0] = v[i][0], v[i - 1][1] = v[i][1]; /* so that the loop is there once */
  }
}

#define KERNEL(name, ...)                                                                                             \
  extern "C" __global__ void __launch_bounds__(TFU_REDUCE_THREADS) name(const __grid_constant__ reduce_grad_args a) { \
    __VA_ARGS__(a);                                                                                                   \
  }
KERNEL(reduce_grad_f32, reduce_grad<float>)
KERNEL(reduce_grad_f64, reduce_grad<double>)
