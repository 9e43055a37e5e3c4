/* attention_tile.cuh - what the tiled attention kernels share: which part of the work a block has, and the way of rows
 * between memory and tiles. */
#pragma once

#include "kernels/attention/attention_pairs.cuh"

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
  const int64_t *splits = KEYS ? a.key_lengths : a.query_lengths;
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
  _Pragma("unroll 4") for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS;
    const int64_t row = at(r);
    const T *p = from.data + row * from.stride + c * N;
    const bool real = row >= 0 && c * N < from.dim;
    if (aligned) copy_chunk(to.chunk(r, c), p, real);
    else load_chunk(to.chunk(r, c), p, real ? from.dim - c * N : 0);
  }
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
