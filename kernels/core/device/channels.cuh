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

/* A thread keeps its columns for life (walk.h): their weights and sums stay in registers. At the end the sums go to
 * a.partial, [blocks along y][SUMS][width], for a fold. A formula with OWN_WEIGHTS makes those of the N columns from
 * `column` on by itself. */
template <typename T, typename F>
__device__ inline void channels(const tfu_channels_args &a, const F &formula) {
  enum { N = packed<T>::N, IN = F::TENSORS, OUT = F::RESULTS, WEIGHTS = F::WEIGHTS, SUMS = F::SUMS };
  typedef pack_walk<T, IN, OUT, F::HALVES> walk_type;
  typedef typename F::stored::template as<T> stored;
  __shared__ typename walk_type::ring ring;
  const int64_t col = walk_column<T>();
  if (col >= a.walk.width) return;
  walk_type walk(a.walk, col, a.x, a.half, ring);
  acc<T> w[WEIGHTS + 1][N], sum[SUMS + 1][N]; /* an array cannot be empty */
  const int64_t column = WEIGHTS ? col % a.cols : 0;
  if constexpr (F::OWN_WEIGHTS) formula.load_weights(a, column, w);
  UNROLL
  for (int i = 0; i < WEIGHTS && !F::OWN_WEIGHTS; i++)
    walk.load_weights((const stored *)a.w[i], a.count[i], column, (stored)a.absent[i], w[i]);
  UNROLL
  for (int i = 0; i < SUMS * N; i++) sum[i / N][i % N] = 0;

  walk.run(a.y, [&](int64_t, int left, typename walk_type::inputs x, typename walk_type::outputs y) {
    UNROLL
    for (int k = 0; k < N; k++) {
      acc<T> xs[IN], ws[WEIGHTS + 1], ys[OUT + 1], ss[SUMS + 1];
      UNROLL
      for (int i = 0; i < IN; i++) xs[i] = x[i][k];
      UNROLL
      for (int i = 0; i < WEIGHTS; i++) ws[i] = w[i][k];
      formula.template of<T>(xs, ws, ys, ss);
      UNROLL
      for (int i = 0; i < OUT; i++) y[i][k] = ys[i];
      UNROLL
      for (int i = 0; i < SUMS; i++)
        if (k < left) sum[i][k] += ss[i]; /* what stands beyond the end adds nothing */
    }
  });
  if (!a.partial) return;
  acc<T> *const partial = (acc<T> *)a.partial + blockIdx.y * SUMS * a.walk.width + col;
  UNROLL
  for (int i = 0; i < SUMS; i++) UNROLL
  for (int k = 0; k < N; k++) partial[i * a.walk.width + k] = sum[i][k];
}

#define TFU_CHANNELS(name, tensors, weights, how, results, sums, ...)                                           \
  struct name##_formula {                                                                                       \
    enum { TENSORS = tensors, WEIGHTS = weights, RESULTS = results, SUMS = sums, HALVES = 0, OWN_WEIGHTS = 0 }; \
    typedef stored_##how stored;                                                                                \
    template <typename T>                                                                                       \
    __device__ void of(const acc<T> *x, const acc<T> *w, acc<T> *y, acc<T> *s) const {                          \
      typedef acc<T> REAL;                                                                                      \
      __VA_ARGS__                                                                                               \
    }                                                                                                           \
  };                                                                                                            \
  template <typename T>                                                                                         \
  __device__ inline void name(const tfu_channels_args &a) {                                                     \
    channels<T>(a, name##_formula());                                                                           \
  }                                                                                                             \
  TFU_KERNEL(name, tfu_channels_args)

/* The kernels name_<activation>_<dtype>, and for float64 name_any_f64, which reads the activation from its arguments.
 * The formula says value(v) and slope(v) for the activation and its derivative. halves: see pack_walk. */
#define TFU_CHANNELS_ACT(name, tensors, weights, results, sums, halves, ...)                                         \
  template <typename ACT>                                                                                            \
  struct name##_formula {                                                                                            \
    enum { TENSORS = tensors, WEIGHTS = weights, RESULTS = results, SUMS = sums, HALVES = halves, OWN_WEIGHTS = 0 }; \
    typedef stored_T stored;                                                                                         \
    ACT act;                                                                                                         \
    template <typename T>                                                                                            \
    __device__ void of(const acc<T> *x, const acc<T> *w, acc<T> *y, acc<T> *s) const {                               \
      typedef acc<T> REAL;                                                                                           \
      const auto value = [&](REAL v) { return act.template value<T>(v); };                                           \
      const auto slope = [&](REAL v) { return act.template grad<T>(v); };                                            \
      __VA_ARGS__                                                                                                    \
    }                                                                                                                \
  };                                                                                                                 \
  template <typename T, typename ACT>                                                                                \
  __device__ inline void name(const tfu_channels_args &a) {                                                          \
    channels<T>(a, name##_formula<ACT>{ACT{a.activation}});                                                          \
  }                                                                                                                  \
  TFU_KERNEL_AS_(name##_any_f64, tfu_channels_args, name<double, act_any>)
