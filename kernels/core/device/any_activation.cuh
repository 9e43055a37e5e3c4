/* any_activation.cuh - an epilogue's activation that is known when the kernel runs. */
#pragma once

#include "kernels/core/device/activations.cuh"

/* Any activation, TFU_ACT_…: one copy of the formulas serves all kernels of a module, which have registers to keep. */
template <typename T>
static __device__ __noinline__ acc<T> activate(int which, acc<T> v) {
  typedef typename math_of<T>::type math;
  switch (which) {
#define X(name) \
  case TFU_ACT_##name: return math::name(v);
    TFU_ACTIVATIONS(X)
#undef X
  }
  return v;
}
