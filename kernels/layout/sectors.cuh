/* sectors.cuh - tiles of matrices with odd sizes that write whole sectors of memory.
 *
 * Rows of y begin anywhere in a sector. If tiles had the same columns of every row, two tiles would write a part each
 * of the sector that they meet in, and memory would have to read it first. So a tile's border is moved in every row of
 * y to the sector's border before it: where a row begins m elements into a sector, tile k has its columns from k *
 * tile_b - m to (k + 1) * tile_b - m, and tile_b is a multiple of a sector. A tile reads the columns of x for all of
 * that, up to a sector more than it writes; its neighbour, which runs at the same time, has brought them to the cache.
 */
#pragma once

#include "kernels/core/device/shared.cuh"
#include "kernels/layout/pairs.cuh"

/* A block's stretch of n elements, to shared memory in packs, so that both begin at the same place in a pack. Returns
 * that place. The tensor begins with a whole pack. */
template <typename U>
__device__ inline int fetch_stretch(const U *x, int4 *memory, int n) {
  enum { N = 16 / sizeof(U) };
  const int place = (int)((uintptr_t)x / sizeof(U) % N), packs = (place + n) / N, rest = (place + n) % N;
  const int4 *from = (const int4 *)(x - place);
#if __CUDA_ARCH__ >= 800
  const unsigned to = (unsigned)__cvta_generic_to_shared(memory);
  _Pragma("unroll 4") for (int i = threadIdx.x; i < packs; i += TFU_TRANSPOSE_THREADS) copy_pack(to + i * 16, from + i);
  close_copies();
#else
  copy_stretch(from, memory, packs);
#endif
  if (threadIdx.x < rest) ((U *)(memory + packs))[threadIdx.x] = ((const U *)(from + packs))[threadIdx.x];
  wait_for_copies<0>();
  return place;
}

/* nb rows of na elements, to shared memory. A thread takes words of 4 bytes, all words of all rows in turn; of halves
 * these are pairs whose address is a multiple of 4, and the first and the last may be half of another row. So a row of
 * halves has room for one more on either side. */
template <typename U>
__device__ inline void fetch_rows(const transpose_tiles_args &t, const U *x, U *tile, int na, int nb) {
  enum { PAIR = sizeof(U) == 2, ROUNDS = TRANSPOSE_ROUNDS };
  const int words = PAIR ? na / 2 + 1 : na;
  const int down = TFU_TRANSPOSE_THREADS / words, along = TFU_TRANSPOSE_THREADS % words;
  int b = threadIdx.x / words, word = threadIdx.x % words;
  x += b * t.b_from;
  ONCE
  while (b < nb) {
    uint32_t bits[ROUNDS];
    int to[ROUNDS];
    UNROLLED(k, ROUNDS) {
      const int first = PAIR ? 2 * word - (int)((uintptr_t)x / 2 & 1) : word;
      to[k] = b < nb && first < na ? b * t.pitch + first : -2;
      if (to[k] > -2) bits[k] = PAIR && first + 1 == na ? x[first] : *(const uint32_t *)(x + first);
      b += down, word += along, x += down * t.b_from;
      if (word >= words) b++, word -= words, x += t.b_from;
    }
    UNROLLED(k, ROUNDS) {
      if (to[k] == -2) continue;
      tile[to[k]] = (U)bits[k];
      if (PAIR) tile[to[k] + 1] = (U)(bits[k] >> 16);
    }
  }
}

/* Rows of y from shared memory, which has the columns from `begin` on. Threads stand side by side along b, with a word
 * of 4 bytes each: an element, or two. The pitch is odd, so that what a warp reads is in different banks. */
template <typename U>
__device__ inline void put_sectors(const transpose_tiles_args &t, const transposed_tile &at, const U *tile, int na,
                                   int begin) {
  enum { PAIR = sizeof(U) == 2, ROUNDS = TRANSPOSE_ROUNDS / 2 };
  const int ahead = (int)(threadIdx.x & ((1 << t.shift_b) - 1)) << PAIR, step = TFU_TRANSPOSE_THREADS >> t.shift_b;
  const int column = (int)at.b + ahead, end = ahead < (int)t.tile_b ? na : 0, all = (int)t.b;
  const int64_t far = step * t.a_to;
  int a = threadIdx.x >> t.shift_b;
  U *y = (U *)t.y + at.to + (at.a + a) * t.a_to;
  ONCE
  for (; a < end; a += ROUNDS * step) {
    UNROLL
    for (int k = 0; k < ROUNDS; k++, y += far) {
      if (a + k * step >= end) continue;
      const int b = column - ((int)((uintptr_t)y / sizeof(U)) & (t.border - 1));
      const U *from = tile + (b - begin) * t.pitch + a + k * step;
      const bool low = b >= 0 && b < all, high = PAIR && b + 1 >= 0 && b + 1 < all;
      if (low && high) *(uint32_t *)(y + b) = (uint32_t)from[0] | (uint32_t)from[t.pitch] << 16;
      else if (low) y[b] = from[0];
      else if (high) y[b + 1] = from[t.pitch];
    }
  }
}

template <int SIZE>
__device__ inline void transpose_sectors(const transpose_tiles_args &t) {
  typedef typename bits_of<SIZE>::type U;
  extern __shared__ int4 memory[];
  const transposed_tile at(t);
  const int na = (int)min(t.tile_a, t.a - at.a);
  const int begin = (int)(at.b - min(at.b, (uint32_t)t.border - 1)), end = (int)min(at.b + t.tile_b, t.b);
  const U *x = (const U *)t.x + at.from + begin * t.b_from + at.a;
  U *tile = (U *)memory;
  if (t.dense) tile += fetch_stretch(x, memory, na * (end - begin));
  else fetch_rows(t, x, ++tile, na, end - begin);
  __syncthreads();
  put_sectors(t, at, tile, na, begin);
}
