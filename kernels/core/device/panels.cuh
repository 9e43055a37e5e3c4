/* panels.cuh - GEMM: a block's tile of a product on tensor cores, from factors that come in panels, prefetched by a
 * pipeline of several stages, in a swizzle without bank conflicts; and an epilogue for the results.
 * Compute capability 8.0 on; kernels/core/panels.h has the sizes.
 *
 * A panel is the tile of one factor: SIDE rows of the left or columns of the right one, by DEPTH terms. Whoever brings
 * it to shared memory is a struct that is derived from its layout there, panel_tile, and has fetch(tile), which starts
 * the next tile on its way to that address by asynchronous copies, with zeros beyond the factor. matrix_panel is that
 * of a matrix. */
#pragma once

#include "kernels/core/device/mma.cuh"
#include "kernels/core/panels.h"

#if TFU_HAS_PANELS(__CUDA_ARCH__ / 10)
/* Elements lie as they do in the large matrix: in lines of WIDTH, along the terms or (ALONG) across them. Chunks of 16
 * bytes are permuted within 128 bytes so that eight of them below each other come from different banks. TFU_THREADS
 * threads copy a chunk each, AT_ONCE lines, and COUNT times that is a tile. */
template <typename T, int SIDE, bool ALONG>
struct panel_lines {
  enum { DEPTH = TFU_PANEL_DEPTH(sizeof(T)), LINES = ALONG ? DEPTH : SIDE, WIDTH = ALONG ? SIDE : DEPTH };
  enum { N = packed<T>::N, LINE = WIDTH * (int)sizeof(T), CHUNKS = LINE / 16, BYTES = LINES * LINE };
  enum { AT_ONCE = TFU_THREADS / CHUNKS, COUNT = LINES / AT_ONCE };
  static_assert(LINE % 128 == 0, "the permutation is that of 128 bytes");
  static_assert(AT_ONCE % 8 == 0 && LINES % AT_ONCE == 0, "a thread's chunks are all permuted alike");

  static __device__ unsigned place(int line, int chunk) { return line * LINE + ((chunk ^ (line & 7)) << 4); }
};

template <typename T, int SIDE, bool RIGHT, bool ALONG>
struct panel_tile : panel_lines<T, SIDE, ALONG> {
  typedef panel_lines<T, SIDE, ALONG> layout;
  /* This lane's address for a matrix load, of the part that begins at `first` of SIDE. The four 8 x 8 matrices of a
   * load come down the lines first or across them first (mma.cuh); left and right factors want them in different
   * orders, and ALONG, where the load is a transposed one, exchanges these. */
  static __device__ unsigned lane(int first) {
    const unsigned l = lane_id();
    const int line = RIGHT == ALONG ? l & 15 : (l & 7) + (l >> 4) * 8, chunk = RIGHT == ALONG ? l >> 4 : l >> 3 & 1;
    return layout::place(line, chunk) + first * (ALONG ? (int)sizeof(T) : layout::LINE);
  }
  /* Factor i, 16 of SIDE by the terms 16 k .. 16 k + 15, from the lane's address. */
  static __device__ factor<T> load(unsigned lane, int i, int k) {
    factor<T> f;
    if (ALONG) load_matrices_transposed((lane ^ (i * 32)) + k * 16 * layout::LINE, f.v);
    else load_matrices((lane ^ (k * 32)) + i * 16 * layout::LINE, f.v);
    return f;
  }
};

/* Of float there are no matrix loads: it is read from the tile of mma.cuh, which lies the same way. */
template <int SIDE, bool RIGHT>
struct panel_tile<float, SIDE, RIGHT, RIGHT> : panel_lines<float, SIDE, RIGHT> {
  typedef panel_lines<float, SIDE, RIGHT> layout;
  static __device__ unsigned lane(int first) { return first * (RIGHT ? (int)sizeof(float) : layout::LINE); }
  static __device__ factor<float> load(unsigned lane, int i, int k) {
    const tile<float, layout::WIDTH> t = {lane};
    return RIGHT ? t.right(16 * k, 16 * i) : t.left(16 * i, 16 * k);
  }
};

/* Of a matrix whose sides are whole chunks, from its element `start` on. */
template <typename T, int SIDE, bool RIGHT, bool ALONG>
struct matrix_panel : panel_tile<T, SIDE, RIGHT, ALONG> {
  typedef panel_lines<T, SIDE, ALONG> layout;
  const T *from;    /* this thread's first chunk of the next tile … */
  int64_t step;     /* … and the way to the next, AT_ONCE lines down */
  int64_t next;     /* and to the next tile */
  int lines, width; /* that are left from there on */
  unsigned to;

  __device__ matrix_panel(const T *start, int64_t side_stride, int64_t term_stride, int64_t side, int terms) {
    const int line = threadIdx.x / layout::CHUNKS, chunk = threadIdx.x % layout::CHUNKS;
    const int most = (int)min(side, (int64_t)SIDE);
    const int64_t stride = ALONG ? term_stride : side_stride;
    from = start + line * stride + chunk * layout::N;
    step = layout::AT_ONCE * stride;
    next = layout::DEPTH * term_stride;
    lines = (ALONG ? terms : most) - line;
    width = (ALONG ? most : terms) - chunk * layout::N;
    to = layout::place(line, chunk);
  }

