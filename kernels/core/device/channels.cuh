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

/* What a formula may have beside it, for the length of a thread's walk: weights that it makes by itself, further values
 * of each element after those of its tensors, and what it makes of the elements that were computed. Here, nothing. */
struct nothing_beside {
  enum { OWN_WEIGHTS = 0, VALUES = 0 };
  __device__ void start(const tfu_walk &, int64_t) {}
  template <typename W, typename X>
  __device__ void before(const W &, int64_t, X &) {}
  __device__ float value(int) const { return 0; }
  template <typename Y>
  __device__ void after(const tfu_walk &, int64_t, int, const Y &) {}
};

/* The sums of a block's columns, one after the other in shared memory, become its partial sums. Where a
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
      UNROLLED(q, SUMS) sums[q][i] += sums[q][i + half];
    }
    copies = (copies + 1) / 2;
  }
  __syncthreads();
  const int64_t first = (int64_t)blockIdx.x * COLUMNS,
                block = by_channel ? blockIdx.y * gridDim.x + blockIdx.x : blockIdx.y;
  R *const partial = (R *)a.partial + block * SUMS * a.sum_width + (by_channel ? 0 : first);
  const int first_channel = by_channel ? (int)first % cols : 0; /* the channel of the block's first column */
  const int64_t end = by_channel ? cols : a.walk.width - first;
  ONCE
  for (int i = threadIdx.x; i < cols && i < end; i += TFU_THREADS) {
    const int at = first_channel + i < cols ? first_channel + i : first_channel + i - cols;
    UNROLLED(q, SUMS) partial[q * a.sum_width + at] = sums[q][i];
  }
}

/* A thread keeps its columns for life (walk.h): their weights and sums stay in registers. At the end the sums go to
 * a.partial for a fold. */
template <typename T, typename F, typename B = nothing_beside>
__device__ inline void channels(const tfu_channels_args &a, const F &formula, B beside = B()) {
  enum { N = packed<T>::N, IN = F::TENSORS, OUT = F::RESULTS, WEIGHTS = F::WEIGHTS, SUMS = F::SUMS };
  typedef pack_walk<T, IN, OUT, F::HALVES> walk_type;
  typedef typename F::stored::template as<T> stored;
  __shared__ union {
    typename walk_type::ring ring;
    acc<T> sums[SUMS ? SUMS : 1][TFU_THREADS * N]; /* when the ring has done its work */
  } shared;
  const int64_t col = walk_column<T>();
  if (!SUMS && col >= a.walk.width) return;
  acc<T> sum[SUMS + 1][N]; /* an array cannot be empty */
  UNROLLED(i, SUMS * N) sum[i / N][i % N] = 0;
  if (col < a.walk.width) {
    walk_type walk(a.walk, col, a.x, a.half, shared.ring);
    acc<T> w[WEIGHTS + 1][N];
    const int64_t column = WEIGHTS ? col % a.cols : 0;
    if constexpr (B::OWN_WEIGHTS) beside.load_weights(a, formula, column, w);
    UNROLLED(i, B::OWN_WEIGHTS ? 0 : WEIGHTS)
      walk.load_weights((const stored *)a.w[i], a.count[i], column, (stored)a.absent[i], w[i]);
    beside.start(a.walk, col);
    walk.run(a.y, [&](int64_t at, int left, typename walk_type::inputs x, typename walk_type::outputs y) {
      beside.before(walk, at, x);
      UNROLLED(k, N) {
        acc<T> xs[IN + B::VALUES], ws[WEIGHTS + 1], ys[OUT + 1], ss[SUMS + 1];
        UNROLLED(i, IN) xs[i] = x[i][k];
        if constexpr (B::VALUES) xs[IN] = beside.value(k);
        UNROLLED(i, WEIGHTS) ws[i] = w[i][k];
        formula.template of<T>(xs, ws, ys, ss);
        UNROLLED(i, OUT) y[i][k] = ys[i];
        UNROLLED(i, SUMS)
          if (k < left) sum[i][k] += ss[i]; /* what stands beyond the end adds nothing */
      }
      beside.after(a.walk, at, left, y[0]);
    });
  }
  if constexpr (SUMS != 0) {
    if (!a.partial) return;
    __syncthreads();
    UNROLLED(i, SUMS)
      UNROLLED(k, N) shared.sums[i][threadIdx.x * N + k] = sum[i][k];
    store_sums(a, shared.sums);
  }
}

#define TFU_CHANNELS(name, tensors, weights, how, results, sums, ...)                          \
  struct name##_formula {                                                                      \
    enum { TENSORS = tensors, WEIGHTS = weights, RESULTS = results, SUMS = sums, HALVES = 0 }; \
    typedef stored_##how stored;                                                               \
    template <typename T>                                                                      \
    __device__ void of(const acc<T> *x, const acc<T> *w, acc<T> *y, acc<T> *s) const {         \
      typedef acc<T> REAL;                                                                     \
      __VA_ARGS__                                                                              \
    }                                                                                          \
  };                                                                                           \
  template <typename T>                                                                        \
  __device__ inline void name(const tfu_channels_args &a) {                                    \
    channels<T>(a, name##_formula());                                                          \
  }                                                                                            \
  TFU_KERNEL(name, tfu_channels_args)
#define TFU_CHANNELS_WITH(name, tensors, weights, how, results, sums, attributes, ...) \
  TFU_CHANNELS(name, tensors, weights + attributes, how, results, sums, __VA_ARGS__)

/* What a formula that says value(v) and slope(v) computes. */
#define TFU_OF_ACT_(...)                                                             \
  ACT act;                                                                           \
  template <typename T>                                                              \
  __device__ void of(const acc<T> *x, const acc<T> *w, acc<T> *y, acc<T> *s) const { \
    typedef acc<T> REAL;                                                             \
    const auto value = [&](REAL v) { return act.template value<T>(v); };             \
    const auto slope = [&](REAL v) { return act.template grad<T>(v); };              \
    __VA_ARGS__                                                                      \
  }

/* The kernels name_<activation>_<dtype>, and for float64 name_any_f64. The formula says value(v) and slope(v) for the
 * activation and its derivative. halves: see pack_walk. */
#define TFU_CHANNELS_ACT(name, tensors, weights, results, sums, halves, ...)                        \
  template <typename ACT>                                                                           \
  struct name##_formula {                                                                           \
    enum { TENSORS = tensors, WEIGHTS = weights, RESULTS = results, SUMS = sums, HALVES = halves }; \
    typedef stored_T stored;                                                                        \
    TFU_OF_ACT_(__VA_ARGS__)                                                                        \
  };                                                                                                \
  template <typename T, typename ACT>                                                               \
  __device__ inline void name(const tfu_channels_args &a) {                                         \
    channels<T>(a, name##_formula<ACT>{ACT{a.activation}});                                         \
  }                                                                                                 \
  TFU_KERNEL_AS_(name##_any_f64, tfu_channels_args, name<double, act_any>)
