/* tile_words.cuh - tiles of kernels of 8 and 4 bits (quantized_kernel.h), whose bytes are a lane's own part of a left
 * factor of tensor cores: codes become numbers of 16 bits in registers by a few logical instructions, without a
 * conversion. */
#pragma once

#include "kernels/core/device/mma.cuh"

#if __CUDA_ARCH__ >= 900
/* v & mask | bits: one instruction, where the compiler would make two. */
__device__ inline unsigned select(unsigned v, unsigned mask, unsigned bits) {
  unsigned y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(v), "r"(mask), "r"(bits));
  return y;
}

/* Two codes of a word, 16 bits apart, as two numbers of T, which are MAGIC too large. */
template <typename T, int BITS>
struct codes;
template <>
struct codes<bf16, 4> {
  enum { MAGIC = 128, ONES = 0x3f803f80 };
  static __device__ unsigned pair(unsigned w, int i) { return select(w >> 4 * i, 0x000f000fu, 0x43004300u); }
};
template <>
struct codes<f16, 4> { /* 1024 + code; of sums that are 1024 times too large, float has too few digits */
  enum { MAGIC = 0, ONES = 0x3c003c00 };
  static __device__ unsigned pair(unsigned w, int i) {
    unsigned y;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(y) : "r"(select(w >> 4 * i, 0x000f000fu, 0x64006400u)), "r"(0x64006400u));
    return y;
  }
};
template <>
struct codes<bf16, 8> { /* (128 + lower seven bits) - (128 or, where the sign is set, 256) */
  enum { MAGIC = 0, ONES = 0x3f803f80 };
  static __device__ unsigned pair(unsigned w, int i) {
    const unsigned v = w >> 8 * i;
    unsigned y;
    asm("sub.bf16x2 %0, %1, %2;"
        : "=r"(y)
        : "r"(select(v, 0x007f007fu, 0x43004300u)), "r"(select(v, 0x00800080u, 0x43004300u)));
    return y;
  }
};
template <>
struct codes<f16, 8> { /* 1024 + 128 + code */
  enum { MAGIC = 0, ONES = 0x3c003c00 };
  static __device__ unsigned pair(unsigned w, int i) {
    unsigned y, v = w >> 8 * i;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(v) : "r"(v), "r"(0x00ff00ffu), "r"(0x64806480u)); /* v & mask ^ bits */
    asm("sub.f16x2 %0, %1, %2;" : "=r"(y) : "r"(v), "r"(0x64806480u));
    return y;
  }
};

/* A lane's part of a tile. */
template <int BITS>
struct tile_words {
  unsigned v[BITS] = {};
  /* Columns 16 i .. 16 i + 15, as a left factor: column g, or g + 8, by rows 2 t, 2 t + 1, or 8 more. */
  template <typename T>
  __device__ void left(int i, unsigned (&f)[4]) const {
    UNROLLED(r, 4) {
      const int block = r % 2, h = r / 2;
      f[r] = BITS == 8 ? codes<T, BITS>::pair(v[2 * i + block], h) : codes<T, BITS>::pair(v[i], 2 * block + h);
    }
  }
  /* The same as bytes: those of 4 bits without a sign. Byte 2 e + h is row 8 h + 2 t + e. */
  __device__ void left(int i, unsigned (&f)[2]) const {
    if constexpr (BITS == 8) {
      f[0] = v[2 * i], f[1] = v[2 * i + 1];
    } else {
      const unsigned low = v[i] & 0x0f0f0f0fu, high = v[i] >> 4 & 0x0f0f0f0fu;
      f[0] = __byte_perm(low, high, 0x6240), f[1] = __byte_perm(low, high, 0x7351);
    }
  }
};
#endif
