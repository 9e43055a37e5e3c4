/* channels.cuh - elementwise formulas with weights and sums per channel, device side. kernels/core/channels.h has what
 * a formula is, and TFU_CHANNELS; TFU_CHANNELS_ACT is the same for formulas with an activation. */
#pragma once

#include "kernels/core/device/activations.cuh"
#include "kernels/core/device/walk.cuh"
#include "kernels/core/gpu/channels.h"

/* How weights are stored. */
struct stored_T {
  template <typename T>
  using as = T;
};
struct stored_S {
  template <typename T>
  using as = acc<T>;
};

/* What a formula may be able to do, by bits: it makes the weights of N columns from `column` on by itself; the tensor
 * a.more, where there is one, is added to its first tensor; where its first result is above 0 goes to a.signs, if that
 * is wanted; or a.signs is one more x behind the others, 1 or 0. */
enum { OWN_WEIGHTS = 1, TAKES_MORE = 2, WRITES_SIGNS = 4, READS_SIGNS = 8 };

/* Those of the pack at element `at`, of which `left` exist: whether y is above 0 as it is stored. */
template <typename T, int N>
__device__ inline void write_signs(const tfu_channels_args &a, int64_t at, int left, const acc<T> (&y)[N]) {
  acc<T> stored[N];
  widen_pack<T>(narrow_pack<T>(y), stored);
  unsigned bits = 0;
  UNROLL
  for (int k = 0; k < N; k++) bits |= stored[k] > 0 ? 1u << k : 0;
  uint8_t *const signs = (uint8_t *)a.signs;
  int64_t place = at / N;
  signs[place] = (uint8_t)(bits & ((1u << left) - 1));
  if (at + N < a.walk.n) return;
  ONCE
  while (++place % 8) signs[place] = 0;
}

/* The same read; 0 beyond the end. */
template <typename T>
__device__ inline unsigned read_signs(const tfu_channels_args &a, int64_t at) {
  return at < a.walk.n ? ((const uint8_t *)a.signs)[at / packed<T>::N] : 0;
}

/* The sums of a block's columns, one behind the other in shared memory, become its partial sums. Where a
 * joined row has several copies of the channels in a block, these are added up first, always the upper half to the
 * lower one, so that a fold has a row of each block to read, and not one of each copy. */
template <int SUMS, typename R, int COLUMNS>
__device__ inline void store_sums(const tfu_channels_args &a, R (&sums)[SUMS][COLUMNS]) {
  const bool by_channel = a.cols <= COLUMNS; /* else no channel comes twice */
  const int cols = by_channel ? (int)a.cols : COLUMNS;
  ONCE
  for (int copies = (COLUMNS + cols - 1) / cols; copies > 1;) {
    const int half = (copies + 1) / 2 * cols, upper = copies * cols - half, end = COLUMNS - half;
    __syncthreads();
    ONCE
    for (int i = threadIdx.x; i < upper && i < end; i += TFU_THREADS) {
      UNROLL
      for (int q = 0; q < SUMS; q++) sums[q][i] += sums[q][i + half];
    }
    copies = (copies + 1) / 2;
  }
  __syncthreads();
  const int64_t first = (int64_t)blockIdx.x * COLUMNS,
                block = by_channel ? blockIdx.y * gridDim.x + blockIdx.x : blockIdx.y;
  R *const partial = (R *)a.partial + block * SUMS * a.sum_width + (by_channel ? 0 : first);
  const int turn = by_channel ? (int)first % cols : 0; /* the channel of the block's first column */
  const int64_t end = by_channel ? cols : a.walk.width - first;
  ONCE
  for (int i = threadIdx.x; i < cols && i < end; i += TFU_THREADS) {
    const int at = turn + i < cols ? turn + i : turn + i - cols;
    UNROLL
    for (int q = 0; q < SUMS; q++) partial[q * a.sum_width + at] = sums[q][i];
  }
}

/* A thread keeps its columns for life (walk.h): their weights and sums stay in registers. At the end the sums go to
 * a.partial for a fold. */
