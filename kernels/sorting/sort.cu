/* Keys in order (see radix.h), and numbers of 2, 4 or 8 bytes moved from the places that a list says, or to them. */
#include "kernels/sorting/sort.h"

#include "kernels/sorting/radix.cuh"

extern __shared__ int4 shared_memory[];

/* ---- very short rows: a key's place is how many come before it ---- */

template <typename K>
__device__ inline void radix_short(const radix_args &a) {
  K *line = (K *)shared_memory, *sorted = line + TFU_THREADS;
  uint32_t *places = (uint32_t *)(sorted + TFU_THREADS);
  const int cols = (int)a.cols, own = threadIdx.x / cols * cols;
  ONCE
  for (int64_t row = (int64_t)blockIdx.x * a.at_a_time; row < a.rows; row += (int64_t)gridDim.x * a.at_a_time) {
    const int64_t first = row * cols, left = (a.rows - row) * cols;
    const int n = left < a.at_a_time * cols ? (int)left : a.at_a_time * cols;
    const bool has = threadIdx.x < n;
    K key = 0;
    if (has) load_key(a.from, first + threadIdx.x, a.from_narrow, a.from_order, key);
    line[threadIdx.x] = key;
    __syncthreads();
    if (has) {
      int before = own;
      ONCE
      for (int j = own; j < own + cols; j++) before += line[j] < key || (line[j] == key && j < threadIdx.x);
      sorted[before] = key;
      places[before] = threadIdx.x - own;
    }
    __syncthreads();
    if (has && a.keys) {
      if (a.decode) store_key(a.keys, first + threadIdx.x, a.narrow, a.order, sorted[threadIdx.x]);
      else ((K *)a.keys)[first + threadIdx.x] = sorted[threadIdx.x];
    }
    if (has && a.places) a.places[first + threadIdx.x] = places[threadIdx.x];
  }
}

/* ---- rows that a block holds ---- */

template <typename K>
__device__ inline void radix_rows(const radix_args &a) {
  const bool with_places = a.places;
  const int tile = blockDim.x * a.items, n = (int)a.cols, first = threadIdx.x / 32 * 32 * a.items + threadIdx.x % 32;
  K *line = (K *)shared_memory, *other = line + tile;
  uint16_t *places = (uint16_t *)(other + tile), *other_places = places + (with_places ? tile : 0);
  unsigned *counts = (unsigned *)(other_places + (with_places ? tile : 0)),
           *piles = counts + blockDim.x / 32 * TFU_PILES;
  ONCE
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    __syncthreads();
    _Pragma("unroll 4") for (int at = threadIdx.x; at < tile; at += blockDim.x) {
      K key = ~(K)0;
      if (at < n) load_key(a.from, row * n + at, a.from_narrow, a.from_order, key);
      line[at] = key;
      if (look_again(with_places)) places[at] = (uint16_t)at;
    }
    __syncthreads();
    ONCE
    for (int shift = a.shift; shift < a.end; shift += 8) {
      clear_counts(counts);
      _Pragma("unroll 2") for (int i = 0; i < a.items; i++)
          atomicAdd(&counts[threadIdx.x / 32 * TFU_PILES + digit_of(line[first + 32 * i], shift)], 1u);
      start_piles(counts, piles);
      move_keys(line, other, a.items, shift, counts, [&](int at, unsigned to) {
        if (look_again(with_places)) other_places[to] = places[at];
      });
      __syncthreads();
      K *const keys = line;
      line = other, other = keys;
      uint16_t *const of_keys = places;
      places = other_places, other_places = of_keys;
    }
    ONCE
    for (int at = threadIdx.x; at < n; at += blockDim.x) {
      if (a.keys && a.decode) store_key(a.keys, row * n + at, a.narrow, a.order, line[at]);
      else if (a.keys) ((K *)a.keys)[row * n + at] = line[at];
      if (look_again(with_places)) a.places[row * n + at] = places[at];
    }
  }
}

/* ---- longer rows: one digit in three launches ---- */

