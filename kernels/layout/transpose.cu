/* transpose on the GPU, by tiles in shared memory or by rows: bits are moved by the size of their elements, whatever
 * they mean. The kernels of bool, f16, f32 and f64 serve all types of 1, 2, 4 and 8 bytes; transpose_rows serves units
 * of any size, and transpose_packs those of 16 bytes. */
#include "kernels/layout/pairs.cuh"
#include "kernels/layout/sectors.cuh"

/* Rows in another order. The units of y are dealt out in their order, so that writing is coalesced always, and reading
 * as far as rows go. All of a thread's units are on their way before the first is written. */
template <typename U, int ROUNDS>
__device__ inline void move_units(const transpose_rows_args &a, uint32_t first, const int64_t (&from)[ROUNDS]) {
  U unit[ROUNDS];
  UNROLLED(k, ROUNDS)
    if (first + k * TFU_TRANSPOSE_THREADS < a.units) unit[k] = ((const U *)a.x)[from[k]];
  U *y = (U *)a.y + first;
  UNROLLED(k, ROUNDS)
    if (first + k * TFU_TRANSPOSE_THREADS < a.units) y[k * TFU_TRANSPOSE_THREADS] = unit[k];
}
template <int ROUNDS>
__device__ inline void transpose_rows(const transpose_rows_args &a) {
  const uint32_t first = blockIdx.x * (ROUNDS * TFU_TRANSPOSE_THREADS) + threadIdx.x;
  uint32_t rest[ROUNDS];
  int64_t from[ROUNDS];
  UNROLLED(k, ROUNDS) rest[k] = first + k * TFU_TRANSPOSE_THREADS, from[k] = 0;
  ONCE
  for (int axis = 0; axis < a.axes; axis++) {
    const tfu_divisor size = a.size[axis];
    const int64_t step = a.from[axis];
    UNROLLED(k, ROUNDS) {
      const uint32_t outer = divide(rest[k], size);
      from[k] += (rest[k] - outer * size.by) * step;
      rest[k] = outer;
    }
  }
  if constexpr (ROUNDS < TFU_ROW_ROUNDS) move_units<int4>(a, first, from);
  else if (a.bytes == 1) move_units<uint8_t>(a, first, from);
  else if (a.bytes == 2) move_units<uint16_t>(a, first, from);
  else if (a.bytes == 4) move_units<uint32_t>(a, first, from);
  else move_units<uint2>(a, first, from);
}

/* Rows of many small units in another order. Packs of y, which may begin anywhere in a row, are put together from units
 * and written whole: where they come from is found once for a pack. A row has as many units as a pack, or more, so that
 * a pack has two rows at most; where the first ends, the second begins. */
__device__ inline int64_t row_begin(const transpose_rows_args &a, uint32_t row) {
  int64_t from = 0;
  ONCE
  for (int axis = 1; axis < a.axes; axis++) {
    const uint32_t outer = divide(row, a.size[axis]);
    from += (row - outer * a.size[axis].by) * a.from[axis];
    row = outer;
  }
  return from;
}
__device__ inline int4 join_units(const uint32_t (&u)[4]) { return make_int4(u[0], u[1], u[2], u[3]); }
__device__ inline int4 join_units(const uint16_t (&u)[8]) {
  return make_int4(u[0] | u[1] << 16, u[2] | u[3] << 16, u[4] | u[5] << 16, u[6] | u[7] << 16);
}
__device__ inline int4 join_units(const uint8_t (&u)[16]) {
  const auto four = [](int a, int b, int c, int d) {
    return (int)__byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
  };
  return make_int4(four(u[0], u[1], u[2], u[3]), four(u[4], u[5], u[6], u[7]), four(u[8], u[9], u[10], u[11]),
                   four(u[12], u[13], u[14], u[15]));
}
template <typename U>
__device__ inline void transpose_runs(const transpose_rows_args &a) {
  enum { N = 16 / sizeof(U), ROUNDS = TFU_RUN_ROUNDS };
  U unit[ROUNDS][N];
  const uint32_t first = (blockIdx.x * (ROUNDS * TFU_TRANSPOSE_THREADS) + threadIdx.x) * N;
  UNROLLED(k, ROUNDS) {
    const uint32_t at = first + k * TFU_TRANSPOSE_THREADS * N;
    if (at >= a.units) continue;
    const uint32_t row = divide(at, a.size[0]), place = at - row * a.size[0].by;
    const int left = (int)min(a.size[0].by - place, (uint32_t)N), last = (int)min(a.units - at, (uint32_t)N);
    const U *from = (const U *)a.x + row_begin(a, row) + place, *then = from;
    if (left < last) then = (const U *)a.x + row_begin(a, row + 1) - left;
    UNROLLED(n, N)
      if (n < last) unit[k][n] = (n < left ? from : then)[n];
  }
  UNROLLED(k, ROUNDS) {
    const uint32_t at = first + k * TFU_TRANSPOSE_THREADS * N;
    if (at >= a.units) continue;
    U *y = (U *)a.y + at;
    if (a.units - at >= N) {
      store_bits(y, join_units(unit[k]));
    } else {
      UNROLLED(n, N)
        if (n < a.units - at) y[n] = unit[k][n];
    }
  }
}

