/* batch_norm.cuh - formulas of batch normalisation: an activation, and weights of each channel in the type of
 * arithmetic. As TFU_CHANNELS_ACT (kernels/core/device/channels.cuh), but a channel may have several neighbouring
 * columns, and `settle` makes of w[i][k], the weights of column k, what the formula wants, once for all elements. */
#pragma once

#include "kernels/convolution/batch_norm_gpu.h"
#include "kernels/core/device/channels.cuh"

/* 1 / sqrt(v); for float rounded once. */
__device__ inline float rstd_of(float v) { return __frsqrt_rn(v); }
__device__ inline double rstd_of(double v) { return 1 / sqrt(v); }

/* Weights of N columns. Their packs of memory where each column is a channel and these fill packs; else one by one. */
template <int WEIGHTS, typename R, int W, int N>
__device__ inline void load_columns(const batch_norm_args &args, int64_t first_column, R (&w)[W][N]) {
  enum { M = packed<R>::N };
  const tfu_channels_args &a = args.channels;
  const int64_t inner = args.inner, channels = a.count[0]; /* the first is the mean, and always given */
  int64_t channel = first_column / inner, position = first_column - channel * inner;
  bool whole = inner == 1 && channels % N == 0;
  UNROLLED(i, WEIGHTS) whole = whole && (uintptr_t)a.w[i] % 16 == 0;
  if (whole) {
    UNROLLED(i, WEIGHTS) {
      UNROLL
      for (int first = 0; first < N; first += M) {
        R part[M];
        UNROLLED(k, M) part[k] = (R)a.absent[i];
        if (a.w[i]) widen_pack<R>(*(const int4 *)((const R *)a.w[i] + channel + first), part);
        UNROLLED(k, M) w[i][first + k] = part[k];
      }
    }
    return;
  }
  UNROLLED(i, WEIGHTS * N) w[i / N][i % N] = 0;
  ONCE
  for (int column = 0; column < N; column++) { /* in turn, so that the loop is there once */
    UNROLLED(i, WEIGHTS) {
      UNROLL
      for (int k = 1; k < N; k++) w[i][k - 1] = w[i][k];
      w[i][N - 1] = a.w[i] ? ((const R *)a.w[i])[channel] : (R)a.absent[i];
    }
    if (++position == inner) {
      position = 0;
      if (++channel == channels) channel = 0;
    }
  }
}

/* The sum of what the lanes of a channel have, in a fixed order, for all of them. A block has `across` channels, a
 * power of two, and threadIdx.x % across says which is a thread's. */
