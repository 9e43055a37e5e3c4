/* jit_types.cuh - storage types and packs for kernels that are compiled at run time. It needs none of CUDA's headers: a
 * machine that has NVRTC need not have them, and reading them would take longer than all the rest.
 *
 * T is what a tensor is stored in, R what is computed in: float, or double for double. */
#pragma once

#include <stdint.h>

#define UNROLL _Pragma("unroll")
#define UNROLLED(i, n) \
  UNROLL               \
  for (int i = 0; i < (n); i++)
#define ONCE _Pragma("unroll 1")

/* float16 and bfloat16: made from float, rounded to nearest, and converted to it. */
struct f16 {
  unsigned short bits;
  f16() = default;
  __device__ f16(float v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v)); }
  __device__ operator float() const {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
    return v;
  }
};
struct bf16 {
  unsigned short bits;
  bf16() = default;
  __device__ bf16(float v) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
#else
    const unsigned b = __float_as_uint(v);
    bits = (b & 0x7fffffff) > 0x7f800000 ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
#endif
  }
  __device__ operator float() const { return __uint_as_float((unsigned)bits << 16); }
};

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

/* N elements of T as they lie in memory, in words of 32 bits: read and written by one instruction for 16 bytes. Their
 * address must be a multiple of their size, or of 16 bytes if they are more. */
template <typename T, int N>
struct pack {
  enum { BYTES = N * sizeof(T), WORDS = (BYTES + 3) / 4, PER_WORD = sizeof(T) < 4 ? 4 / sizeof(T) : 1 };
  unsigned word[WORDS];

  __device__ void load(const T *from) {
    if constexpr (BYTES % 16 == 0) {
      UNROLL
      for (int i = 0; i + 3 < WORDS; i += 4)
        asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(word[i]), "=r"(word[i + 1]), "=r"(word[i + 2]), "=r"(word[i + 3])
            : "l"((const char *)from + 4 * i));
    } else if constexpr (BYTES % 4 == 0) {
      UNROLLED(i, WORDS) asm("ld.global.nc.u32 %0, [%1];" : "=r"(word[i]) : "l"((const char *)from + 4 * i));
    } else {
      word[0] = 0;
      UNROLLED(i, N) word[0] |= piece(from + i) << (i * 8 * sizeof(T) % 32);
    }
  }
  __device__ void store(T *to) const {
    if constexpr (BYTES % 16 == 0) {
      UNROLL
      for (int i = 0; i + 3 < WORDS; i += 4)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"((char *)to + 4 * i), "r"(word[i]),
                     "r"(word[i + 1]), "r"(word[i + 2]), "r"(word[i + 3])
                     : "memory");
    } else if constexpr (BYTES % 4 == 0) {
      UNROLLED(i, WORDS) ((unsigned *)to)[i] = word[i];
    } else {
      UNROLLED(i, N) {
        if (sizeof(T) == 2) ((unsigned short *)to)[i] = word[0] >> (16 * i % 32);
        else ((unsigned char *)to)[i] = word[0] >> (8 * i % 32);
      }
    }
  }

  /* Element k as a number, and a number as element k; where elements are 16 bits, k is even and two are set. */
  template <typename R>
  __device__ R get(int k) const {
    const unsigned w = word[sizeof(T) == 8 ? 2 * k : k / PER_WORD];
    return as((T *)0, w, sizeof(T) == 8 ? word[(2 * k + 1) % WORDS] : w >> (8 * sizeof(T) * (k % PER_WORD) % 32), (R)0);
  }
  template <typename R>
  __device__ void set(int k, R a, R b) {
    put((T *)0, k, a, b);
  }

 private:
  static __device__ unsigned piece(const T *from) {
    return sizeof(T) == 2 ? *(const unsigned short *)from : *(const unsigned char *)from;
  }
  template <typename R>
  static __device__ R as(const float *, unsigned w, unsigned, R) {
    return (R)__uint_as_float(w);
  }
  template <typename R>
  static __device__ R as(const int32_t *, unsigned w, unsigned, R) {
    return (R)(int32_t)w;
  }
  template <typename R>
  static __device__ R as(const double *, unsigned low, unsigned high, R) {
    return (R)__hiloint2double((int)high, (int)low);
  }
  template <typename R>
  static __device__ R as(const int64_t *, unsigned low, unsigned high, R) {
    return (R)(int64_t)((uint64_t)high << 32 | low);
  }
  template <typename R>
  static __device__ R as(const bool *, unsigned, unsigned bits, R) {
    return (R)((bits & 0xff) != 0);
  }
  template <typename R>
  static __device__ R as(const f16 *, unsigned, unsigned bits, R) {
    f16 v;
    v.bits = (unsigned short)bits;
    return (R)(float)v;
  }
  template <typename R>
  static __device__ R as(const bf16 *, unsigned, unsigned bits, R) {
    return (R)__uint_as_float(bits << 16);
  }
  __device__ void put(const float *, int k, float a, float) { word[k] = __float_as_uint(a); }
  /* NaN becomes 0: of a double the GPU would make the least integer of it. */
  __device__ void put(const int32_t *, int k, double a, double) { word[k] = a == a ? (unsigned)__double2int_rz(a) : 0; }
  __device__ void put(const double *, int k, double a, double) {
    word[2 * k] = (unsigned)__double2loint(a), word[(2 * k + 1) % WORDS] = (unsigned)__double2hiint(a);
  }
  __device__ void put(const int64_t *, int k, double a, double) {
    const int64_t v = a == a ? __double2ll_rz(a) : 0;
    word[2 * k] = (unsigned)v, word[(2 * k + 1) % WORDS] = (unsigned)((uint64_t)v >> 32);
  }
  template <typename R>
  __device__ void put(const bool *, int k, R a, R) {
    const unsigned shift = 8 * k % 32;
    word[k / 4] = (k % 4 ? word[k / 4] : 0) | (unsigned)(a != 0) << shift;
  }
  __device__ void put(const f16 *, int k, float a, float b) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word[k / 2]) : "f"(b), "f"(a));
#else
    word[k / 2] = (unsigned)f16(b).bits << 16 | f16(a).bits;
#endif
  }
  __device__ void put(const bf16 *, int k, float a, float b) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[k / 2]) : "f"(b), "f"(a));
#else
    word[k / 2] = (unsigned)bf16(b).bits << 16 | bf16(a).bits;
#endif
  }
};

/* What set() takes at a time. */
template <typename T>
struct set_step {
  enum { N = sizeof(T) == 2 ? 2 : 1 };
};
