/* Products of few rows with kernels of 8 and 4 bits (few_rows.h), in tiles whose bytes are a lane's own part of the
 * factors of tensor cores (quantized_kernel.h): a stream of memory as few_rows.cu is one, with half or a quarter of the
 * bytes.
 *
 * A block has 64 columns; its warps take units of 128 rows in turn. Of a gated unit half of the warps have the columns
 * of one kernel, half those of the other. Weights are the left factor, so that eight rows of x are one instruction's
 * columns; they come from memory straight into registers, some tiles ahead (software pipelining), the first before the
 * kernels that run before this one have ended. The block's rows of x are put into shared memory once, normed, in the
 * order of right factors.
 *
 * The codes become numbers of 16 bits in registers by a few logical instructions, without a conversion: of 4 bits in
 * bfloat16 they are the last digits of 128 + code, and 128 is subtracted from the sums. For that, and for what each
 * column subtracts from its codes (zero), the sum of x is taken along: one more product, with a factor of ones. Where a
 * group of rows ends, the sums are scaled and join those of other groups:
 *
 *   sum += scale * (part - (zero + 128) * sum of x)
 *
 * Which warp sums what depends on the kernels' sizes alone. */
#include "kernels/products/few_rows.cuh"
#include "kernels/products/tile_words.cuh"

#if __CUDA_ARCH__ >= 900
enum {
  UNIT = FEW_ROWS_TILED_UNIT,
  STEP = FEW_ROWS_TILED_STEP,
  STEPS = UNIT / STEP,
  COLUMNS = FEW_ROWS_TILED_COLUMNS,
  TILES = UNIT / 16, /* of a unit */
  FACTORS = COLUMNS / 16
};

/* A tile of the kernel, on its way into registers. */
template <int BITS>
struct tile_ahead : tile_words<BITS> {
  /* Where it is one: otherwise v stays what it is. */
  __device__ void load(const int4 *from, bool is_one) {
    UNROLLED(i, BITS / 4)
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
          "@p ld.global.L1::no_allocate.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
          : "+r"(this->v[4 * i]), "+r"(this->v[4 * i + 1]), "+r"(this->v[4 * i + 2]), "+r"(this->v[4 * i + 3])
          : "l"(from + 32 * i), "r"((int)is_one)
          : "memory");
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
  __device__ const int4 *unit(int unit) const { return codes + (int64_t)unit * (TILES * 8 * BITS); }
  /* Those of the group that a step is of. */
  __device__ void load(group_numbers<T> &numbers, int step) const {
    const char *from = scale + (int64_t)(min(step, last_step) >> shift) * 2 * row;
    UNROLLED(i, 4) {
      const char *at = from + (i / 2 ? row : 0) + (i % 2 ? second : 0);
      numbers.v[i / 2][i % 2] = wide ? __ldg((const unsigned *)at) : __ldg((const unsigned short *)at);
    }
  }
};

/* Rows of x in shared memory as right factors: lane 4 g + t has of row g columns 2 t, 2 t + 1 and 8 more, of the two
 * halves of a step side by side. Places are permuted (swizzle), so that eight steps of a row lie in different banks. */
template <typename T, int N>
struct tiled_x {
  unsigned at;

  __device__ unsigned place(int step, int n, int lane) const {
    return at + ((step * N + n) * 32 + (lane ^ (step & 7))) * 16;
  }
  /* What load() reads of gamma, into the second-level cache. */
  __device__ void expect(const few_rows_args &a, int first, int units) const {
    for (int k = 8 * threadIdx.x; k < units * UNIT; k += 8 * THREADS) {
      const int64_t column = (int64_t)first * UNIT + k;
      if (column < a.inputs) asm volatile("prefetch.global.L2 [%0];" ::"l"(a.gamma + column));
    }
  }
  __device__ int4 factors(int step, int n) const { return load_shared(place(step, n, lane_id())); }

