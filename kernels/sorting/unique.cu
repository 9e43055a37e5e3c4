/* The distinct values of a vector from its keys in order (stream compaction). Where a key differs from the one before,
 * a value begins: that is its head, and as the order is stable, its index in x is the value's first. Heads are numbered
 * twice: in the order of keys, and, by a bit for each index, in the order of x, which is the value's rank. */
#include "kernels/sorting/unique.h"

#include "kernels/sorting/radix.cuh"

enum { EACH = TFU_UNIQUE_EACH };

/* Gives how many come before the thread's, and in all. */
__device__ inline unsigned scan_block(unsigned sum, unsigned *total) {
  __shared__ unsigned of_warps[TFU_THREADS / 32];
  const int warp = threadIdx.x / 32;
  const unsigned up_to = scan_warp(sum);
  if (threadIdx.x % 32 == 31) of_warps[warp] = up_to;
  __syncthreads();
  unsigned before = up_to - sum;
  *total = 0;
  for (int w = 0; w < TFU_THREADS / 32; w++) {
    if (w < warp) before += of_warps[w];
    *total += of_warps[w];
  }
  return before;
}

__device__ inline int64_t own_first() { return ((int64_t)blockIdx.x * TFU_THREADS + threadIdx.x) * EACH; }

/* ---- keys ---- */

/* Which of the thread's keys are heads, as bits. Each NaN is one; its key is the greatest. */
template <typename K>
__device__ inline unsigned own_heads(const unique_args &a) {
  const int64_t at = own_first();
  if (at >= a.n) return 0;
  union {
    int4 packs[EACH * sizeof(K) / 16];
    K keys[EACH];
  } v;
  UNROLLED(i, (int)(EACH * sizeof(K) / 16)) v.packs[i] = ((const int4 *)((const K *)a.keys + at))[i];
  K last = at ? ((const K *)a.keys)[at - 1] : 0;
  unsigned heads = 0;
  UNROLLED(i, EACH) {
    const K key = v.keys[i];
    const bool begins = key != last || (a.is_float && key == (K) ~(K)0) || at + i == 0;
    if (begins && at + i < a.n) heads |= 1u << i;
    last = key;
  }
  return heads;
}

/* How many values begin in each tile, and at which indices in x. */
template <typename K>
__device__ inline void unique_mark(const unique_args &a) {
  const unsigned heads = own_heads<K>(a);
  UNROLLED(i, EACH)
    if (heads >> i & 1) {
      const uint32_t index = a.indices[own_first() + i];
      atomicOr(&a.marks[index / 32], 1u << index % 32);
    }
  unsigned total;
  scan_block(__popc(heads), &total);
  if (threadIdx.x == 0) a.before[blockIdx.x] = total;
}

/* Values, in the order of keys: where each begins, its rank, and itself. */
template <typename K>
__device__ inline void unique_heads(const unique_args &a) {
  const unsigned heads = own_heads<K>(a);
  unsigned total, value = a.before[blockIdx.x] + scan_block(__popc(heads), &total);
  UNROLLED(i, EACH) {
    if (!(heads >> i & 1)) continue;
    const uint32_t index = a.indices[own_first() + i], word = index / 32;
    const uint32_t rank = a.marks_before[word] + __popc(a.marks[word] & ((1u << index % 32) - 1));
    a.heads[value] = (uint32_t)own_first() + i;
    a.ranks[value++] = rank;
    if (a.size == 4) ((uint32_t *)a.y)[rank] = ((const uint32_t *)a.x)[index];
    else if (a.size == 2) ((uint16_t *)a.y)[rank] = ((const uint16_t *)a.x)[index];
    else ((uint64_t *)a.y)[rank] = ((const uint64_t *)a.x)[index];
  }
}

/* For each key, at its index in x, the rank of its value; and how often each value comes. */
template <typename K>
__device__ inline void unique_write(const unique_args &a) {
  const unsigned heads = own_heads<K>(a), number = (unsigned)*a.number;
  unsigned total, value = a.before[blockIdx.x] + scan_block(__popc(heads), &total) - 1;
  UNROLLED(i, EACH) {
    const int64_t at = own_first() + i;
    if (at >= a.n) continue;
    const bool head = heads >> i & 1;
    value += head;
    const uint32_t rank = a.ranks[value];
    a.idx[a.indices[at]] = (int32_t)rank;
    if (head) a.count[rank] = (int32_t)((value + 1 < number ? a.heads[value + 1] : (uint32_t)a.n) - (uint32_t)at);
  }
}

/* Named after floats of the size of keys. */
#define FOR_KEYS(name)                                    \
  TFU_KERNEL_AS_(name##_b32, unique_args, name<uint32_t>) \
  TFU_KERNEL_AS_(name##_b64, unique_args, name<uint64_t>)
FOR_KEYS(unique_mark)
FOR_KEYS(unique_heads)
FOR_KEYS(unique_write)

/* ---- words of marks ---- */

/* How many marks a tile of words has. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) unique_count_any(const unique_args a) {
  unsigned sum = 0, total;
  UNROLLED(i, EACH) sum += own_first() + i < a.words ? __popc(a.marks[own_first() + i]) : 0;
  scan_block(sum, &total);
  if (threadIdx.x == 0) a.words_before[blockIdx.x] = total;
}

/* How many come before each word. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) unique_number_any(const unique_args a) {
  unsigned set[EACH], sum = 0, total;
  UNROLLED(i, EACH) sum += set[i] = own_first() + i < a.words ? __popc(a.marks[own_first() + i]) : 0;
  unsigned before = a.words_before[blockIdx.x] + scan_block(sum, &total);
  UNROLLED(i, EACH) {
    if (own_first() + i < a.words) a.marks_before[own_first() + i] = before;
    before += set[i];
  }
}
