/* Keys in order, by radix sort or bitonic networks (see radix.h), and numbers of 2, 4 or 8 bytes moved from the indices
 * that a list says, or to them. */
#include "kernels/sorting/sort.h"

#include "kernels/sorting/network.cuh"
#include "kernels/sorting/sweep.cuh"

/* ---- very short rows: a key's index is how many come before it ---- */

template <typename K>
__device__ inline void radix_short(const radix_args &a) {
  K *line = (K *)shared_memory, *sorted = line + TFU_THREADS;
  uint32_t *indices = (uint32_t *)(sorted + TFU_THREADS);
  const int cols = (int)a.cols, own = threadIdx.x / cols * cols;
  ONCE
  for (int64_t row = (int64_t)blockIdx.x * a.at_a_time; row < a.rows; row += (int64_t)gridDim.x * a.at_a_time) {
    const int64_t first = row * cols, left = (a.rows - row) * cols;
    const int n = left < a.at_a_time * cols ? (int)left : a.at_a_time * cols;
    const bool has = threadIdx.x < n;
    K key = 0;
    if (has) load_key(a.from, first + threadIdx.x, a.of_16_bits, a.order, key);
    line[threadIdx.x] = key;
    __syncthreads();
    if (has) {
      int before = own;
      ONCE
      for (int j = own; j < own + cols; j++) before += line[j] < key || (line[j] == key && j < threadIdx.x);
      sorted[before] = key;
      indices[before] = threadIdx.x - own;
    }
    __syncthreads();
    if (has && a.keys) {
      if (a.decode) store_key(a.keys, first + threadIdx.x, a.of_16_bits, a.order, sorted[threadIdx.x]);
      else ((K *)a.keys)[first + threadIdx.x] = sorted[threadIdx.x];
    }
    if (has && a.indices) {
      const uint32_t index = indices[threadIdx.x];
      a.indices[first + threadIdx.x] = a.carried ? a.carried[first + threadIdx.x / cols * cols + index] : index;
    }
  }
}

/* ---- rows that a block holds ---- */

template <typename K>
__device__ inline void radix_rows(const radix_args &a) {
  const bool with_indices = a.indices;
  const int tile = blockDim.x * a.items, n = (int)a.cols, first = threadIdx.x / 32 * 32 * a.items + threadIdx.x % 32;
  K *line = (K *)shared_memory, *other = line + tile;
  uint16_t *indices = (uint16_t *)(other + tile), *other_indices = indices + (with_indices ? tile : 0);
  unsigned *counts = (unsigned *)(other_indices + (with_indices ? tile : 0)),
           *buckets = counts + blockDim.x / 32 * TFU_BUCKETS;
  ONCE
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    __syncthreads();
    _Pragma("unroll 4") for (int at = threadIdx.x; at < tile; at += blockDim.x) {
      K key = ~(K)0;
      if (at < n) load_key(a.from, row * n + at, a.of_16_bits, a.order, key);
      line[at] = key;
      if (look_again(with_indices)) indices[at] = (uint16_t)at;
    }
    __syncthreads();
    ONCE
    for (int shift = a.shift; shift < a.end; shift += 8) {
      clear_counts(counts);
      _Pragma("unroll 2") for (int i = 0; i < a.items; i++)
          atomicAdd(&counts[threadIdx.x / 32 * TFU_BUCKETS + digit_of(line[first + 32 * i], shift)], 1u);
      start_buckets(counts, buckets);
      move_keys(line, other, a.items, shift, counts, [&](int at, unsigned to) {
        if (look_again(with_indices)) other_indices[to] = indices[at];
      });
      __syncthreads();
      K *const keys = line;
      line = other, other = keys;
      uint16_t *const of_keys = indices;
      indices = other_indices, other_indices = of_keys;
    }
    ONCE
    for (int at = threadIdx.x; at < n; at += blockDim.x) {
      if (a.keys && a.decode) store_key(a.keys, row * n + at, a.of_16_bits, a.order, line[at]);
      else if (a.keys) ((K *)a.keys)[row * n + at] = line[at];
      if (look_again(with_indices))
        a.indices[row * n + at] = a.carried ? a.carried[row * n + indices[at]] : indices[at];
    }
  }
}

RADIX_KERNEL(radix_short_b32, TFU_THREADS, radix_short<uint32_t>)
RADIX_KERNEL(radix_short_b64, TFU_THREADS, radix_short<uint64_t>)
RADIX_KERNEL(radix_rows_b32, TFU_RADIX_THREADS, radix_rows<uint32_t>)
RADIX_KERNEL(radix_rows_b64, TFU_RADIX_THREADS, radix_rows<uint64_t>)

