/* Products of few rows with kernels of 8 and 4 bits (few_rows.h), in tiles whose bytes are a lane's own part of the
 * factors of tensor cores (quantized_kernel.h): a stream of memory as few_rows.cu is one, with half or a quarter of the
 * bytes.
 *
 * A block has 64 columns; its warps take units of 128 rows in turn. Of a gated unit half of the warps have the columns
 * of one kernel, half those of the other. Weights are the left factor, so that eight rows of x are one instruction's
 * columns. They come through rings in shared memory, by asynchronous copies, which for most kernels have begun before
 * the kernels that run before this one have ended. The block's rows of x are put into shared memory once, normed, and
 * where that is asked for rounded to whole numbers, in the order of right factors (few_rows_tiled_x.cuh).
 *
 * The codes become numbers of 16 bits in registers by a few logical instructions, without a conversion: of 4 bits in
 * bfloat16 they are the last digits of 128 + code, and 128 is subtracted from the sums. For that, and for what each
 * column subtracts from its codes (zero), the sum of x is taken along: one more product, with a factor of ones. Where a
 * group of rows ends, the sums are scaled and join those of other groups:
 *
 *   sum += scale * (part - (zero + 128) * sum of x)
 *
 * Rows that were rounded are bytes, as the codes are: their products are whole numbers, and exact.
 *
 * Which warp sums what depends on the kernels' sizes alone. */
#include "kernels/products/few_rows_tiled_x.cuh"
#include "kernels/products/tile_words.cuh"

#if __CUDA_ARCH__ >= 900

/* A warp's tiles on their way from memory (prefetch): each lane has its own part of them, which no other reads. */
template <int N, int BITS, bool WHOLE>
struct tile_ring {
  enum { BYTES = FEW_ROWS_TILED_RING(N, WHOLE), TILE = FEW_ROWS_TILED_TILE(BITS), DEPTH = BYTES / TILE };
  unsigned at; /* this lane's part of the first */

  __device__ void load(int slot, const int4 *from) const {
    UNROLLED(i, BITS / 4) copy_pack(at + slot * TILE + i * 512, from + 32 * i);
  }
  __device__ tile_words<BITS> read(int slot) const {
    tile_words<BITS> words;
    UNROLLED(i, BITS / 4) {
      const int4 v = load_shared(at + slot * TILE + i * 512);
      words.v[4 * i] = v.x, words.v[4 * i + 1] = v.y, words.v[4 * i + 2] = v.z, words.v[4 * i + 3] = v.w;
    }
    return words;
  }
};

/* What a lane has of a group's scales and zeros: those of columns 16 t + g and 16 t + g + 8. */
template <typename T>
struct group_numbers {
  unsigned v[2][2]; /* [scale or zero][column], as they lie in memory */

  __device__ float value(int what, int column, int wide) const {
    return wide ? __uint_as_float(v[what][column]) : pair_of<T>::widen(v[what][column]).x;
  }
};

/* A block's columns of one kernel, and its scales. */
template <typename T, int BITS>
struct tiled_kernel {
  const int4 *codes; /* this lane's part of the first tile */
  const char *scale; /* of its first column, in the first group */
  int second, row;   /* bytes from there to its second column; bytes of a row of scales */
  int tiles, last_step, shift, wide;

  __device__ tiled_kernel(const few_rows_args &a, const few_rows_product &p, int64_t first) {
    const int size = a.wide ? 4 : 2;
    const int64_t column = min(first + lane_id() % 4 * 16 + lane_id() / 4, p.outputs - 1);
    tiles = (int)(a.inputs / 16), last_step = (int)((a.inputs - 1) / STEP), shift = a.group_shift, wide = a.wide;
    codes = (const int4 *)p.kernel + first / COLUMNS * tiles * (8 * BITS) + lane_id();
    scale = (const char *)p.scale + column * size;
    second = (int)(min(column + 8, p.outputs - 1) - column) * size;
    row = (int)p.outputs * size;
  }
  __device__ const int4 *tile(int i) const { return codes + (int64_t)i * (8 * BITS); }
  /* Those of the group that a step is of. */
  __device__ void load(group_numbers<T> &numbers, int step) const {
    const char *from = scale + (int64_t)(min(step, last_step) >> shift) * 2 * row;
    UNROLLED(i, 4) {
      const char *at = from + (i / 2 ? row : 0) + (i % 2 ? second : 0);
      numbers.v[i / 2][i % 2] = wide ? __ldg((const unsigned *)at) : __ldg((const unsigned short *)at);
    }
  }
};

template <bool WHOLE>
struct sum_of {
  typedef float type;
};
template <>
struct sum_of<true> {
  typedef int type;
};

