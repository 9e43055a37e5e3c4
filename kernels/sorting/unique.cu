/* The distinct values of a vector from its keys in order. Where a key differs from the one before, a value begins: that
 * is its head, and as the order is stable, its place in x is the value's first. Heads are numbered twice: in the order
 * of keys, and, by marks at their places, in the order of x. */
#include "kernels/sorting/unique.h"

#include "kernels/sorting/radix.cuh"

template <typename K>
__device__ inline unsigned begins(const unique_args &a, int64_t at) {
  const K *keys = (const K *)a.keys;
  return at < a.n && (at == 0 || keys[at] != keys[at - 1] || (a.is_float && keys[at] == (K)a.nan));
}

/* v[i] of thread t is number t * EACH + i of the tile. Gives how many come before the thread's, and in all. */
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

__device__ inline int64_t own_first() { return ((int64_t)blockIdx.x * TFU_THREADS + threadIdx.x) * TFU_UNIQUE_EACH; }

/* Where values begin: by the order of keys in `of`, by their places in `marks`; and how many do in each tile. */
template <typename K>
__device__ inline void unique_mark(const unique_args &a) {
  unsigned sum = 0, total;
  UNROLL
  for (int i = 0; i < TFU_UNIQUE_EACH; i++) {
    const int64_t at = own_first() + i;
    const unsigned head = begins<K>(a, at);
    if (at < a.n) a.of[at] = a.marks[a.places[at]] = head;
    sum += head;
  }
  scan_block(sum, &total);
  if (threadIdx.x == 0) a.before[blockIdx.x] = total;
}

/* How many marks a tile has. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) unique_count_f32(const unique_args a) {
  unsigned sum = 0, total;
  UNROLL
  for (int i = 0; i < TFU_UNIQUE_EACH; i++) sum += own_first() + i < a.n ? a.marks[own_first() + i] : 0;
  scan_block(sum, &total);
  if (threadIdx.x == 0) a.before[blockIdx.x] = total;
}

/* Makes of what is set in `of`, or else in `marks`, how many come before; of `of`, which distinct value each is, and
 * notes where that begins. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) unique_number_f32(const unique_args a) {
  uint32_t *list = a.by_keys ? a.of : a.marks;
  unsigned set[TFU_UNIQUE_EACH], sum = 0, total;
  UNROLL
  for (int i = 0; i < TFU_UNIQUE_EACH; i++) sum += set[i] = own_first() + i < a.n ? list[own_first() + i] : 0;
  unsigned before = a.before[blockIdx.x] + scan_block(sum, &total);
  UNROLL
  for (int i = 0; i < TFU_UNIQUE_EACH; i++) {
    const int64_t at = own_first() + i;
    if (at < a.n) list[at] = a.by_keys ? before + set[i] - 1 : before;
    if (a.by_keys && set[i]) a.heads[before] = (uint32_t)at;
    before += set[i];
  }
}

/* Writes what is asked for. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) unique_write_f32(const unique_args a) {
  const uint32_t number = (uint32_t)*a.number;
  ONCE
  for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < a.n; at += (int64_t)gridDim.x * blockDim.x) {
    const uint32_t value = a.of[at], head = a.heads[value], first = a.places[head], rank = a.marks[first];
    a.idx[a.places[at]] = (int32_t)rank;
    if (at != head) continue;
    if (a.size == 4) ((uint32_t *)a.y)[rank] = ((const uint32_t *)a.x)[first];
    else if (a.size == 2) ((uint16_t *)a.y)[rank] = ((const uint16_t *)a.x)[first];
    else ((uint64_t *)a.y)[rank] = ((const uint64_t *)a.x)[first];
    a.count[rank] = (int32_t)((value + 1 < number ? a.heads[value + 1] : (uint32_t)a.n) - head);
  }
}

/* Named after floats of the size of keys; all others serve any. */
TFU_KERNEL_AS_(unique_mark_f32, unique_args, unique_mark<uint32_t>)
TFU_KERNEL_AS_(unique_mark_f64, unique_args, unique_mark<uint64_t>)