/* Tiles of any size through shared memory: read along a, or as one stretch where they are one, and written along b, an
 * element at a time. The pitch is such that neighbours along b, which a warp reads from shared memory at once, are in
 * different banks. */
template <int SIZE>
__device__ inline void transpose_tiles(const transpose_tiles_args &t) {
  enum { ROUNDS = TRANSPOSE_ROUNDS };
  typedef typename bits_of<SIZE>::type U;
  extern __shared__ int4 memory[];
  U *tile = (U *)memory;
  const transposed_tile at(t);
  const uint32_t na = min(t.tile_a, t.a - at.a), nb = min(t.tile_b, t.b - at.b);
  const U *x = (const U *)t.x + at.from + at.b * t.b_from + at.a;
  U *y = (U *)t.y + at.to + at.a * t.a_to + at.b;
  if (t.dense) {
    copy_stretch(x, tile, (int)(na * nb));
  } else {
    const uint32_t a = threadIdx.x & ((1u << t.shift_a) - 1), step = TFU_TRANSPOSE_THREADS >> t.shift_a;
    const uint32_t end = a < na ? nb : 0;
    const int64_t far = step * t.b_from;
    const int apart = step * t.pitch;
    uint32_t b = threadIdx.x >> t.shift_a;
    x += b * t.b_from + a;
    U *to = tile + b * t.pitch + a;
    ONCE
    for (; b < end; b += ROUNDS * step) {
      U unit[ROUNDS];
      UNROLL
      for (int k = 0; k < ROUNDS; k++, x += far)
        if (b + k * step < end) unit[k] = *x;
      UNROLL
      for (int k = 0; k < ROUNDS; k++, to += apart)
        if (b + k * step < end) *to = unit[k];
    }
  }
  __syncthreads();
  const uint32_t b = threadIdx.x & ((1u << t.shift_b) - 1), step = TFU_TRANSPOSE_THREADS >> t.shift_b;
  const uint32_t end = b < nb ? na : 0;
  const int64_t far = step * t.a_to;
  uint32_t a = threadIdx.x >> t.shift_b;
  const U *from = tile + b * t.pitch + a;
  y += a * t.a_to + b;
  ONCE
  for (; a < end; a += ROUNDS / 2 * step) {
    UNROLL
    for (int k = 0; k < ROUNDS / 2; k++, y += far, from += step)
      if (a + k * step < end) *y = *from;
  }
}

/* A small square of N packs of N elements, transposed in registers. */
__device__ inline void transpose_in_registers(const int4 (&x)[2], int4 (&y)[2]) {
  y[0] = make_int4(x[0].x, x[0].y, x[1].x, x[1].y);
  y[1] = make_int4(x[0].z, x[0].w, x[1].z, x[1].w);
}
__device__ inline void transpose_in_registers(const int4 (&x)[4], int4 (&y)[4]) {
  y[0] = make_int4(x[0].x, x[1].x, x[2].x, x[3].x);
  y[1] = make_int4(x[0].y, x[1].y, x[2].y, x[3].y);
  y[2] = make_int4(x[0].z, x[1].z, x[2].z, x[3].z);
  y[3] = make_int4(x[0].w, x[1].w, x[2].w, x[3].w);
}
/* Two halves of 16 bits out of two words: the low ones, or the high ones. */
__device__ inline int4 join_halves(int a, int b, int c, int d, int e, int f, int g, int h, unsigned which) {
  return make_int4(__byte_perm(a, b, which), __byte_perm(c, d, which), __byte_perm(e, f, which),
                   __byte_perm(g, h, which));
}
__device__ inline void transpose_in_registers(const int4 (&x)[8], int4 (&y)[8]) {
#define HALVES(i, part)                                                                                               \
  y[i] = join_halves(x[0].part, x[1].part, x[2].part, x[3].part, x[4].part, x[5].part, x[6].part, x[7].part, 0x5410); \
  y[i + 1] = join_halves(x[0].part, x[1].part, x[2].part, x[3].part, x[4].part, x[5].part, x[6].part, x[7].part, 0x7632)
  HALVES(0, x);
  HALVES(2, y);
  HALVES(4, z);
  HALVES(6, w);
#undef HALVES
}