/* A warp's sums of 8 * N rows of x within a group; of rows that were rounded, in whole numbers. */
template <typename T, int N, int BITS, bool WHOLE>
struct group_sums {
  typedef typename tiled_x<T, N, WHOLE>::factor factor;
  typedef typename sum_of<WHOLE>::type sum;
  enum { MAGIC = WHOLE ? 0 : codes<T, BITS>::MAGIC };
  sum part[N][FACTORS][4] = {}, ones[N][4] = {};

  /* Half of a step's factors of x. */
  __device__ void add(const tile_words<BITS> &words, const factor (&x)[N], int half) {
    if constexpr (WHOLE) {
      const unsigned one[2] = {0x01010101u, 0x01010101u};
      UNROLLED(n, N) multiply(ones[n], one, half ? x[n].y : x[n].x);
      UNROLLED(i, FACTORS) {
        unsigned left[2];
        words.left(i, left);
        UNROLLED(n, N) multiply(part[n][i], left, half ? x[n].y : x[n].x);
      }
    } else {
      const unsigned one[4] = {codes<T, BITS>::ONES, codes<T, BITS>::ONES, codes<T, BITS>::ONES, codes<T, BITS>::ONES};
      UNROLLED(n, N) multiply(ones[n], one, half ? x[n].z : x[n].x, half ? x[n].w : x[n].y, T());
      UNROLLED(i, FACTORS) {
        unsigned left[4];
        words.template left<T>(i, left);
        UNROLLED(n, N) multiply(part[n][i], left, half ? x[n].z : x[n].x, half ? x[n].w : x[n].y, T());
      }
    }
  }
  /* sum += scale * (part - (zero + MAGIC) * ones), where ones has the sums of x; and both begin anew. */
  __device__ void close(float (&all)[N][FACTORS][4], const group_numbers<T> &numbers, int wide) {
    float by[2], zero[2];
    UNROLLED(c, 2) {
      by[c] = numbers.value(0, c, wide);
      zero[c] = -(numbers.value(1, c, wide) + MAGIC);
    }
    UNROLLED(i, FACTORS) {
      UNROLLED(c, 2) { /* column 16 i + 8 c + g */
        const int from = (lane_id() & ~3) + i;
        const float b = __shfl_sync(0xffffffffu, by[c], from), z = __shfl_sync(0xffffffffu, zero[c], from);
        UNROLLED(n, N) {
          UNROLLED(e, 2) {
            float &s = all[n][i][2 * c + e];
            sum &p = part[n][i][2 * c + e];
            s = fmaf(b, fmaf(z, (float)ones[n][e], (float)p), s);
            p = 0;
          }
        }
      }
    }
    UNROLLED(n, N) {
      UNROLLED(i, 4) ones[n][i] = 0;
    }
  }
};

/* Of the last unit, which x has fewer columns of, tiles that are not there stay as they were: all codes are finite, and
 * they are multiplied by zeros. */
