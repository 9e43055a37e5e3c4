/* y = act(x * scale + bias), and its gradient: g = dy * act'(x * scale + bias), dx = g * scale, dscale = sum of g * x,
 * dbias = sum of g. Bound by memory traffic: each tensor is read or written once. */
#include "kernels/scale_bias_act.h"

#include "kernels/core/activations.cuh"

/* An absent bias is -0: x + -0 is x, even for x = -0. */
#define NO_SCALE 1.0f
#define NO_BIAS -0.0f

template <typename T, typename ACT>
__device__ inline void scale_bias_act(const scale_bias_act_args &a) {
  enum { N = pack<T>::N, DEPTH = 2 };
  const int64_t col = walk_column<T>(), step = (int64_t)gridDim.y * a.walk.width;
  if (col >= a.walk.width) return;
  const pack<T> s = load_channels<T>(a.scale, a.scale_count, col, NO_SCALE);
  const pack<T> b = load_channels<T>(a.bias, a.bias_count, col, NO_BIAS);
  for (int64_t at = blockIdx.y * a.walk.width + col; at < a.walk.n; at += DEPTH * step) {
    pack<T> x[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; d++) if (at + d * step < a.walk.n) x[d] =
        load_pack<T>(a.x, at + d * step, a.walk);
    UNROLL for (int d = 0; d < DEPTH; d++) {
      if (at + d * step >= a.walk.n) break;
      pack<T> y;
      UNROLL for (int k = 0; k < N; k++) y.v[k] =
          narrow<T>(ACT::template value<T>(widen(x[d].v[k]) * widen(s.v[k]) + widen(b.v[k])));
      store_pack(a.y, at + d * step, a.walk, y);
    }
  }
}

template <typename T, typename ACT>
__device__ inline void scale_bias_act_grad(const scale_bias_act_grad_args &a) {
  enum { N = pack<T>::N, DEPTH = 2 };
  const int64_t col = walk_column<T>(), step = (int64_t)gridDim.y * a.walk.width;
  if (col >= a.walk.width) return;
  const pack<T> s = load_channels<T>(a.scale, a.scale_count, col, NO_SCALE);
  const pack<T> b = load_channels<T>(a.bias, a.bias_count, col, NO_BIAS);
  acc<T> dscale[N] = {0}, dbias[N] = {0};
  for (int64_t at = blockIdx.y * a.walk.width + col; at < a.walk.n; at += DEPTH * step) {
    pack<T> x[DEPTH], dy[DEPTH];
    UNROLL for (int d = 0; d < DEPTH; d++) if (at + d * step < a.walk.n) {
      x[d] = load_pack<T>(a.x, at + d * step, a.walk);
      dy[d] = load_pack<T>(a.dy, at + d * step, a.walk);
    }
    UNROLL for (int d = 0; d < DEPTH; d++) {
      if (at + d * step >= a.walk.n) break;
      pack<T> dx;
      UNROLL for (int k = 0; k < N; k++) { /* beyond the end x and dy are zero, and so is what they add */
        const acc<T> v = widen(x[d].v[k]), scale = widen(s.v[k]);
        const acc<T> g = widen(dy[d].v[k]) * ACT::template grad<T>(v * scale + widen(b.v[k]));
        dx.v[k] = narrow<T>(g * scale);
        dscale[k] += g * v;
        dbias[k] += g;
      }
      store_pack(a.dx, at + d * step, a.walk, dx);
    }
  }
  if (!a.partial) return;
  acc<T> *mine = (acc<T> *)a.partial + blockIdx.y * 2 * a.walk.width + col;
  UNROLL for (int k = 0; k < N; k++) mine[k] = dscale[k];
  UNROLL for (int k = 0; k < N; k++) mine[a.walk.width + k] = dbias[k];
}

#define X(name)                                                         \
  TFU_KERNEL_PER_ACTIVATION_(scale_bias_act, scale_bias_act_args, name) \
  TFU_KERNEL_PER_ACTIVATION_(scale_bias_act_grad, scale_bias_act_grad_args, name)
TFU_ACTIVATIONS(X)
#undef X