__device__ inline double sum_lanes(int across, double v) {
  __shared__ double sums[TFU_THREADS];
  __syncthreads(); /* what the call before has left was read */
  sums[threadIdx.x] = v;
  ONCE
  for (int half = TFU_THREADS / 2; half >= across; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  return sums[threadIdx.x % across];
}

/* Weights of all passes that begin at statistics. The settled ones are mean, scale and beta. */
enum { MEAN, VARIANCE, GAMMA, BETA, EPSILON, STATISTICS, SCALE = VARIANCE };
#define SETTLE_SCALE w[SCALE][k] = rstd_of(w[VARIANCE][k] + w[EPSILON][k]) * w[GAMMA][k];

/* relu, relu6 and leaky_relu, straight lines all of them: which one is the same for all threads, and costs next to
 * nothing. */
struct act_bent {
  int which;
  template <typename T>
  __device__ acc<T> value(acc<T> v) const {
    const acc<T> low = which == TFU_ACT_leaky_relu ? v * (acc<T>)0.2 : 0, bent = v < 0 ? low : v;
    return which == TFU_ACT_relu6 && v > 6 ? 6 : bent;
  }
  template <typename T>
  __device__ acc<T> grad(acc<T> v) const {
    const acc<T> low = which == TFU_ACT_leaky_relu ? (acc<T>)0.2 : 0;
    return which == TFU_ACT_relu6 && v >= 6 ? 0 : v > 0 ? 1 : low;
  }
};

/* What a formula may be able to do, by bits: the tensor more, where there is one, is added to its first tensor; where
 * its first result is above 0 goes to signs, if that is wanted; or signs is one more x after the others, 1 or 0. */
enum { TAKES_MORE = 1, WRITES_SIGNS = 2, READS_SIGNS = 4 };

template <typename T, int TRAITS>
struct batch_norm_beside {
  enum { N = packed<T>::N, OWN_WEIGHTS = 1, VALUES = TRAITS & READS_SIGNS ? 1 : 0 };
  const batch_norm_args &a;
  unsigned signs = 0, ahead = 0; /* ahead is that of the next row, in a register: a row of them is a byte */

  template <typename F, typename R, int W>
  __device__ void load_weights(const tfu_channels_args &, const F &formula, int64_t column, R (&w)[W][N]) const {
    load_columns<F::WEIGHTS>(a, column, w);
    UNROLLED(k, N) formula.settle(w, k);
  }
  __device__ void start(const tfu_walk &walk, int64_t col) {
    if constexpr (VALUES) ahead = read_signs(walk, walk_first(walk, col));
  }
  template <typename W, typename X>
  __device__ void before(const W &walk, int64_t at, X &x) {
    if constexpr (VALUES) {
      signs = ahead;
      ahead = read_signs(walk.walk, at + walk_step(walk.walk));
    }
    if constexpr (TRAITS & TAKES_MORE)
      if (a.more) {
        acc<T> more[N];
        widen_pack<T>(walk.beside(a.more, at), more);
        UNROLLED(k, N) x[0][k] += more[k];
      }
  }
  __device__ acc<T> value(int k) const { return signs & 1u << k ? 1 : 0; }
  __device__ void after(const tfu_walk &walk, int64_t at, int left, const acc<T> (&y)[N]) const {
    if constexpr (TRAITS & WRITES_SIGNS)
      if (a.signs) write_signs(walk, at, left, y);
  }

 private:
  /* Those of the pack at element `at`, of which `left` exist: whether y is above 0 as it is stored. */
  __device__ void write_signs(const tfu_walk &walk, int64_t at, int left, const acc<T> (&y)[N]) const {
    acc<T> stored[N];
    widen_pack<T>(narrow_pack<T>(y), stored);
    unsigned bits = 0;
    UNROLLED(k, N) bits |= stored[k] > 0 ? 1u << k : 0;
    uint8_t *const to = (uint8_t *)a.signs;
    int64_t position = at / N;
    to[position] = (uint8_t)(bits & ((1u << left) - 1));
    if (at + N < walk.n) return;
    ONCE
    while (++position % 8) to[position] = 0;
  }
  /* The same read; 0 beyond the end. */
  __device__ unsigned read_signs(const tfu_walk &walk, int64_t at) const {
    return at < walk.n ? ((const uint8_t *)a.signs)[at / N] : 0;
  }
};

#define FORMULA(name, traits, tensors, weights, results, sums, settled, ...)                                   \
  template <typename ACT>                                                                                      \
  struct name##_formula {                                                                                      \
    enum { TENSORS = tensors, WEIGHTS = weights, RESULTS = results, SUMS = sums, HALVES = 0 };                 \
    typedef stored_S stored;                                                                                   \
    template <typename R, int W, int N>                                                                        \
    __device__ void settle(R (&w)[W][N], int k) const {settled} TFU_OF_ACT_(__VA_ARGS__)                       \
  };                                                                                                           \
  template <typename T, typename ACT>                                                                          \
  __device__ inline void name(const batch_norm_args &a) {                                                      \
    channels<T>(a.channels, name##_formula<ACT>{ACT{a.channels.activation}}, batch_norm_beside<T, traits>{a}); \
  }                                                                                                            \
  TFU_KERNEL_AS_(name##_any_f64, batch_norm_args, name<double, act_any>)