template <typename T, int N, int BITS, bool WHOLE>
__device__ inline void few_rows_tiled(const few_rows_args &a) {
  typedef tile_ring<N, BITS, WHOLE> ring_of;
  enum { DEPTH = ring_of::DEPTH };
  extern __shared__ __align__(1024) char memory[];
  __shared__ row_numbers<8 * N> numbers_of_rows;
  const int slices = a.gated ? FEW_ROWS_WARPS / 2 : FEW_ROWS_WARPS, warp = threadIdx.x / 32;
  const int side = warp / slices, slice = warp % slices, split = (int)(blockIdx.x % (unsigned)a.splits);
  const unsigned row_blocks = (unsigned)(a.rows + 8 * N - 1) / (8 * N), block = blockIdx.x / (unsigned)a.splits;
  const int first_row = (int)(block % row_blocks) * 8 * N, units = (int)((a.inputs + UNIT - 1) / UNIT);
  const int begin = (int)((int64_t)units * split / a.splits), end = (int)((int64_t)units * (split + 1) / a.splits);
  const int held = (units + a.splits - 1) / a.splits;
  const few_rows_tile tile(a, block / row_blocks, COLUMNS);
  const tiled_kernel<T, BITS> kernel(a, a.of[tile.product + side], tile.first);
  const unsigned shared = shared_address(memory);
  const tiled_x<T, N, WHOLE> x = {shared};
  const ring_of ring = {shared + FEW_ROWS_TILED_X(N, held, WHOLE) + warp * ring_of::BYTES + lane_id() * 16};
  /* Tile i of this warp's units, counted from `unit` on, where it is one. */
  const auto ask = [&](int unit, int i, int slot) {
    const int from = unit + i / TILES * slices;
    if (from < end && from * TILES + i % TILES < kernel.tiles) ring.load(slot, kernel.tile(from * TILES + i % TILES));
  };
  int unit = begin + slice, base = 0; /* base: the slot of the unit's first tile */
  UNROLLED(i, DEPTH) {
    ask(unit, i, i);
    if (i % 2) close_copies();
  }
  group_numbers<T> numbers = {};
  if (unit < end) kernel.load(numbers, unit * STEPS);
  if (unit + DEPTH / TILES * slices >= end) start_those_after();
  if (WHOLE && a.splits > 1) {
    if (threadIdx.x == 0) {
      open_barrier(shared_address(&numbers_of_rows.arrival), 1);
      publish_barriers();
    }
    enter_cluster();
  }
  if (a.gamma) expect_gamma(a, WHOLE ? 0 : begin, WHOLE ? units : end - begin);
  if (WHOLE && a.splits > 1) wait_for_cluster();
  wait_for_those_before();
  const int mine = split * THREADS + threadIdx.x;
  const float early = few_rows_result<T>(a, tile, first_row + mine / COLUMNS, mine % COLUMNS).residual(a);
  x.load(a, first_row, begin, end - begin, numbers_of_rows);
  __syncthreads();
  float sum[N][FACTORS][4] = {};
  group_sums<T, N, BITS, WHOLE> group;
  ONCE
  for (; unit < end; unit += slices) {
    const int next = unit + slices;
    UNROLLED(s, STEPS) {
      typename tiled_x<T, N, WHOLE>::factor factors[N];
      UNROLLED(n, N) factors[n] = x.factors((unit - begin) * STEPS + s, n);
      wait_for_copies<DEPTH / 2 - 1>();
      UNROLLED(half, 2) group.add(ring.read(base + (2 * s + half) % DEPTH), factors, half);
      __syncwarp();
      UNROLLED(half, 2) ask(unit, 2 * s + half + DEPTH, base + (2 * s + half) % DEPTH);
      close_copies();
      /* A group of less than a unit ends within it. */
      const int step = unit * STEPS + s;
      if (s + 1 < STEPS ? kernel.shift < (s % 2 ? 2 : 1)
                        : next >= end || step >> kernel.shift != next * STEPS >> kernel.shift) {
        group.close(sum, numbers, kernel.wide);
        if (s + 1 < STEPS || next < end) kernel.load(numbers, s + 1 < STEPS ? step + 1 : next * STEPS);
      }
    }
    if (unit + DEPTH / TILES * slices < end && next + DEPTH / TILES * slices >= end) start_those_after();
    if (DEPTH > TILES) base ^= TILES;
  }
  const auto finish = [&](auto &parts) {
    static_assert(sizeof(parts) <= FEW_ROWS_TILED_SHARED(N, 1, WHOLE), "sums have the place of x and rings");
    __syncthreads();
    UNROLLED(n, N) {
      UNROLLED(i, 4 * FACTORS) /* column 16 i + 8 c + g of rows 8 n + 2 t, 8 n + 2 t + 1 */
        parts
            .of[slice][8 * n + lane_id() % 4 * 2 + i % 2][side * COLUMNS + i / 4 * 16 + i % 4 / 2 * 8 + lane_id() / 4] =
            sum[n][i / 4][i % 4];
    }
    if (!WHOLE && a.gamma && threadIdx.x < slices * 8 * N) {
      float &to = parts.of[threadIdx.x / (8 * N)][threadIdx.x % (8 * N)][parts.SQUARES];
      to = 0;
      for (int w = threadIdx.x / (8 * N); w < FEW_ROWS_WARPS; w += slices)
        to += numbers_of_rows.found[w][threadIdx.x % (8 * N)].squares;
    }
    join<T>(a, tile, parts, first_row, &early, WHOLE ? numbers_of_rows.back : nullptr);
  };
  if (a.gated) finish(*(few_rows_parts<2 * COLUMNS, FEW_ROWS_WARPS / 2, 8 * N> *)memory);
  else finish(*(few_rows_parts<COLUMNS, FEW_ROWS_WARPS, 8 * N> *)memory);
}
#define FEW_ROWS_TILED_OF_(rows, bits, tag, T)                                                                         \
  TFU_STAMP((THREADS, 2), few_rows_tiled_##rows##_##bits##_##tag, few_rows_args, few_rows_tiled<T, rows, bits, false>) \
  TFU_STAMP((THREADS, 2), few_rows_tiled_##rows##_##bits##_whole_##tag, few_rows_args,                                 \
            few_rows_tiled<T, rows, bits, true>)
#else /* there are no clusters: it is not served */
__device__ inline void not_here(const few_rows_args &) {}
#define FEW_ROWS_TILED_OF_(rows, bits, tag, T)                                     \
  TFU_STAMP((32), few_rows_tiled_##rows##_##bits##_##tag, few_rows_args, not_here) \
  TFU_STAMP((32), few_rows_tiled_##rows##_##bits##_whole_##tag, few_rows_args, not_here)
#endif
TFU_HALVES(FEW_ROWS_TILED_OF_, 1, 8)
TFU_HALVES(FEW_ROWS_TILED_OF_, 1, 4)
TFU_HALVES(FEW_ROWS_TILED_OF_, 2, 8)
TFU_HALVES(FEW_ROWS_TILED_OF_, 2, 4)
