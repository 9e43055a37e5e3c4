/* radix.cuh - what radix sort is made of, for the threads of a block. */
#pragma once

#include "kernels/core/device/pack.cuh"
#include "kernels/sorting/radix.h"

/* The key of a number as it is stored, and the number of a key. Of 16 bits, both are in the upper half of 32: what is
 * below is the same for all keys whose upper halves are equal. `order` is that of the wide number. */
__device__ inline void load_key(const void *from, int64_t at, bool of_16_bits, tfu_order o, uint32_t &key) {
  const uint32_t bits = of_16_bits ? (uint32_t)((const uint16_t *)from)[at] << 16 : ((const uint32_t *)from)[at];
  key = tfu_to_key_32(bits, o);
}
__device__ inline void load_key(const void *from, int64_t at, bool, tfu_order o, uint64_t &key) {
  key = tfu_to_key_64(((const uint64_t *)from)[at], o);
}
__device__ inline void store_key(void *to, int64_t at, bool of_16_bits, tfu_order o, uint32_t key) {
  const uint32_t bits = tfu_from_key_32(key, o);
  if (of_16_bits) ((uint16_t *)to)[at] = (uint16_t)(bits >> 16);
  else ((uint32_t *)to)[at] = bits;
}
__device__ inline void store_key(void *to, int64_t at, bool, tfu_order o, uint64_t key) {
  ((uint64_t *)to)[at] = tfu_from_key_64(key, o);
}

template <typename K>
__device__ inline unsigned digit_of(K key, int shift) {
  return (unsigned)(key >> shift) & (TFU_BUCKETS - 1);
}

/* The lanes that have this bit of the digit as the caller has it. The compiler would look at the bit twice. */
__device__ inline unsigned lanes_with(unsigned digit, unsigned bit) {
  unsigned have;
  asm volatile(
      "{.reg .pred p; .reg .b32 t; and.b32 t, %1, %2; setp.ne.b32 p, t, 0; vote.sync.ballot.b32 %0, p, 0xffffffff;"
      "@!p not.b32 %0, %0;}"
      : "=r"(have)
      : "r"(digit), "r"(bit));
  return have;
}

/* The lanes of the warp that have the same digit; all lanes take part. */
__device__ inline unsigned lanes_alike(unsigned digit) {
  unsigned alike = ~0u;
  UNROLLED(bit, 8) alike &= lanes_with(digit, 1u << bit);
  return alike;
}

__device__ inline unsigned scan_warp(unsigned v) { /* with those of the lanes before */
  const int lane = threadIdx.x % 32;
  UNROLL
  for (int by = 1; by < 32; by *= 2) {
    const unsigned other = __shfl_up_sync(~0u, v, by);
    if (lane >= by) v += other;
  }
  return v;
}

/* Makes of 256 counts how many come before each. Called by the first warp. */
__device__ inline void scan_buckets(unsigned *counts) {
  unsigned v[TFU_BUCKETS / 32], sum = 0;
  const int first = threadIdx.x * (TFU_BUCKETS / 32);
  UNROLLED(i, TFU_BUCKETS / 32) sum += v[i] = counts[first + i];
  unsigned before = scan_warp(sum) - sum;
  UNROLLED(i, TFU_BUCKETS / 32) {
    counts[first + i] = before;
    before += v[i];
  }
}

/* A flag that is looked at again wherever it is asked for: the compiler would make two loops of one otherwise. */
__device__ inline bool look_again(int flag) {
  asm volatile("" : "+r"(flag));
  return flag;
}

/* A tile is what a block has in shared memory: each warp has `items` times 32 keys that follow each other. What is
 * beyond the keys that there are is filled up with the greatest key, and stays behind them.
 *
 * A pass over one digit is: clear_counts, then counts of the warp's own keys by their digits, start_buckets, and
 * move_keys. */
__device__ inline void clear_counts(unsigned *counts) {
  unsigned *mine = counts + threadIdx.x / 32 * TFU_BUCKETS;
  ONCE
  for (int d = threadIdx.x % 32; d < TFU_BUCKETS; d += 32) mine[d] = 0;
  __syncwarp();
}

/* Makes of the counts [warp][digit] where in the tile the warp's first key of that digit goes. `buckets` is left with
 * where the digit begins. One copy of it serves all kernels. */
static __device__ __noinline__ void start_buckets(unsigned *counts, unsigned *buckets) {
  const int warps = blockDim.x / 32;
  __syncthreads();
  ONCE
  for (int d = threadIdx.x; d < TFU_BUCKETS; d += blockDim.x) {
    unsigned sum = 0;
    _Pragma("unroll 4") for (int w = 0; w < warps; w++) {
      const unsigned here = counts[w * TFU_BUCKETS + d];
      counts[w * TFU_BUCKETS + d] = sum;
      sum += here;
    }
    buckets[d] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) scan_buckets(buckets);
  __syncthreads();
  unsigned *mine = counts + threadIdx.x / 32 * TFU_BUCKETS;
  ONCE
  for (int d = threadIdx.x % 32; d < TFU_BUCKETS; d += 32) mine[d] += buckets[d];
  __syncwarp();
}

/* Moves the warp's keys to their buckets, in the order that they have. moved(at, to) is told about each. The lanes of
 * one digit take slots one after the other, and the first of them says where the next ones go on. */
template <typename K, typename Moved>
__device__ inline void move_keys(const K *from, K *to, int items, int shift, unsigned *counts, Moved moved) {
  unsigned *mine = counts + threadIdx.x / 32 * TFU_BUCKETS;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32 * items + lane;
  K next = from[first];
  ONCE
  for (int i = 0; i < items; i++) {
    const K key = next;
    if (i + 1 < items) next = from[first + 32 * (i + 1)];
    const unsigned digit = digit_of(key, shift), alike = lanes_alike(digit), below = __popc(alike & ((1u << lane) - 1));
    const unsigned start = mine[digit];
    __syncwarp();
    if (below == 0) mine[digit] = start + __popc(alike);
    __syncwarp();
    to[start + below] = key;
    moved(first + 32 * i, start + below);
  }
}

#define RADIX_KERNEL(label, threads, ...) TFU_STAMP((threads), label, radix_args, __VA_ARGS__)
