/* y = act(x * scale + bias), and its gradient: g = dy * act'(x * scale + bias), dx = g * scale, dscale = sum of g * x,
 * dbias = sum of g. Bound by memory traffic: each tensor is read or written once. */
#include "kernels/elementwise/scale_bias_act.h"

#include "kernels/core/device/activations.cuh"
#include "kernels/core/device/stream.cuh"

/* What a thread knows of its columns. An absent bias is -0: x + -0 is x, even for x = -0. */
template <typename T>
struct columns {
  acc<T> scale[packed<T>::N], bias[packed<T>::N];
  template <typename A>
  __device__ columns(const A &a, int64_t col) {
    load_channels((const T *)a.scale, a.scale_count, col, (acc<T>)1, scale);
    load_channels((const T *)a.bias, a.bias_count, col, (acc<T>)-0.0, bias);
  }
};

template <typename T, typename ACT>
__device__ inline void forward(const columns<T> &c, acc<T> (&v)[packed<T>::N]) {
  UNROLL
  for (int k = 0; k < packed<T>::N; k++) v[k] = ACT::template value<T>(v[k] * c.scale[k] + c.bias[k]);
}

template <typename T, typename ACT>
__device__ inline void scale_bias_act(const scale_bias_act_args &a) {
  __shared__ typename pack_stream<T, 1>::ring ring;
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  acc<T> v[packed<T>::N];
  const int rows = whole_rows<T>(col, a.walk);
  pack_stream<T, 1> stream(a.walk, at, rows, ring, a.x);
  const columns<T> c(a, col);
  for (int row = blockIdx.y; row < rows; row += gridDim.y, at += step) {
    int4 bits[1];
    stream.next(bits);
    widen_pack<T>(bits[0], v);
    forward<T, ACT>(c, v);
    store_bits((T *)a.y + at, narrow_pack<T>(v));
  }
  for (; at < a.walk.n; at += step) {
    load_part((const T *)a.x, at, a.walk, v);
    forward<T, ACT>(c, v);
    store_part((T *)a.y, at, a.walk, v);
  }
}

template <typename T>
struct sums {
  acc<T> scale[packed<T>::N] = {0}, bias[packed<T>::N] = {0};
};

/* Turns dy, in g, into dx. */
template <typename T, typename ACT>
__device__ inline void backward(const columns<T> &c, const acc<T> (&x)[packed<T>::N], acc<T> (&g)[packed<T>::N],
                                sums<T> &d) {
  UNROLL
  for (int k = 0; k < packed<T>::N; k++) {
    g[k] *= ACT::template grad<T>(x[k] * c.scale[k] + c.bias[k]);
    d.scale[k] += g[k] * x[k];
    d.bias[k] += g[k];
    g[k] *= c.scale[k];
  }
}

template <typename T, typename ACT>
__device__ inline void scale_bias_act_grad(const scale_bias_act_grad_args &a) {
  __shared__ typename pack_stream<T, 2>::ring ring;
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  acc<T> x[packed<T>::N], g[packed<T>::N];
  const int rows = whole_rows<T>(col, a.walk);
  pack_stream<T, 2> stream(a.walk, at, rows, ring, a.x, a.dy);
  const columns<T> c(a, col);
  sums<T> d;
  for (int row = blockIdx.y; row < rows; row += gridDim.y, at += step) {
    int4 bits[2];
    stream.next(bits);
    widen_pack<T>(bits[0], x);
    widen_pack<T>(bits[1], g);
    backward<T, ACT>(c, x, g, d);
    store_bits((T *)a.dx + at, narrow_pack<T>(g));
  }
  for (; at < a.walk.n; at += step) {
    load_part((const T *)a.x, at, a.walk, x);
    load_part((const T *)a.dy, at, a.walk, g); /* zero beyond the end, and so is what it adds */
    backward<T, ACT>(c, x, g, d);
    store_part((T *)a.dx, at, a.walk, g);
  }
  if (!a.partial) return;
  acc<T> *mine = (acc<T> *)a.partial + blockIdx.y * 2 * a.walk.width + col;
  UNROLL
  for (int k = 0; k < packed<T>::N; k++) {
    mine[k] = d.scale[k];
    mine[a.walk.width + k] = d.bias[k];
  }
}

#define X(name)                                                        \
  TFU_KERNEL_FOR_ACTIVATION(scale_bias_act, scale_bias_act_args, name) \
  TFU_KERNEL_FOR_ACTIVATION(scale_bias_act_grad, scale_bias_act_grad_args, name)
TFU_ACTIVATIONS(X)
#undef X
