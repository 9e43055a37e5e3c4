/* map.cuh - elementwise formulas on the GPU, device side: TFU_MAP1(name, x, formula of x) makes the kernels name_f32 …,
 * TFU_MAP2 takes two inputs. */
#pragma once

#include "kernels/core/pack.cuh"

/* Two packs in flight per thread and input: at full occupancy one alone would not cover the memory's latency. */
template <typename T, typename F>
__device__ inline void map(const tfu_map_args &a) {
  enum { N = pack<T>::N, DEPTH = 2 };
  const int64_t col = walk_column<T>(), step = (int64_t)gridDim.y * a.walk.width;
  if (col >= a.walk.width) return;
  pack<T> x[2][DEPTH];
  UNROLL for (int i = 0; i < 2; i++) UNROLL for (int d = 0; d < DEPTH; d++) x[i][d] =
      load_channels<T>(a.in[i], a.one[i], col, 0);
  for (int64_t at = blockIdx.y * a.walk.width + col; at < a.walk.n; at += DEPTH * step) {
    UNROLL for (int d = 0; d < DEPTH; d++)
        UNROLL for (int i = 0; i < F::INPUTS; i++) if (!a.one[i] && at + d * step < a.walk.n) x[i][d] =
            load_pack<T>(a.in[i], at + d * step, a.walk);
    UNROLL for (int d = 0; d < DEPTH; d++) {
      pack<T> y;
      UNROLL for (int k = 0; k < N; k++) y.v[k] = narrow<T>(F::of(widen(x[0][d].v[k]), widen(x[1][d].v[k])));
      if (at + d * step < a.walk.n) store_pack(a.y, at + d * step, a.walk, y);
    }
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
