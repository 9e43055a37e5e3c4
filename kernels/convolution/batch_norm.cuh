/* batch_norm.cuh - formulas of batch normalisation: an activation, and weights of each channel in the type of
 * arithmetic. As TFU_CHANNELS_ACT (kernels/core/device/channels.cuh), but weights may belong to several neighbouring
 * columns, and { settle } makes of w[i][k], those of column k, what the formula wants, once for all elements. */
#pragma once

#include "kernels/convolution/batch_norm.h"
#include "kernels/core/device/channels.cuh"

__device__ inline float root(float v) { return sqrtf(v); }
__device__ inline double root(double v) { return sqrt(v); }

/* Weights of all passes that begin at statistics. The settled ones are mean, scale and beta. */
enum { MEAN, VARIANCE, GAMMA, BETA, EPSILON, STATISTICS, SCALE = VARIANCE };
#define SETTLE_SCALE w[SCALE][k] = 1 / root(w[VARIANCE][k] + w[EPSILON][k]) * w[GAMMA][k];

#define FORMULA(name, tensors, weights, results, sums, settled, ...)                                        \
  template <typename ACT>                                                                                   \
  struct name##_formula {                                                                                   \
    enum { TENSORS = tensors, WEIGHTS = weights, RESULTS = results, SUMS = sums, HALVES = 0, SETTLES = 1 }; \
    typedef stored_S stored;                                                                                \
    ACT act;                                                                                                \
    template <typename R, int W, int N>                                                                     \
    __device__ void settle(R (&w)[W][N]) const {                                                            \
      UNROLL                                                                                                \
      for (int k = 0; k < N; k++) {                                                                         \
        settled                                                                                             \
      }                                                                                                     \
    }                                                                                                       \
    template <typename T>                                                                                   \
    __device__ void of(const acc<T> *x, const acc<T> *w, acc<T> *y, acc<T> *s) const {                      \
      typedef acc<T> REAL;                                                                                  \
      const auto value = [&](REAL v) { return act.template value<T>(v); };                                  \
      const auto slope = [&](REAL v) { return act.template grad<T>(v); };                                   \
      __VA_ARGS__                                                                                           \
    }                                                                                                       \
  };                                                                                                        \
  template <typename T, typename ACT>                                                                       \
  __device__ inline void name(const tfu_channels_args &a) {                                                 \
    channels<T>(a, name##_formula<ACT>{ACT{a.activation}});                                                 \
  }                                                                                                         \
  TFU_KERNEL_AS_(name##_any_f64, tfu_channels_args, name<double, act_any>)
