/* attention_tile.cuh - what the tiled attention kernels share: which part of the work a block has, its way from memory
 * into tiles, and what is done to single scores. */
#pragma once

#include "kernels/attention_own.h"
#include "kernels/core/mma.cuh"
#include "kernels/core/philox.h"

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* A block's tile: steps first .. of a head of a sequence, of which it writes those below `written`. */
struct attention_place {
  tfu_sequence s;
  int b, h, first, written;
};

/* The tile of `rows` queries or keys. The last tiles of a head come first: with causal attention they have the most
 * work, and the short ones fill up the end. Tiles of a head are neighbours, so that what they share stays in the cache.
 *
 * Where ragged, sequence b's tiles begin at place first step / rows + b, which leaves room for all tiles before. What
 * lies behind the last sequence is one more, without queries and keys. */
template <bool KEYS>
__device__ inline attention_place place_of(const attention_work &w, int rows) {
  const attention_args &a = w.a;
  const int heads = KEYS ? a.key_heads : a.heads, steps = KEYS ? a.keys : a.queries;
  const int t = w.tiles - 1 - (int)(blockIdx.x % (unsigned)w.tiles), rest = (int)(blockIdx.x / (unsigned)w.tiles);
  if (!a.ragged) return {tfu_sequence_of(&a, rest / heads), rest / heads, rest % heads, t * rows, steps};
  const int32_t *splits = KEYS ? a.key_lengths : a.query_lengths;
  int low = 0, high = a.batch + 1;
  while (high - low > 1) {
    const int mid = (low + high) / 2;
    if (tfu_clamp(splits[mid], steps) / rows + mid <= t) low = mid;
    else high = mid;
  }
  attention_place at = {{}, low, rest, max(t - (tfu_clamp(splits[low], steps) / rows + low), 0) * rows, 0};
  if (low < a.batch) {
    at.s = tfu_sequence_of(&a, low);
    at.written = KEYS ? at.s.keys : at.s.queries;
  } else {
    at.s = {tfu_clamp(a.query_lengths[low], a.queries), tfu_clamp(a.key_lengths[low], a.keys), 0, 0, 0};
    at.written = steps - tfu_clamp(splits[low], steps);
  }
  return at;
}

/* Which keys query i may attend to by its place, as tfu_band() says; in 32 bits, which hold all that can be here. */
struct attention_band {
  int shift, keys, left, right;
  __device__ attention_band(const attention_args &a, const tfu_sequence &s)
      : shift(s.shift), keys(s.keys), left(a.left), right(a.right) {}
  __device__ int first(int i) const { return left < 0 ? 0 : max(i + shift - left, 0); }
  __device__ int end(int i) const { return right < 0 ? keys : min(i + shift + right + 1, keys); }
  __device__ bool has(int i, int j) const { return j >= first(i) && j < end(i); }
};

/* The 16 bits that decide on dropout's element `at`. A call, since it would be the larger part of a kernel. */
static __device__ __noinline__ uint32_t drop_bits(int64_t at, uint64_t seed) {
  const tfu_bits bits = tfu_philox(at >> 3, seed);
  return tfu_lane(&bits, (int)(at & 7));
}

/* Bias, mask and dropout of a head's pairs. Pairs must be within the tensors. */
template <typename T>
struct attention_pairs {
  const attention_args &a;
  const T *bias;
  const uint8_t *mask;
  int64_t pairs;
  float kept; /* what stays of dropout counts as this */

  __device__ attention_pairs(const attention_args &a, int b, int h)
      : a(a),
        bias(a.bias ? (const T *)a.bias + b * a.bias_step[0] + h * a.bias_step[1] : 0),
        mask(a.mask ? a.mask + b * a.mask_step[0] + h * a.mask_step[1] : 0),
        pairs(tfu_pair(&a, b, h, 0, 0)),
        kept(a.seed ? 1 / (1 - a.rate) : 1) {}

  __device__ acc<T> bias_of(int i, int j) const { return (acc<T>)bias[i * a.bias_step[2] + j * a.bias_step[3]]; }
  __device__ bool masked(int i, int j) const { return mask && !mask[i * a.mask_step[2] + j * a.mask_step[3]]; }
  /* A score in base 2 with its bias, or minus infinity. */
  __device__ float score(float v, int i, int j) const {
    if (bias) v = fmaf(bias_of(i, j), LOG2_E, v);
    return masked(i, j) ? -INFINITE : v;
  }
  __device__ bool stays(int i, int j) const {
    return drop_bits(pairs + (int64_t)i * a.keys + j, *a.seed) >= tfu_drop_below(a.rate);
  }
};

#if __CUDA_ARCH__ >= 800
/* Rows of a head in memory: `dim` elements each, `rows` of them. */
template <typename T>
struct attention_rows {
  const T *data;
  int stride, dim, rows;
  __device__ attention_rows(const void *tensor, int64_t first, int heads, int head, int dim, int rows)
      : data((const T *)tensor + (first * heads + head) * dim), stride(heads * dim), dim(dim), rows(rows) {}
};