/* ---- counts ---- */

/* A block makes of counts how many come before. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) count_before_any(const before_args a) {
  enum { EACH = 16 };
  __shared__ unsigned of_warps[TFU_THREADS / 32];
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  uint32_t *counts = a.counts;
  unsigned total = 0;
  ONCE
  for (int64_t begin = 0; begin < a.n; begin += blockDim.x * EACH) {
    const int64_t at = begin + (int64_t)threadIdx.x * EACH;
    unsigned v[EACH], sum = 0;
    UNROLLED(i, EACH) sum += v[i] = at + i < a.n ? counts[at + i] : 0;
    const unsigned up_to = scan_warp(sum);
    if (threadIdx.x % 32 == 31) of_warps[warp] = up_to;
    __syncthreads();
    unsigned before = total + up_to - sum;
    ONCE
    for (int w = 0; w < warps; w++) {
      if (w < warp) before += of_warps[w];
      total += of_warps[w];
    }
    UNROLLED(i, EACH) {
      if (at + i < a.n) counts[at + i] = before;
      before += v[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *a.sum = total;
}

/* ---- numbers that are moved ---- */

/* Of 64 bits a division is long, and few need it. */
__device__ inline int64_t row_of(int64_t at, int64_t k) {
  return (at | k) >> 32 ? at / k : (int64_t)((uint32_t)at / (uint32_t)k);
}

/* A number of `size` bytes, and where it goes. */
__device__ inline uint64_t load_number(const void *from, int size) {
  if (look_again(size == 4)) return *(const uint32_t *)from;
  return look_again(size == 2) ? *(const uint16_t *)from : *(const uint64_t *)from;
}
__device__ inline void store_number(void *to, int64_t at, int size, uint64_t number) {
  if (look_again(size == 4)) ((uint32_t *)to)[at] = (uint32_t)number;
  else if (look_again(size == 2)) ((uint16_t *)to)[at] = (uint16_t)number;
  else ((uint64_t *)to)[at] = number;
}

/* Named after a float, as all kernels are; it moves numbers of any size. Blocks take what lies one after another, and
 * begin in that order, so that numbers which go near each other go there at the same time. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) move_any(const move_args a) {
  const int64_t first = (int64_t)blockIdx.x * (TFU_THREADS * TFU_MOVE_EACH) + threadIdx.x;
  int64_t other[TFU_MOVE_EACH]; /* where the index is, among all rows; negative: there is none */
  uint64_t numbers[TFU_MOVE_EACH];
  UNROLLED(i, TFU_MOVE_EACH) {
    const int64_t at = first + i * TFU_THREADS;
    other[i] = -1;
    if (at >= a.n) continue;
    const int64_t row = row_of(at, a.k);
    const int index = a.indices[row * a.stride + (at - row * a.k)];
    if (index >= 0 && index < a.cols) other[i] = row * a.cols + index;
    if (look_again(a.copied != 0)) a.copied[at] = index;
  }
  UNROLLED(i, TFU_MOVE_EACH) {
    const int64_t from = look_again(a.put) ? first + i * TFU_THREADS : other[i];
    numbers[i] = other[i] < 0 ? 0 : load_number((const char *)a.from + from * a.apart, a.size);
  }
  UNROLLED(i, TFU_MOVE_EACH)
    if (other[i] >= 0) store_number(a.to, look_again(a.put) ? other[i] : first + i * TFU_THREADS, a.size, numbers[i]);
}

/* As move puts them, one row at a time that shared memory holds, with zeros where nothing is put: memory is written in
 * order. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) put_rows_any(const move_args a) {
  const int64_t rows = a.n / a.k;
  const int k = (int)a.k, cols = (int)a.cols;
  ONCE
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    _Pragma("unroll 4") for (int at = threadIdx.x; at * 4 < cols * a.size;
                             at += blockDim.x)((uint32_t *)shared_memory)[at] = 0;
    __syncthreads();
    _Pragma("unroll 4") for (int at = threadIdx.x; at < k; at += blockDim.x) {
      const int index = a.indices[row * a.stride + at];
      if (index >= 0 && index < cols)
        store_number(shared_memory, index, a.size,
                     load_number((const char *)a.from + (row * k + at) * a.apart, a.size));
    }
    __syncthreads();
    _Pragma("unroll 4") for (int at = threadIdx.x; at < cols; at += blockDim.x)
        store_number(a.to, row * cols + at, a.size, load_number((const char *)shared_memory + at * a.size, a.size));
    __syncthreads();
  }
}
