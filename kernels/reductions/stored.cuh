/* stored.cuh - single elements and pairs of them, whose storage type is a number of the call (reduce.h). */
#pragma once

#include "kernels/core/device/pack.cuh"
#include "kernels/reductions/reduce.h"

/* Element `at` of a tensor, as it is stored: values that are computed in float, double or int64. */
template <typename R>
__device__ inline R load_one(const void *x, int64_t at, int from);
template <>
__device__ inline float load_one<float>(const void *x, int64_t at, int from) {
  if (from == TFU_AS_F32) return ((const float *)x)[at];
  const unsigned bits = ((const uint16_t *)x)[at];
  return from == TFU_AS_BF16 ? pair_of<bf16>::widen(bits).x : pair_of<f16>::widen(bits).x;
}
template <>
__device__ inline double load_one<double>(const void *x, int64_t at, int) {
  return ((const double *)x)[at];
}
template <>
__device__ inline int64_t load_one<int64_t>(const void *x, int64_t at, int from) {
  return from == TFU_AS_I32 ? ((const int32_t *)x)[at] : ((const int64_t *)x)[at];
}

/* Writes it. */
__device__ inline void store_one(void *y, int64_t at, int to, float value) {
  if (to == TFU_AS_F32) ((float *)y)[at] = value;
  else
    ((uint16_t *)y)[at] =
        (uint16_t)(to == TFU_AS_BF16 ? pair_of<bf16>::narrow(value, 0) : pair_of<f16>::narrow(value, 0));
}
__device__ inline void store_one(void *y, int64_t at, int, double value) { ((double *)y)[at] = value; }
__device__ inline void store_one(void *y, int64_t at, int to, int64_t value) {
  if (to == TFU_AS_I32) ((int32_t *)y)[at] = (int32_t)value;
  else ((int64_t *)y)[at] = value;
}

/* a / b; in 32 bits where that will do, which takes a quarter of the time. */
static __device__ __noinline__ int64_t divide_wide(int64_t a, int64_t b) { return a / b; }
__device__ inline int64_t divide(int64_t a, int64_t b) {
  return (a | b) >> 32 ? divide_wide(a, b) : (int64_t)((unsigned)a / (unsigned)b);
}

/* 1 << size_bits bytes are an element. */
__device__ inline int size_bits(int from) {
  return from == TFU_AS_F16 || from == TFU_AS_BF16 ? 1 : from == TFU_AS_F64 || from == TFU_AS_I64 ? 3 : 2;
}

/* Two neighbouring elements as they are stored, in 32 or 64 bits. */
struct two_elements {
  uint2 bits;
  __device__ void load(const char *at, int size) {
    if (size == 2) bits = *(const uint2 *)at;
    else bits.x = *(const unsigned *)at;
  }
  __device__ float2 values(int from) const {
    if (from == TFU_AS_F32) return make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
    return from == TFU_AS_BF16 ? pair_of<bf16>::widen(bits.x) : pair_of<f16>::widen(bits.x);
  }
};
