/* map.cuh - elementwise formulas on the GPU, device side: TFU_MAP1(name, x, formula of x) makes the kernels name_f32 …,
 * TFU_MAP2 takes two inputs. */
#pragma once

#include "kernels/core/device/pack.cuh"

template <typename T, typename F>
__device__ inline void map(const tfu_map_args &a) {
  const int64_t col = walk_column<T>(), step = walk_step(a.walk);
  if (col >= a.walk.width) return;
  int64_t at = walk_first(a.walk, col);
  acc<T> x[2][packed<T>::N], y[packed<T>::N]; /* a single number stays in x for all packs */
  UNROLL
  for (int i = 0; i < F::INPUTS; i++) load_channels((const T *)a.in[i], a.one[i], col, (acc<T>)0, x[i]);
  for (; is_whole<T>(at, a.walk); at += step) {
    UNROLL
    for (int i = 0; i < F::INPUTS; i++)
      if (!a.one[i]) widen_pack<T>(*(const int4 *)((const T *)a.in[i] + at), x[i]);
    UNROLL
    for (int k = 0; k < packed<T>::N; k++) y[k] = F::of(x[0][k], x[F::INPUTS - 1][k]);
    store_bits((T *)a.y + at, narrow_pack<T>(y));
  }
  for (; at < a.walk.n; at += step) {
    UNROLL
    for (int i = 0; i < F::INPUTS; i++)
      if (!a.one[i]) load_part((const T *)a.in[i], at, a.walk, x[i]);
    UNROLL
    for (int k = 0; k < packed<T>::N; k++) y[k] = F::of(x[0][k], x[F::INPUTS - 1][k]);
    store_part((T *)a.y, at, a.walk, y);
  }
}

#define TFU_MAP_(name, inputs, a, b, formula)                                  \
  template <typename T>                                                        \
  struct name##_formula {                                                      \
    enum { INPUTS = inputs };                                                  \
    static __device__ inline acc<T> of(acc<T> a, acc<T> b) { return formula; } \
  };                                                                           \
  template <typename T>                                                        \
  __device__ inline void name(const tfu_map_args &a) {                         \
    map<T, name##_formula<T>>(a);                                              \
  }                                                                            \
  TFU_KERNEL(name, tfu_map_args)
#define TFU_MAP1(name, a, formula) TFU_MAP_(name, 1, a, unused_, formula)
#define TFU_MAP2(name, a, b, formula) TFU_MAP_(name, 2, a, b, formula)