  /* Units from `first` on, of some rows. Each thread has the same columns of all rows; those beyond the last are zeros.
   * `squares` is those of a warp's columns. */
  __device__ void load(const few_rows_args &a, int first_row, int first, int units, float (&squares)[8 * N]) const {
    enum { AT_ONCE = 8 }; /* rows on their way */
    const int rows = min(8 * N, a.rows - first_row);
    for (int from = 0; from < units * UNIT; from += 8 * THREADS) {
      const int k = from + 8 * threadIdx.x, step = k / STEP;
      const int64_t column = (int64_t)first * UNIT + k;
      const bool is_one = k < units * UNIT && column < a.inputs;
      const T *x = (const T *)a.x + first_row * a.inputs + column;
      float gamma[8] = {};
      if (a.gamma && is_one) {
        UNROLLED(i, 2) {
          const float4 four = *(const float4 *)(a.gamma + column + 4 * i);
          gamma[4 * i] = four.x, gamma[4 * i + 1] = four.y, gamma[4 * i + 2] = four.z, gamma[4 * i + 3] = four.w;
        }
      }
      ONCE
      for (int row = 0; row < rows; row += AT_ONCE) {
        int4 v[AT_ONCE];
        UNROLLED(r, AT_ONCE) {
          v[r] = make_int4(0, 0, 0, 0);
          if (is_one && row + r < rows) v[r] = *(const int4 *)(x + (row + r) * a.inputs);
        }
        UNROLLED(r, AT_ONCE) {
          if (row + r < rows) {
            if (a.gamma) v[r] = norm(v[r], gamma, squares[row + r], from == 0);
            if (k < units * UNIT) {
              const unsigned words[4] = {(unsigned)v[r].x, (unsigned)v[r].y, (unsigned)v[r].z, (unsigned)v[r].w};
              UNROLLED(t, 4) store_word(place(step, row / 8, 4 * (row % 8 + r) + t) + k % STEP / 8 * 4, words[t]);
            }
          }
        }
      }
    }
  }

 private:
  static __device__ int4 norm(int4 bits, const float (&gamma)[8], float &squares, bool begins) {
    float v[8], sum = 0;
    widen_pack<T>(bits, v);
    UNROLLED(i, 8) sum = fmaf(v[i], v[i], sum), v[i] *= gamma[i];
    UNROLLED(i, 5) sum += __shfl_xor_sync(0xffffffffu, sum, 1 << i);
    if (lane_id() == 0) squares = (begins ? 0 : squares) + sum;
    return narrow_pack<T>(v);
  }
};

/* A warp's sums of 8 * N rows of x within a group. */
template <typename T, int N, int BITS>
struct group_sums {
  float part[N][FACTORS][4] = {}, ones[N][4] = {};

