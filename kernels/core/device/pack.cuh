/* pack.cuh - storage types and 16-byte packs for device code. T is storage, arithmetic in float (double for double).
 * docs/design.md#words says what packs, walks and joined rows are. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/core/gpu/walk.h"

/* On every loop over registers: an index that is not a constant would move them to memory. UNROLLED(i, n) is such a
 * loop, for i from 0 up to n. */
#define UNROLL _Pragma("unroll")
#define UNROLLED(i, n) \
  UNROLL               \
  for (int i = 0; i < (n); i++)
/* On a loop of which there shall be one copy in the machine code: it serves what is rare, or its body is long enough.
 */
#define ONCE _Pragma("unroll 1")

typedef __half f16;
typedef __nv_bfloat16 bf16;

/* acc<T>: the type that T is computed in. */
template <typename T>
struct acc_of {
  typedef float type;
};
template <>
struct acc_of<double> {
  typedef double type;
};
template <typename T>
using acc = typename acc_of<T>::type;

/* Elements of a 16-byte pack. */
template <typename T>
struct packed {
  enum { N = 16 / sizeof(T) };
};

/* The unsigned type of so many bytes. */
template <int SIZE>
struct bits_of;
template <>
struct bits_of<1> {
  typedef uint8_t type;
};
template <>
struct bits_of<2> {
  typedef uint16_t type;
};
template <>
struct bits_of<4> {
  typedef uint32_t type;
};
template <>
struct bits_of<8> {
  typedef uint64_t type;
};

/* The larger one, NaN if one is. */
template <typename R>
__device__ inline R top_of(R a, R b) {
  return a > b || a != a ? a : b;
}
__device__ inline float top_of(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#else
  return a > b || a != a ? a : b;
#endif
}

/* The two 16-bit types convert in pairs: one instruction for two values. */
template <typename T>
struct pair_of;
template <>
struct pair_of<f16> {
  static __device__ float2 widen(unsigned bits) { return __half22float2(*(__half2 *)&bits); }
  static __device__ unsigned narrow(float a, float b) {
    const __half2 p = __floats2half2_rn(a, b);
    return *(unsigned *)&p;
  }
};
template <>
struct pair_of<bf16> {
  static __device__ float2 widen(unsigned bits) {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
  }
  static __device__ unsigned narrow(float a, float b) {
    const __nv_bfloat162 p = __floats2bfloat162_rn(a, b);
    return *(unsigned *)&p;
  }
};

/* By value, member by member: a reference or an index into the int4 makes the compiler move it in four pieces. */
template <typename T>
__device__ inline void widen_pack(int4 bits, float (&v)[8]) {
  const float2 a = pair_of<T>::widen(bits.x), b = pair_of<T>::widen(bits.y);
  const float2 c = pair_of<T>::widen(bits.z), d = pair_of<T>::widen(bits.w);
  v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y, v[4] = c.x, v[5] = c.y, v[6] = d.x, v[7] = d.y;
}
template <typename T>
__device__ inline void widen_pack(int4 bits, float (&v)[4]) {
  v[0] = __int_as_float(bits.x), v[1] = __int_as_float(bits.y), v[2] = __int_as_float(bits.z),
  v[3] = __int_as_float(bits.w);
}
template <typename T>
__device__ inline void widen_pack(int4 bits, double (&v)[2]) {
  v[0] = __hiloint2double(bits.y, bits.x), v[1] = __hiloint2double(bits.w, bits.z);
}

template <typename T>
__device__ inline int4 narrow_pack(const float (&v)[8]) {
  return make_int4(pair_of<T>::narrow(v[0], v[1]), pair_of<T>::narrow(v[2], v[3]), pair_of<T>::narrow(v[4], v[5]),
                   pair_of<T>::narrow(v[6], v[7]));
}
template <typename T>
__device__ inline int4 narrow_pack(const float (&v)[4]) {
  return make_int4(__float_as_int(v[0]), __float_as_int(v[1]), __float_as_int(v[2]), __float_as_int(v[3]));
}
template <typename T>
__device__ inline int4 narrow_pack(const double (&v)[2]) {
  return make_int4(__double2loint(v[0]), __double2hiint(v[0]), __double2loint(v[1]), __double2hiint(v[1]));
}

/* An assignment would be split into four stores as well. */
__device__ inline void store_bits(void *to, int4 bits) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
}

/* In how many joined rows, counted from the first, the pack that begins at column col is whole. The short last row
 * counts where it reaches that far. */
template <typename T>
__device__ inline int whole_rows(int64_t col, const tfu_walk &w) {
  return w.aligned ? w.rows + (w.rows * w.width + col + packed<T>::N <= w.n) : 0;
}

/* A thread's sum. Where it may be long, what each addition rounds away is carried along (Kahan). */
template <typename R, bool SHORT>
struct row_sum {
  R sum = 0, lost = 0;
  __device__ void operator+=(R v) {
    if (SHORT) {
      sum += v;
      return;
    }
    const R add = v - lost, next = sum + add;
    lost = (next - sum) - add;
    sum = next;
  }
};

/* The grid of a walk: x goes across a joined row, a pack for each thread, and y deals out the joined rows: block y
 * takes rows y, y + gridDim.y, … These are the thread's first column, the place of its first element, and the elements
 * from there to its next one. */
template <typename T>
__device__ inline int64_t walk_column() {
  return ((int64_t)blockIdx.x * TFU_THREADS + threadIdx.x) * packed<T>::N;
}
__device__ inline int64_t walk_first(const tfu_walk &w, int64_t col) { return blockIdx.y * w.width + col; }
__device__ inline int64_t walk_step(const tfu_walk &w) { return gridDim.y * w.width; }

/* Stamps function(args) as the kernel `label`, with its launch bounds in brackets. `args` may begin with
 * __grid_constant__, where arguments are pointed at or counted through: else each thread would have a copy of them. */
#define TFU_STAMP(bounds, label, args, ...) \
  extern "C" __global__ void __launch_bounds__ bounds label(const args a) { __VA_ARGS__(a); }
/* stamp(…, tag, T) for the types of 16 bits, for all that are computed in float, and for all. */
#define TFU_HALVES(stamp, ...) stamp(__VA_ARGS__, f16, f16) stamp(__VA_ARGS__, bf16, bf16)
#define TFU_SINGLES(stamp, ...) stamp(__VA_ARGS__, f32, float) TFU_HALVES(stamp, __VA_ARGS__)
#define TFU_TYPES(stamp, ...) TFU_SINGLES(stamp, __VA_ARGS__) stamp(__VA_ARGS__, f64, double)

/* Stamps function<T>(args) as the kernels function_f32, _f16, _bf16 and _f64. */
#define TFU_KERNEL_AS_(label, args, ...) TFU_STAMP((TFU_THREADS), label, args, __VA_ARGS__)
#define TFU_KERNEL_OF_(function, args, tag, T) TFU_KERNEL_AS_(function##_##tag, args, function<T>)
#define TFU_KERNEL(function, args) TFU_TYPES(TFU_KERNEL_OF_, function, args)