  __device__ void fetch(unsigned tile) {
    UNROLLED(i, layout::COUNT)
      copy_pack(tile + to + i * layout::AT_ONCE * layout::LINE, from + i * step,
                width > 0 && i * layout::AT_ONCE < lines ? 16 : 0);
    from += next;
    (ALONG ? lines : width) -= layout::DEPTH;
  }
};

/* Sums of `count` tiles, handed to finish(row, col, sum of two columns) with places within the block's tile; all of its
 * ROWS x COLS, also those beyond a matrix. memory is the block's, aligned to 1024 bytes. float is multiplied as TF32.
 *
 * Eight warps have 64 x OWN results each, two warps below each other and four side by side; a warp's sums are in its
 * registers, in the accumulators' layout (mma.cuh). Tiles come STAGES deep through shared memory, a stage being the
 * left panel and then the right one; of a tile in turn, the factors of the next 16 terms are read while those before
 * are multiplied. */
template <typename T, typename LEFT, typename RIGHT, typename F>
__device__ inline void multiply_panels(LEFT &left, RIGHT &right, int count, char *memory, F finish) {
  enum { STAGES = TFU_PANEL_STAGES, STEPS = TFU_PANEL_DEPTH(sizeof(T)) / 16, HIGH = 64 };
  enum { DOWN = TFU_PANEL_ROWS / HIGH, WARPS = TFU_THREADS / 32, OWN = TFU_PANEL_COLS(sizeof(T)) / (WARPS / DOWN) };
  enum { STAGE = LEFT::BYTES + RIGHT::BYTES };
  static_assert(STAGES * STAGE == TFU_PANEL_SHARED(sizeof(T)), "what is launched has this much shared memory");
  const int warp = threadIdx.x / 32, row = warp % DOWN * HIGH, col = warp / DOWN * OWN;
  const unsigned begin = shared_address(memory), end = begin + STAGES * STAGE;
  const unsigned left_lane = LEFT::lane(row), right_lane = LEFT::BYTES + RIGHT::lane(col);

  unsigned reading = begin, writing = begin;
  const auto next_stage = [&](unsigned stage) { return stage + STAGE == end ? begin : stage + STAGE; };
  const auto fetch = [&](bool more) {
    if (more) left.fetch(writing), right.fetch(writing + LEFT::BYTES);
    close_copies();
    writing = next_stage(writing);
  };
  float sum[HIGH / 16][OWN / 8][4] = {};
  factor<T> l[2][HIGH / 16], r[2][OWN / 16]; /* of these terms and of the next */
  const auto load = [&](int which, int k) {
    UNROLLED(i, HIGH / 16) l[which][i] = LEFT::load(reading + left_lane, i, k);
    UNROLLED(i, OWN / 16) r[which][i] = RIGHT::load(reading + right_lane, i, k);
  };

  for (int i = 0; i < STAGES - 1; i++) fetch(i < count);
  wait_for_copies<STAGES - 2>();
  __syncthreads();
  load(0, 0);
  ONCE
  for (int tile = 0; tile < count; tile++) {
    UNROLLED(k, STEPS) {
      if (k == STEPS - 1) { /* the last factors of this tile are read: it may go, and the next must be there */
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        reading = next_stage(reading);
      }
      load((k + 1) % 2, (k + 1) % STEPS);
      if (k == 0) fetch(tile + STAGES - 1 < count);
      UNROLLED(i, HIGH / 16 * OWN / 16) {
        const int m = i / (OWN / 16), n = i % (OWN / 16);
        multiply_add<T>(sum[m][2 * n], sum[m][2 * n + 1], l[k % 2][m], r[k % 2][n], true);
      }
    }
  }
  /* Through shared memory, where a warp has room of its own for its sums: their rows are then finished one after the
   * other, by a loop that is short, and neighbours write side by side. Lines are LINE apart, so that eight of them
   * begin in different banks. */
  enum { LINE = OWN + 8, ACROSS = OWN / 2, AT_ONCE = 32 / ACROSS };
  static_assert(WARPS * HIGH * LINE * (int)sizeof(float) <= STAGES * STAGE, "all warps' sums must fit");
  wait_for_copies<0>();
  __syncthreads(); /* all factors have been read */
  float *const sums = (float *)memory + warp * HIGH * LINE;
  UNROLLED(i, HIGH / 8 * OWN / 8) { /* rows 8 apart; see mma.cuh */
    const int r = i / (OWN / 8), n = i % (OWN / 8);
    *(float2 *)(sums + (8 * r + lane_id() / 4) * LINE + 8 * n + lane_id() % 4 * 2) =
        make_float2(sum[r / 2][n][r % 2 * 2], sum[r / 2][n][r % 2 * 2 + 1]);
  }
  __syncwarp();
  const int c = 2 * (lane_id() % ACROSS);
  _Pragma("unroll 4") for (int r = lane_id() / ACROSS; r < HIGH; r += AT_ONCE) {
    const float2 v = *(const float2 *)(sums + r * LINE + c);
    const float two[2] = {v.x, v.y};
    finish(row + r, col + c, two);
  }
}
#endif