/* Tiles of whole packs, without shared memory. A thread has squares of N packs, all on their way at once. Of a warp, 8
 * threads stand along a and 4 along b: it reads 128 bytes side by side and writes 64, in whole sectors of memory both
 * times. Of a block, 2 warps stand along a and 4 along b. */
template <int SIZE>
__device__ inline void transpose_in_squares(const transpose_tiles_args &t, const transposed_tile &at) {
  enum { N = 16 / SIZE, SQUARES = N == 2 ? 2 : 1 };
  typedef typename bits_of<SIZE>::type U;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t a = at.a + (warp % 2 * 8 + lane % 8) * N, b = at.b + (warp / 2 * 4 + lane / 8) * N;
  if (a >= t.a) return;
  const U *x = (const U *)t.x + at.from + a;
  U *y = (U *)t.y + at.to + a * t.a_to;
  int4 in[SQUARES][N];
  UNROLLED(s, SQUARES) {
    if (b + s * 16 * N >= t.b) continue;
    UNROLLED(k, N) in[s][k] = *(const int4 *)(x + (b + s * 16 * N + k) * t.b_from);
  }
  UNROLLED(s, SQUARES) {
    if (b + s * 16 * N >= t.b) continue;
    int4 out[N];
    transpose_in_registers(in[s], out);
    UNROLLED(k, N) store_bits(y + k * t.a_to + b + s * 16 * N, out[k]);
  }
}
__device__ inline void transpose_squares(const transpose_tiles_args &t) {
  const transposed_tile at(t);
  if (t.bytes == 4) transpose_in_squares<4>(t, at);
  else if (t.bytes == 2) transpose_in_squares<2>(t, at);
  else transpose_in_squares<8>(t, at);
}

#define KERNEL(label, args, ...) TFU_STAMP((TFU_TRANSPOSE_THREADS), label, args, __VA_ARGS__)
KERNEL(transpose_rows_any, transpose_rows_args, transpose_rows<TFU_ROW_ROUNDS>)
KERNEL(transpose_packs_any, transpose_rows_args, transpose_rows<TFU_ROW_ROUNDS / 2>)
KERNEL(transpose_runs_b8, transpose_rows_args, transpose_runs<uint8_t>)
KERNEL(transpose_runs_b16, transpose_rows_args, transpose_runs<uint16_t>)
KERNEL(transpose_runs_b32, transpose_rows_args, transpose_runs<uint32_t>)
KERNEL(transpose_pairs_b16, transpose_tiles_args, transpose_pairs<2>)
KERNEL(transpose_pairs_b32, transpose_tiles_args, transpose_pairs<4>)
KERNEL(transpose_sectors_b16, transpose_tiles_args, transpose_sectors<2>)
KERNEL(transpose_sectors_b32, transpose_tiles_args, transpose_sectors<4>)
KERNEL(transpose_tiles_b8, transpose_tiles_args, transpose_tiles<1>)
KERNEL(transpose_tiles_b16, transpose_tiles_args, transpose_tiles<2>)
KERNEL(transpose_tiles_b32, transpose_tiles_args, transpose_tiles<4>)
KERNEL(transpose_tiles_b64, transpose_tiles_args, transpose_tiles<8>)
/* Blocks of a multiprocessor: one of the three sizes would take registers that leave room for fewer. On older ones four
 * have all of its threads. */
#if __CUDA_ARCH__ >= 800
#define MANY 5
#else
#define MANY 4
#endif
TFU_STAMP((TFU_TRANSPOSE_THREADS, MANY), transpose_squares_any, transpose_tiles_args, transpose_squares)