template <typename T, typename F>
__device__ inline void channels(const tfu_channels_args &a, const F &formula) {
  enum { N = packed<T>::N, IN = F::TENSORS, OUT = F::RESULTS, WEIGHTS = F::WEIGHTS, SUMS = F::SUMS };
  enum { SIGNS = F::TRAITS & READS_SIGNS ? 1 : 0 };
  typedef pack_walk<T, IN, OUT, F::HALVES> walk_type;
  typedef typename F::stored::template as<T> stored;
  __shared__ union {
    typename walk_type::ring ring;
    acc<T> sums[SUMS ? SUMS : 1][TFU_THREADS * N]; /* when the ring has done its work */
  } shared;
  const int64_t col = walk_column<T>();
  if (!SUMS && col >= a.walk.width) return;
  acc<T> sum[SUMS + 1][N]; /* an array cannot be empty */
  UNROLL
  for (int i = 0; i < SUMS * N; i++) sum[i / N][i % N] = 0;
  if (col < a.walk.width) {
    walk_type walk(a.walk, col, a.x, a.half, shared.ring);
    acc<T> w[WEIGHTS + 1][N];
    const int64_t column = WEIGHTS ? col % a.cols : 0;
    if constexpr (F::TRAITS & OWN_WEIGHTS) formula.load_weights(a, column, w);
    UNROLL
    for (int i = 0; i < WEIGHTS && !(F::TRAITS & OWN_WEIGHTS); i++)
      walk.load_weights((const stored *)a.w[i], a.count[i], column, (stored)a.absent[i], w[i]);

    unsigned signs = 0, signs_ahead = 0; /* a row ahead, in a register: a row of them is a byte */
    if constexpr (SIGNS) signs_ahead = read_signs<T>(a, walk_first(a.walk, col));
    walk.run(a.y, [&](int64_t at, int left, typename walk_type::inputs x, typename walk_type::outputs y) {
      if constexpr (SIGNS) {
        signs = signs_ahead;
        signs_ahead = read_signs<T>(a, at + walk_step(a.walk));
      }
      if constexpr (F::TRAITS & TAKES_MORE)
        if (a.more) {
          acc<T> more[N];
          widen_pack<T>(walk.beside(a.more, at), more);
          UNROLL
          for (int k = 0; k < N; k++) x[0][k] += more[k];
        }
      UNROLL
      for (int k = 0; k < N; k++) {
        acc<T> xs[IN + SIGNS], ws[WEIGHTS + 1], ys[OUT + 1], ss[SUMS + 1];
        UNROLL
        for (int i = 0; i < IN; i++) xs[i] = x[i][k];
        if constexpr (SIGNS) xs[IN] = signs & 1u << k ? 1 : 0;
        UNROLL
        for (int i = 0; i < WEIGHTS; i++) ws[i] = w[i][k];
        formula.template of<T>(xs, ws, ys, ss);
        UNROLL
        for (int i = 0; i < OUT; i++) y[i][k] = ys[i];
        UNROLL
        for (int i = 0; i < SUMS; i++)
          if (k < left) sum[i][k] += ss[i]; /* what stands beyond the end adds nothing */
      }
      if constexpr (F::TRAITS & WRITES_SIGNS)
        if (a.signs) write_signs<T>(a, at, left, y[0]);
    });
  }
  if constexpr (SUMS != 0) {
    if (!a.partial) return;
    __syncthreads();
    UNROLL
    for (int i = 0; i < SUMS; i++) UNROLL
    for (int k = 0; k < N; k++) shared.sums[i][threadIdx.x * N + k] = sum[i][k];
    store_sums(a, shared.sums);
  }
}

#define TFU_CHANNELS(name, tensors, weights, how, results, sums, ...)                                      \
  struct name##_formula {                                                                                  \
    enum { TENSORS = tensors, WEIGHTS = weights, RESULTS = results, SUMS = sums, HALVES = 0, TRAITS = 0 }; \
    typedef stored_##how stored;                                                                           \
    template <typename T>                                                                                  \
    __device__ void of(const acc<T> *x, const acc<T> *w, acc<T> *y, acc<T> *s) const {                     \
      typedef acc<T> REAL;                                                                                 \
      __VA_ARGS__                                                                                          \
    }                                                                                                      \
  };                                                                                                       \
  template <typename T>                                                                                    \
  __device__ inline void name(const tfu_channels_args &a) {                                                \
    channels<T>(a, name##_formula());                                                                      \
  }                                                                                                        \
  TFU_KERNEL(name, tfu_channels_args)
#define TFU_CHANNELS_WITH(name, tensors, weights, how, results, sums, attributes, ...) \
  TFU_CHANNELS(name, tensors, weights + attributes, how, results, sums, __VA_ARGS__)

/* What a formula that says value(v) and slope(v) computes, and the kernel of it that reads the activation from its
 * arguments. */
#define TFU_OF_ACT_(...)                                                             \
  ACT act;                                                                           \
  template <typename T>                                                              \
  __device__ void of(const acc<T> *x, const acc<T> *w, acc<T> *y, acc<T> *s) const { \
    typedef acc<T> REAL;                                                             \
    const auto value = [&](REAL v) { return act.template value<T>(v); };             \
    const auto slope = [&](REAL v) { return act.template grad<T>(v); };              \
    __VA_ARGS__                                                                      \
  }
#define TFU_ANY_ACT_(name)                                  \
  template <typename T, typename ACT>                       \
  __device__ inline void name(const tfu_channels_args &a) { \
    channels<T>(a, name##_formula<ACT>{ACT{a.activation}}); \
  }                                                         \
  TFU_KERNEL_AS_(name##_any_f64, tfu_channels_args, name<double, act_any>)

/* The kernels name_<activation>_<dtype>, and for float64 name_any_f64. The formula says value(v) and slope(v) for the
 * activation and its derivative. halves: see pack_walk. */
#define TFU_CHANNELS_ACT(name, tensors, weights, results, sums, halves, ...)                                    \
  template <typename ACT>                                                                                       \
  struct name##_formula {                                                                                       \
    enum { TENSORS = tensors, WEIGHTS = weights, RESULTS = results, SUMS = sums, HALVES = halves, TRAITS = 0 }; \
    typedef stored_T stored;                                                                                    \
    TFU_OF_ACT_(__VA_ARGS__)                                                                                    \
  };                                                                                                            \
  TFU_ANY_ACT_(name)