enum { EACH = 4 }; /* keys that a thread has under way */

template <typename K>
__device__ inline K key_at(const radix_args &a, int64_t at) {
  K key;
  load_key(a.from, at, a.from_narrow, a.from_order, key);
  return key;
}

/* The digits of a tile. A warp counts for itself, so that threads seldom wait for each other. */
template <typename K>
__device__ inline void radix_count(const radix_args &a) {
  unsigned *counts = (unsigned *)shared_memory, *mine = counts + threadIdx.x / 32 * TFU_PILES;
  const int64_t row = blockIdx.x / a.tiles, tile = blockIdx.x % a.tiles, begin = tile * (blockDim.x * a.items);
  const int64_t from = row * a.cols + begin, left = a.cols - begin;
  const int n = left < blockDim.x * a.items ? (int)left : (int)blockDim.x * a.items;
  clear_counts(counts);
  ONCE
  for (int at = threadIdx.x; at < n; at += EACH * blockDim.x) {
    K keys[EACH];
    UNROLL
    for (int i = 0; i < EACH; i++)
      if (at + i * (int)blockDim.x < n) keys[i] = key_at<K>(a, from + at + i * blockDim.x);
    UNROLL
    for (int i = 0; i < EACH; i++)
      if (at + i * (int)blockDim.x < n) atomicAdd(&mine[digit_of(keys[i], a.shift)], 1u);
  }
  __syncthreads();
  ONCE
  for (int d = threadIdx.x; d < TFU_PILES; d += blockDim.x) {
    unsigned sum = 0;
    _Pragma("unroll 4") for (int w = 0; w < (int)blockDim.x / 32; w++) sum += counts[w * TFU_PILES + d];
    a.counts[(row * TFU_PILES + d) * a.tiles + tile] = sum;
  }
}

/* A block has the counts of one row and digit, tile by tile, and makes of them how many come before. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) radix_scan_f32(const radix_args a) {
  __shared__ unsigned of_warps[TFU_THREADS / 32];
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  uint32_t *counts = a.counts + (int64_t)blockIdx.x * a.tiles;
  unsigned total = 0;
  ONCE
  for (int64_t begin = 0; begin < a.tiles; begin += blockDim.x * EACH) {
    const int64_t at = begin + (int64_t)threadIdx.x * EACH;
    unsigned v[EACH], sum = 0;
    UNROLL
    for (int i = 0; i < EACH; i++) sum += v[i] = at + i < a.tiles ? counts[at + i] : 0;
    const unsigned up_to = scan_warp(sum);
    if (threadIdx.x % 32 == 31) of_warps[warp] = up_to;
    __syncthreads();
    unsigned before = total + up_to - sum;
    ONCE
    for (int w = 0; w < warps; w++) {
      if (w < warp) before += of_warps[w];
      total += of_warps[w];
    }
    UNROLL
    for (int i = 0; i < EACH; i++) {
      if (at + i < a.tiles) counts[at + i] = before;
      before += v[i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) a.totals[blockIdx.x] = total;
}

/* Deals a tile out: first within shared memory, so that what goes to one pile lies side by side, then to the piles. */
template <typename K>
__device__ inline void radix_deal(const radix_args &a) {
  const bool with_places = a.places;
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32 * a.items + lane, tile_keys = blockDim.x * a.items;
  const int64_t row = blockIdx.x / a.tiles, tile = blockIdx.x % a.tiles, begin = tile * tile_keys;
  const int n = a.cols - begin < tile_keys ? (int)(a.cols - begin) : tile_keys;
  K *line = (K *)shared_memory, *sorted = line + tile_keys;
  uint32_t *places = (uint32_t *)(sorted + tile_keys);
  unsigned *counts = places + (with_places ? tile_keys : 0), *piles = counts + blockDim.x / 32 * TFU_PILES;
  unsigned *starts = piles + TFU_PILES, *mine = counts + threadIdx.x / 32 * TFU_PILES;
  const int64_t from = row * a.cols + begin;
  clear_counts(counts);
  ONCE
  for (int i = 0; i < a.items; i += EACH) {
    K keys[EACH];
    UNROLL
    for (int j = 0; j < EACH; j++) {
      const int at = first + 32 * (i + j);
      keys[j] = i + j < a.items && at < n ? key_at<K>(a, from + at) : ~(K)0;
    }
    UNROLL
    for (int j = 0; j < EACH; j++)
      if (i + j < a.items) {
        line[first + 32 * (i + j)] = keys[j];
        atomicAdd(&mine[digit_of(keys[j], a.shift)], 1u);
      }
  }
  ONCE
  for (int d = threadIdx.x; d < TFU_PILES; d += blockDim.x) starts[d] = a.totals[row * TFU_PILES + d];
  start_piles(counts, piles);
  move_keys(line, sorted, a.items, a.shift, counts, [&](int at, unsigned to) {
    if (look_again(with_places) && at < n)
      places[to] = a.from_places ? a.from_places[from + at] : (uint32_t)(begin + at);
  });
  if (threadIdx.x < 32) scan_piles(starts);
  __syncthreads();
  ONCE
  for (int d = threadIdx.x; d < TFU_PILES; d += blockDim.x)
    starts[d] += a.counts[(row * TFU_PILES + d) * a.tiles + tile] - piles[d];
  __syncthreads();
  ONCE
  for (int j = threadIdx.x; j < n; j += blockDim.x) {
    const K key = sorted[j];
    const int64_t to = row * a.cols + (uint32_t)(starts[digit_of(key, a.shift)] + j);
    if (a.keys && a.decode) store_key(a.keys, to, a.narrow, a.order, key);
    else if (a.keys) ((K *)a.keys)[to] = key;
    if (look_again(with_places)) a.places[to] = places[j];
  }
}

