/* attention_tile.cuh - what the tiled attention kernels share: which part of the work a block has, and the way of rows
 * between memory and tiles, by prefetch (cp.async). */
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
 * lies after the last sequence is one more, without queries and keys. */
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
  UNROLLED(k, N) v[k] = k < left ? from[k] : (T)0.0f;
  store_shared(to, *(int4 *)v);
}

/* Rows first .. first + ROWS by THREADS threads; zeros where there are none, and beyond dim. ACROSS threads side by
 * side take the chunks of a row, and AT_ONCE rows are taken at a time. A loop is unrolled AHEAD times: a few where rows
 * are read once, as often as it goes where tiles follow each other. */
enum { FEW = 4, ALL = 256 };
template <int ROWS, int THREADS, int AHEAD = ALL, typename T, int D>
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
      /* i and r have no bits in common, so the chunks of row r + i are permuted as for r and then for i. */
      const unsigned at = to.chunk(r, c);
      _Pragma("unroll AHEAD") for (int i = 0; i < ROWS; i += AT_ONCE, p += step)
          copy_pack((at ^ ((i & 7) << 4)) + i * to.ROW, p, i < left ? 16 : 0);
    } else {
      ONCE
      for (int i = 0; i < ROWS; i += AT_ONCE)
        load_chunk(to.chunk(r + i, c), p + (int64_t)i * from.stride, i < left ? from.dim - c * N : 0);
    }
  }
}
/* The same, with row first + r at row at(r) of `from`; negative: zeros. */
template <int ROWS, int THREADS, int AHEAD = FEW, typename T, int D, typename F>
__device__ inline void load_rows_at(const tile<T, D> &to, const attention_rows<T> &from, bool aligned, int thread,
                                    F at) {
  enum { N = packed<T>::N, CHUNKS = tile<T, D>::CHUNKS };
  _Pragma("unroll AHEAD") for (int i = thread; i < ROWS * CHUNKS; i += THREADS) {
    const int r = i / CHUNKS, c = i % CHUNKS;
    const int64_t row = at(r);
    const T *p = from.data + row * from.stride + c * N;
    const bool real = row >= 0 && c * N < from.dim;
    if (aligned) copy_pack(to.chunk(r, c), p, real ? 16 : 0);
    else load_chunk(to.chunk(r, c), p, real ? from.dim - c * N : 0);
  }
}

/* Rows first .. first + ROWS of the steps of sequence b, which has pages. Called, not inlined: three copies of looking
 * pages up are a third of a kernel's code. */
template <int ROWS, int THREADS, typename T, int D>
static __device__ __noinline__ void load_paged(tile<T, D> to, attention_rows<T> from, bool aligned,
                                               const attention_args &a, int b, int first, int thread) {
  const tfu_sequence s = {};
  load_rows_at<ROWS, THREADS, 2>(to, from, aligned, thread, [&](int r) {
    return first + r < from.rows ? tfu_key_row(&a, &s, b, first + r) : (int64_t)-1;
  });
}

/* The part of a chunk that is inside its row, or begins anywhere. */
template <typename T>
static __device__ __noinline__ void store_part(T *to, int4 bits, int left) {
  const T *v = (const T *)&bits;
  UNROLLED(k, packed<T>::N)
    if (k < left) to[k] = v[k];
}

/* A warp's results, rows own .. own + 16 * M of a block's, to memory, times `by`: of the first `rows` of them, which
 * are `stride` apart, the columns below `dim`. Times zero is zero, whatever the result: it is a row without keys or
 * queries.
 *
 * They go through the warp's rows of a tile that nobody reads any more: from there neighbours write whole chunks side
 * by side, in a loop. */
template <typename T, int D, int M>
__device__ inline void store_results(T *to, int64_t stride, int dim, bool aligned, int rows,
                                     const float (&v)[M][D / 8][4], const float (&by)[M][2], const tile<T, D> &through,
                                     int own) {
  enum { CHUNKS = tile<T, D>::CHUNKS, N = packed<T>::N };
  const int g = lane_id() / 4, t = lane_id() % 4;
  const unsigned first = sizeof(T) == 2 ? through.chunk(own + g, 0) + 4 * t : through.chunk(own + g, t / 2) + t % 2 * 8;
  __syncwarp();
  UNROLLED(i, 2 * M * D / 8) {
    const int n = i / (2 * M), m = i % (2 * M) / 2, k = i % 2;
    const float x = v[m][n][2 * k] * by[m][k], y = v[m][n][2 * k + 1] * by[m][k];
    const bool none = by[m][k] == 0;
    const unsigned at = (first ^ (n * 8 * (int)sizeof(T))) + (16 * m + 8 * k) * through.ROW;
    if constexpr (sizeof(T) == 2) store_4_bytes(at, none ? 0 : pair_of<T>::narrow(x, y));
    else store_8_bytes(at, make_float2(none ? 0 : x, none ? 0 : y));
  }
  __syncwarp();
  ONCE
  for (int i = lane_id(); i < rows * CHUNKS; i += 32) {
    const int r = i / CHUNKS, c = i % CHUNKS;
    if (c * N >= dim) continue;
    const int4 bits = load_shared(through.chunk(own + r, c));
    if (aligned) store_bits(to + r * stride + c * N, bits);
    else store_part(to + r * stride + c * N, bits, dim - c * N);
  }
}

/* Nothing is on its way to the tiles any more, and no warp reads those of others. */
__device__ inline void leave_tiles() {
  close_copies();
  wait_for_copies<0>();
  __syncthreads();
}
#endif

/* Stamps function<T, D, ...>(work) as a kernel of `threads`, of which a multiprocessor shall hold `blocks` blocks. */
#define TFU_TILE_KERNEL(label, threads, blocks, ...) \
  TFU_STAMP((threads, blocks), label, __grid_constant__ attention_work, __VA_ARGS__)

/* stamp(d, tag, T) for each that there are tiles of. */
#define TFU_EVERY_TILE(stamp) TFU_SINGLES(stamp, 64) TFU_SINGLES(stamp, 128) TFU_SINGLES(stamp, 256)