  /* Half of a step's factors of x. */
  __device__ void add(const tile_words<BITS> &words, const int4 (&x)[N], int half) {
    const unsigned one[4] = {codes<T, BITS>::ONES, codes<T, BITS>::ONES, codes<T, BITS>::ONES, codes<T, BITS>::ONES};
    UNROLLED(n, N) multiply(ones[n], one, half ? x[n].z : x[n].x, half ? x[n].w : x[n].y, T());
    UNROLLED(i, FACTORS) {
      unsigned left[4];
      words.template left<T>(i, left);
      UNROLLED(n, N) multiply(part[n][i], left, half ? x[n].z : x[n].x, half ? x[n].w : x[n].y, T());
    }
  }
  /* sum += scale * (part - (zero + MAGIC) * ones), where ones has the sums of x; and both begin anew. */
  __device__ void close(float (&sum)[N][FACTORS][4], const group_numbers<T> &numbers, int wide) {
    float by[2], zero[2];
    UNROLLED(c, 2) {
      by[c] = numbers.value(0, c, wide);
      zero[c] = -(numbers.value(1, c, wide) + codes<T, BITS>::MAGIC);
    }
    UNROLLED(i, FACTORS) {
      UNROLLED(c, 2) { /* column 16 i + 8 c + g */
        const int from = (lane_id() & ~3) + i;
        const float b = __shfl_sync(0xffffffffu, by[c], from), z = __shfl_sync(0xffffffffu, zero[c], from);
        UNROLLED(n, N) {
          UNROLLED(e, 2) {
            float &s = sum[n][i][2 * c + e], &p = part[n][i][2 * c + e];
            s = fmaf(b, fmaf(z, ones[n][e], p), s);
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
template <typename T, int N, int BITS>
__device__ inline void few_rows_tiled(const few_rows_args &a) {
  enum { AHEAD = 32 / BITS / N }; /* tiles that a warp has on their way: 4 KiB, or half of it beside more sums */
  extern __shared__ __align__(1024) char memory[];
  __shared__ float squares[FEW_ROWS_WARPS][8 * N];
  const int slices = a.gated ? FEW_ROWS_WARPS / 2 : FEW_ROWS_WARPS, warp = threadIdx.x / 32;
  const int side = warp / slices, slice = warp % slices, split = (int)(blockIdx.x % (unsigned)a.splits);
  const unsigned row_blocks = (unsigned)(a.rows + 8 * N - 1) / (8 * N), block = blockIdx.x / (unsigned)a.splits;
  const int first_row = (int)(block % row_blocks) * 8 * N, units = (int)((a.inputs + UNIT - 1) / UNIT);
  const int begin = (int)((int64_t)units * split / a.splits), end = (int)((int64_t)units * (split + 1) / a.splits);
  const few_rows_tile tile(a, block / row_blocks, COLUMNS);
  const tiled_kernel<T, BITS> kernel(a, a.of[tile.product + side], tile.first);
  const tiled_x<T, N> x = {shared_address(memory)};
  tile_ahead<BITS> words[AHEAD];
  group_numbers<T> numbers = {};
  int unit = begin + slice;
  const int4 *from = kernel.unit(unit);
  if (unit < end) {
    UNROLLED(i, AHEAD) words[i].load(from + i * (8 * BITS), unit * TILES + i < kernel.tiles);
    kernel.load(numbers, unit * STEPS);
  } else start_those_after();
  if (a.gamma) x.expect(a, begin, end - begin);
  wait_for_those_before();
  const int mine = split * THREADS + threadIdx.x;
  const float early = few_rows_result<T>(a, tile, first_row + mine / COLUMNS, mine % COLUMNS).residual(a);
  x.load(a, first_row, begin, end - begin, squares[warp]);
  __syncthreads();
  float sum[N][FACTORS][4] = {};
  group_sums<T, N, BITS> group;
  ONCE
  for (; unit < end; unit += slices) {
    const int next = unit + slices, there = kernel.tiles - unit * TILES,
              after = next < end ? kernel.tiles - next * TILES : 0;
    const int4 *const onward = from + slices * (TILES * 8 * BITS);
    if (next >= end) start_those_after();
    UNROLLED(s, STEPS) {
      int4 factors[N];
      UNROLLED(n, N) factors[n] = x.factors((unit - begin) * STEPS + s, n);
      UNROLLED(half, 2) {
        const int i = 2 * s + half, to = (i + AHEAD) % TILES;
        group.add(words[i % AHEAD], factors, half);
        words[i % AHEAD].load((i + AHEAD < TILES ? from : onward) + to * (8 * BITS),
                              to < (i + AHEAD < TILES ? there : after));
        __syncwarp(); /* the compiler would put all loads behind what they are to overlap with */
      }
      /* A group of less than a unit ends within it. */
      const int step = unit * STEPS + s;
      if (s + 1 < STEPS ? kernel.shift < (s % 2 ? 2 : 1)
                        : next >= end || step >> kernel.shift != next * STEPS >> kernel.shift) {
        group.close(sum, numbers, kernel.wide);
        if (s + 1 < STEPS || next < end) kernel.load(numbers, s + 1 < STEPS ? step + 1 : next * STEPS);
      }
    }
    from = onward;
  }
  const auto finish = [&](auto &parts) {
    __syncthreads();
    UNROLLED(n, N) {
      UNROLLED(i, 4 * FACTORS) /* column 16 i + 8 c + g of rows 8 n + 2 t, 8 n + 2 t + 1 */
        parts
            .of[slice][8 * n + lane_id() % 4 * 2 + i % 2][side * COLUMNS + i / 4 * 16 + i % 4 / 2 * 8 + lane_id() / 4] =
            sum[n][i / 4][i % 4];
    }
    if (a.gamma && threadIdx.x < slices * 8 * N) {
      float &to = parts.of[threadIdx.x / (8 * N)][threadIdx.x % (8 * N)][parts.SQUARES];
      to = 0;
      for (int w = threadIdx.x / (8 * N); w < FEW_ROWS_WARPS; w += slices) to += squares[w][threadIdx.x % (8 * N)];
    }
    join<T>(a, tile, parts, first_row, &early);
  };
  if (a.gated) finish(*(few_rows_parts<2 * COLUMNS, FEW_ROWS_WARPS / 2, 8 * N> *)memory);
  else finish(*(few_rows_parts<COLUMNS, FEW_ROWS_WARPS, 8 * N> *)memory);
}
#define FEW_ROWS_TILED_OF_(rows, bits, tag, T) \
  TFU_STAMP((THREADS, 2), few_rows_tiled_##rows##_##bits##_##tag, few_rows_args, few_rows_tiled<T, rows, bits>)
#else /* there are no clusters: it is not served */
__device__ inline void not_here(const few_rows_args &) {}
#define FEW_ROWS_TILED_OF_(rows, bits, tag, T) \
  TFU_STAMP((32), few_rows_tiled_##rows##_##bits##_##tag, few_rows_args, not_here)
#endif
TFU_HALVES(FEW_ROWS_TILED_OF_, 1, 8)
TFU_HALVES(FEW_ROWS_TILED_OF_, 1, 4)
TFU_HALVES(FEW_ROWS_TILED_OF_, 2, 8)
TFU_HALVES(FEW_ROWS_TILED_OF_, 2, 4)