RADIX_KERNEL(radix_short_f32, TFU_THREADS, radix_short<uint32_t>)
RADIX_KERNEL(radix_short_f64, TFU_THREADS, radix_short<uint64_t>)
RADIX_KERNEL(radix_count_f32, TFU_RADIX_THREADS, radix_count<uint32_t>)
RADIX_KERNEL(radix_count_f64, TFU_RADIX_THREADS, radix_count<uint64_t>)
RADIX_KERNEL(radix_rows_f32, TFU_RADIX_THREADS, radix_rows<uint32_t>)
RADIX_KERNEL(radix_rows_f64, TFU_RADIX_THREADS, radix_rows<uint64_t>)
RADIX_KERNEL(radix_deal_f32, TFU_RADIX_THREADS, radix_deal<uint32_t>)
RADIX_KERNEL(radix_deal_f64, TFU_RADIX_THREADS, radix_deal<uint64_t>)

/* ---- numbers that are moved ---- */

/* Of 64 bits a division is long, and few need it. */
__device__ inline int64_t row_of(int64_t at, int64_t k) {
  return (at | k) >> 32 ? at / k : (int64_t)((uint32_t)at / (uint32_t)k);
}

__device__ inline void move_number(void *to, int64_t to_at, const void *from, int64_t at, int size) {
  if (look_again(size == 4)) ((uint32_t *)to)[to_at] = ((const uint32_t *)from)[at];
  else if (look_again(size == 2)) ((uint16_t *)to)[to_at] = ((const uint16_t *)from)[at];
  else ((uint64_t *)to)[to_at] = ((const uint64_t *)from)[at];
}

/* Named after a float, as all kernels are; it moves numbers of any size. */
extern "C" __global__ void __launch_bounds__(TFU_THREADS) move_f32(const move_args a) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  ONCE
  for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < a.n; at += step) {
    const int64_t row = row_of(at, a.k);
    const int place = a.places[row * a.stride + (at - row * a.k)];
    const int64_t other = row * a.cols + place;
    if (look_again(a.copied != 0)) a.copied[at] = place;
    const bool put = look_again(a.put);
    if (place >= 0 && place < a.cols) move_number(a.to, put ? other : at, a.from, put ? at : other, a.size);
  }
}