/* A chunk of a row that is no whole chunks, or begins anywhere. */
template <typename T>
static __device__ __noinline__ void load_chunk(unsigned to, const T *from, int left) {
  enum { N = packed<T>::N };
  alignas(16) T v[N];
  UNROLL
  for (int k = 0; k < N; k++) v[k] = k < left ? from[k] : (T)0.0f;
  store_chunk(to, *(int4 *)v);
}

/* Rows first .. first + ROWS by THREADS threads; zeros where there are none, and beyond dim. */
template <int ROWS, int THREADS, typename T, int D>
__device__ inline void load_rows(const tile<T, D> &to, const attention_rows<T> &from, bool aligned, int first,
                                 int thread) {
  enum { N = packed<T>::N, CHUNKS = tile<T, D>::CHUNKS, ACROSS = CHUNKS < THREADS ? CHUNKS : THREADS };
  enum { AT_ONCE = THREADS / ACROSS };
  static_assert(ROWS % AT_ONCE == 0 && CHUNKS % ACROSS == 0, "threads must fill whole rows");
  const int r = thread / ACROSS;
  UNROLL
  for (int c = thread % ACROSS; c < CHUNKS; c += ACROSS) {
    const T *p = from.data + (int64_t)(first + r) * from.stride + c * N;
    const int left = c * N < from.dim ? from.rows - first - r : 0;
    if (aligned) {
      const int64_t step = (int64_t)AT_ONCE * from.stride;
      const unsigned at = to.chunk(r, c);
      UNROLL
      for (int i = 0; i < ROWS; i += AT_ONCE, p += step) copy_chunk((at ^ ((i & 7) << 4)) + i * to.ROW, p, i < left);
    } else {
      ONCE
      for (int i = 0; i < ROWS; i += AT_ONCE)
        load_chunk(to.chunk(r + i, c), p + (int64_t)i * from.stride, i < left ? from.dim - c * N : 0);
    }
  }
}
/* The same, with row first + r at row at(r) of `from`; negative: zeros. */
template <int ROWS, int THREADS, typename T, int D, typename F>
__device__ inline void load_rows_at(const tile<T, D> &to, const attention_rows<T> &from, bool aligned, int thread,
                                    F at) {
  enum { N = packed<T>::N, CHUNKS = tile<T, D>::CHUNKS };
  ONCE
  for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS;
    const int64_t row = at(r);
    const T *p = from.data + row * from.stride + c * N;
    const bool real = row >= 0 && c * N < from.dim;
    if (aligned) copy_chunk(to.chunk(r, c), p, real);
    else load_chunk(to.chunk(r, c), p, real ? from.dim - c * N : 0);
  }
}

/* f(value, row, column) for the results of 16 * M rows by 8 * N columns. */
template <int M, int N, typename F>
__device__ inline void for_results(float (&v)[M][N][4], F f) {
  const int g = lane_id() / 4, t = lane_id() % 4;
  UNROLL
  for (int m = 0; m < M; m++) UNROLL
  for (int n = 0; n < N; n++) UNROLL
  for (int k = 0; k < 4; k++) f(v[m][n][k], 16 * m + g + k / 2 * 8, 8 * n + 2 * t + k % 2);
}

/* One row's results to memory, times `by`: of the upper or lower half's rows, columns below `dim`. Times zero is zero,
 * whatever the result: it is a row without keys or queries. */
template <typename T, int N>
__device__ inline void store_row(T *to, int dim, bool aligned, const float (&v)[N][4], int half, float by) {
  const int t = lane_id() % 4;
  UNROLL
  for (int n = 0; n < N; n++) {
    const int c = 8 * n + 2 * t;
    const float x = by == 0 ? 0 : v[n][2 * half] * by, y = by == 0 ? 0 : v[n][2 * half + 1] * by;
    if (aligned && c < dim) {
      if constexpr (sizeof(T) == 2) *(unsigned *)(to + c) = pair_of<T>::narrow(x, y);
      else *(float2 *)(to + c) = make_float2(x, y);
    } else {
      if (c < dim) to[c] = (T)x;
      if (c + 1 < dim) to[c + 1] = (T)y;
    }
  }
}
#endif

/* Stamps function<T, D, ...>(work) as a kernel of `threads`, of which a multiprocessor shall hold `blocks` blocks. */
#define TFU_TILE_KERNEL(label, threads, blocks, ...)                                                              \
  extern "C" __global__ void __launch_bounds__(threads, blocks) label(const __grid_constant__ attention_work w) { \
    __VA_ARGS__(w);                                                                                               \
  }

/* stamp(d, tag, T) for each that there are tiles of. */
#define TFU_EVERY_TILE(stamp)                                                                                 \
  stamp(64, f32, float) stamp(64, f16, f16) stamp(64, bf16, bf16) stamp(128, f32, float) stamp(128, f16, f16) \
      stamp(128, bf16, bf16) stamp(256, f32, float) stamp(256, f16, f16) stamp(256, bf16, bf16)
