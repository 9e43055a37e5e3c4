/* y = act(a) * b, and its gradient: da = dy * b * act'(a), db = dy * act(a). */
#include "kernels/elementwise/gated.h"

#include "kernels/core/device/activations.cuh"
#include "kernels/core/device/halves.cuh"
#include "kernels/core/device/stream.cuh"

/* Where a and b are: two tensors are like halves that are rows of their own. */
template <typename A>
struct gate_walk {
  int64_t half, at, offset, times;
  __device__ gate_walk(const A &a, int64_t at)
      : half(a.half ? a.half : a.walk.n), at(at), offset(a.half ? first_half(at, a.half) : at), times(a.half ? 2 : 1) {}
};

template <typename T, typename ACT>
__device__ inline void gated(const gated_args &a) {
  enum { N = packed<T>::N };
  __shared__ typename pack_stream<T, 2>::ring ring;
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  const gate_walk<gated_args> g(a, at);
  const int rows = whole_rows<T>(col, a.walk);
  pack_stream<T, 2> stream(rows, ring, {(const T *)a.a + g.offset, (const T *)a.b + g.offset},
                           {step * g.times, step * g.times});
  acc<T> x[N], b[N];
  for (int row = blockIdx.y; row < rows; row += gridDim.y, at += step) {
    int4 bits[2];
    stream.next(bits);
    widen_pack<T>(bits[0], x);
    widen_pack<T>(bits[1], b);
    UNROLL
    for (int k = 0; k < N; k++) x[k] = ACT::template value<T>(x[k]) * b[k];
    store_bits((T *)a.y + at, narrow_pack<T>(x));
  }
  for (; at < a.walk.n; at += step) {
    load_half_part((const T *)a.a, at, g.half, a.walk, x);
    load_half_part((const T *)a.b, at, g.half, a.walk, b);
    UNROLL
    for (int k = 0; k < N; k++) x[k] = ACT::template value<T>(x[k]) * b[k];
    store_part((T *)a.y, at, a.walk, x);
  }
}

/* Turns a and b into their gradients. */
template <typename T, typename ACT, int N>
__device__ inline void gate_back(const acc<T> (&dy)[N], acc<T> (&x)[N], acc<T> (&b)[N]) {
  UNROLL
  for (int k = 0; k < N; k++) {
    const acc<T> value = ACT::template value<T>(x[k]);
    x[k] = dy[k] * b[k] * ACT::template grad<T>(x[k]);
    b[k] = dy[k] * value;
  }
}

template <typename T, typename ACT>
__device__ inline void gated_grad(const gated_grad_args &a) {
  enum { N = packed<T>::N };
  __shared__ typename pack_stream<T, 3>::ring ring;
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  const gate_walk<gated_grad_args> g(a, at);
  int64_t offset = g.offset;
  const int rows = whole_rows<T>(col, a.walk);
  pack_stream<T, 3> stream(rows, ring, {(const T *)a.dy + at, (const T *)a.a + offset, (const T *)a.b + offset},
                           {step, step * g.times, step * g.times});
  acc<T> dy[N], x[N], b[N];
  for (int row = blockIdx.y; row < rows; row += gridDim.y, at += step, offset += step * g.times) {
    int4 bits[3];
    stream.next(bits);
    widen_pack<T>(bits[0], dy);
    widen_pack<T>(bits[1], x);
    widen_pack<T>(bits[2], b);
    gate_back<T, ACT>(dy, x, b);
    store_bits((T *)a.da + offset, narrow_pack<T>(x));
    store_bits((T *)a.db + offset, narrow_pack<T>(b));
  }
  for (; at < a.walk.n; at += step) {
    load_part((const T *)a.dy, at, a.walk, dy);
    load_half_part((const T *)a.a, at, g.half, a.walk, x);
    load_half_part((const T *)a.b, at, g.half, a.walk, b);
    gate_back<T, ACT>(dy, x, b);
    store_half_part((T *)a.da, at, g.half, a.walk, x);
    store_half_part((T *)a.db, at, g.half, a.walk, b);
  }
}

#define X(name)                                      \
  TFU_KERNEL_FOR_ACTIVATION(gated, gated_args, name) \
  TFU_KERNEL_FOR_ACTIVATION(gated_grad, gated_grad_args, name)
TFU_ACTIVATIONS(X)
#undef X
