/* pairs.cuh - the tile of a block, and tiles of matrices with odd sizes: what memory has of them in pairs is moved in
 * pairs. */
#pragma once

#include "kernels/core/device/pack.cuh"
#include "kernels/layout/transpose.h"

/* The tile of a block: its place along a and b, and where its matrix begins in x and y. */
struct transposed_tile {
  uint32_t a, b;
  int64_t from, to;
  __device__ transposed_tile(const transpose_tiles_args &t) {
    const uint32_t matrix = divide(blockIdx.x, t.tiles), tile = blockIdx.x - matrix * t.tiles.by;
    const uint32_t strip = divide(tile, t.strip), within = tile - strip * t.strip.by,
                   high = t.tiles_b - strip * t.swath;
    const uint32_t height = high < t.swath ? high : t.swath;
    a = within / height;
    b = (strip * t.swath + within - a * height) * t.tile_b;
    a *= t.tile_a;
    from = to = 0;
    uint32_t rest = matrix;
    ONCE
    for (int axis = 0; axis < t.axes; axis++) {
      const uint32_t outer = divide(rest, t.size[axis]), i = rest - outer * t.size[axis].by;
      from += i * t.from[axis], to += i * t.to[axis];
      rest = outer;
    }
  }
};

enum { TRANSPOSE_ROUNDS = 8 }; /* units of a thread that are on their way to shared memory at once */

/* A block's stretch of n units of memory, to shared memory. */
template <typename U>
__device__ inline void copy_stretch(const U *from, U *to, int n) {
  from += threadIdx.x, to += threadIdx.x;
  ONCE
  for (int left = n - (int)threadIdx.x; left > 0; left -= TRANSPOSE_ROUNDS * TFU_TRANSPOSE_THREADS) {
    U unit[TRANSPOSE_ROUNDS];
    UNROLLED(k, TRANSPOSE_ROUNDS)
      if (k * TFU_TRANSPOSE_THREADS < left) unit[k] = from[k * TFU_TRANSPOSE_THREADS];
    UNROLLED(k, TRANSPOSE_ROUNDS)
      if (k * TFU_TRANSPOSE_THREADS < left) to[k * TFU_TRANSPOSE_THREADS] = unit[k];
    from += TRANSPOSE_ROUNDS * TFU_TRANSPOSE_THREADS, to += TRANSPOSE_ROUNDS * TFU_TRANSPOSE_THREADS;
  }
}

/* A pair is two neighbours in memory whose address is a multiple of their size. Rows of odd sizes begin with the second
 * of a pair every other time, so in a row of n the pairs that a thread may have are one more than n / 2, and the first
 * and last may be half of another row. A thread has the same pair of every so many'th row; as that many is even, all of
 * its pairs are whole, or half, in the same way. */
struct own_pair {
  int first;      /* place of the pair in the row, which may be -1 */
  bool low, high; /* whether the row has its two elements          */
  __device__ own_pair(uintptr_t row, int size, int number, int n) {
    first = 2 * number - (int)(row / size & 1);
    low = first >= 0 && first < n, high = first + 1 < n;
  }
};

/* Tiles through shared memory: read along a, or as one stretch where they are one, and written along b. The pitch is
 * odd, so that neighbours along b are in different banks. Half of another row's pair may be read, and is not used. */
template <int SIZE>
__device__ inline void transpose_pairs(const transpose_tiles_args &t) {
  enum { ROUNDS = TRANSPOSE_ROUNDS, BITS = 8 * SIZE };
  typedef typename bits_of<SIZE>::type U;
  typedef typename bits_of<2 * SIZE>::type W;
  extern __shared__ int4 memory[];
  U *tile = (U *)memory;
  const transposed_tile at(t);
  const int na = min(t.tile_a, t.a - at.a), nb = min(t.tile_b, t.b - at.b);
  const U *x = (const U *)t.x + at.from + at.b * t.b_from + at.a;
  U *y = (U *)t.y + at.to + at.a * t.a_to + at.b;
  if (t.dense) {
    const int odd = (int)((uintptr_t)x / SIZE & 1), n = na * nb;
    U last = 0; /* half of a pair */
    if ((n + odd) % 2) last = x[n - 1];
    copy_stretch((const W *)(x - odd), (W *)tile, (n + odd) / 2);
    tile += odd;
    if (threadIdx.x == 0 && (n + odd) % 2) tile[n - 1] = last;
  } else {
    const int step = TFU_TRANSPOSE_THREADS >> t.shift_a, apart = step * t.pitch;
    const int64_t far = step * t.b_from;
    int b = threadIdx.x >> t.shift_a;
    x += b * t.b_from;
    const own_pair own((uintptr_t)x, SIZE, threadIdx.x & ((1 << t.shift_a) - 1), na);
    x += own.first;
    U *to = tile + b * t.pitch + own.first;
    ONCE
    for (; b < nb; b += ROUNDS * step) {
      W pair[ROUNDS];
      UNROLL
      for (int k = 0; k < ROUNDS; k++, x += far) {
        const bool there = b + k * step < nb;
        if (there && own.high) pair[k] = *(const W *)x;
        else if (there && own.low) pair[k] = *x;
      }
      UNROLL
      for (int k = 0; k < ROUNDS; k++, to += apart) {
        const bool there = b + k * step < nb;
        if (there && own.low) to[0] = (U)pair[k];
        if (there && own.high) to[1] = (U)(pair[k] >> BITS);
      }
    }
  }
  __syncthreads();
  const int step = TFU_TRANSPOSE_THREADS >> t.shift_b;
  const int64_t far = step * t.a_to;
  int a = threadIdx.x >> t.shift_b;
  y += a * t.a_to;
  const own_pair own((uintptr_t)y, SIZE, threadIdx.x & ((1 << t.shift_b) - 1), nb);
  y += own.first;
  const U *from = tile + own.first * t.pitch + a;
  ONCE
  for (; a < na; a += ROUNDS / 2 * step) {
    UNROLL
    for (int k = 0; k < ROUNDS / 2; k++, y += far, from += step) {
      if (a + k * step >= na) continue;
      if (own.low && own.high) *(W *)y = (W)from[0] | (W)from[t.pitch] << BITS;
      else if (own.low) y[0] = from[0];
      else if (own.high) y[1] = from[t.pitch];
    }
  }
}
