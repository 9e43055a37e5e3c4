/* shared.cuh - packs to and from shared memory, whose places are addresses of 32 bits, and asynchronous copies
 * from global memory (cp.async), by which packs are prefetched. Compute capability 7 has no such copies: there these do
 * nothing, and are not to be relied on.
 */
#pragma once

#include "kernels/core/device/pack.cuh"

__device__ inline int4 load_shared(unsigned from) {
  int4 bits;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "r"(from)
               : "memory");
  return bits;
}
__device__ inline void store_shared(unsigned to, int4 bits) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
               : "memory");
}
/* The same as four words, from any of them on; single words, and half of one. */
__device__ inline int4 load_words(unsigned from) {
  int4 bits;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(bits.x) : "r"(from) : "memory");
  asm volatile("ld.shared.b32 %0, [%1 + 4];" : "=r"(bits.y) : "r"(from) : "memory");
  asm volatile("ld.shared.b32 %0, [%1 + 8];" : "=r"(bits.z) : "r"(from) : "memory");
  asm volatile("ld.shared.b32 %0, [%1 + 12];" : "=r"(bits.w) : "r"(from) : "memory");
  return bits;
}
__device__ inline void store_word(unsigned to, unsigned bits) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(bits) : "memory");
}
__device__ inline void store_half(unsigned to, unsigned bits) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"((uint16_t)bits) : "memory");
}

/* Sixteen bytes on their way to shared memory; of those beyond `bytes`, zeros. */
__device__ inline void copy_pack(unsigned to, const void *from, int bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
#endif
}
__device__ inline void copy_pack(unsigned to, const void *from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}
__device__ inline void close_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Waits until at most so many of this thread's groups of copies, those closed last, are on their way. */
template <int AT_MOST>
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(AT_MOST) : "memory");
#endif
}
