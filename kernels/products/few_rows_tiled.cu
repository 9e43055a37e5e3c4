/* Products of few rows with kernels of 8 and 4 bits (few_rows.h), in tiles whose bytes are a lane's own part of the
 * factors of tensor cores (quantized_kernel.h): a stream of memory as few_rows.cu is one, with half or a quarter of the
 * bytes.
 *
 * A block has two sides, 64 columns each: neighbours, or the same columns of the two kernels of a gated unit. Four
 * warps have a side, and of its rows a slice each, in stages of 64 rows through a ring of their own. The codes become
 * numbers of 16 bits in registers by a few logical instructions, without a conversion: of 4 bits in bfloat16 they are
 * the last digits of 128 + code, and 128 is subtracted from the sums. For that, and for what each column subtracts from
 * its codes (zero), the sum of x is taken along: one more product, with a factor of ones. Where a group of rows ends,
 * the sums are scaled and join those of other groups:
 *
 *   sum += scale * (part - (zero + 128) * sum of x) */
#include "kernels/products/few_rows.cuh"

#if __CUDA_ARCH__ >= 900
enum { STEP = FEW_ROWS_TILED_STEP, SIDE = FEW_ROWS_TILED_SIDE, SLICES = FEW_ROWS_WARPS / 2, BLOCKS = SIDE / 8 };

/* Two codes of a word, 16 bits apart, as two numbers of T, which are MAGIC too large. */
template <typename T, int BITS>
struct codes;
template <>
struct codes<bf16, 4> {
  enum { MAGIC = 128, ONES = 0x3f803f80 };
  static __device__ unsigned pair(unsigned w, int i) { return (w >> 4 * i & 0x000f000fu) | 0x43004300u; }
};
template <>
struct codes<f16, 4> { /* 1024 + code; of sums that are 1024 times too large, float has too few digits */
  enum { MAGIC = 0, ONES = 0x3c003c00 };
  static __device__ unsigned pair(unsigned w, int i) {
    unsigned y;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(y) : "r"((w >> 4 * i & 0x000f000fu) | 0x64006400u), "r"(0x64006400u));
    return y;
  }
};
template <>
struct codes<bf16, 8> { /* (128 + lower seven bits) - (128 or, where the sign is set, 256) */
  enum { MAGIC = 0, ONES = 0x3f803f80 };
  static __device__ unsigned pair(unsigned w, int i) {
    const unsigned v = w >> 8 * i;
    unsigned y;
    asm("sub.bf16x2 %0, %1, %2;"
        : "=r"(y)
        : "r"((v & 0x007f007fu) | 0x43004300u), "r"((v & 0x00800080u) | 0x43004300u));
    return y;
  }
};
template <>
struct codes<f16, 8> { /* 1024 + 128 + code */
  enum { MAGIC = 0, ONES = 0x3c003c00 };
  static __device__ unsigned pair(unsigned w, int i) {
    unsigned y;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(y) : "r"((w >> 8 * i & 0x00ff00ffu) ^ 0x64806480u), "r"(0x64806480u));
    return y;
  }
};

/* Through the first-level cache: the other side's warp reads the same. */
__device__ inline void copy_shared_pack(unsigned to, const void *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ inline float2 load_two(unsigned at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
  return v;
}
__device__ inline unsigned load_one(unsigned at) {
  unsigned v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

/* A warp's stages, from memory to its ring; they are counted from the kernel's first row. Rows of x beyond the last are
 * whatever lies there: they make results of their own, which nobody reads. */
template <typename T, int M, int BITS>
struct tiled_stages {
  enum {
    TILE = 16 * SIDE * BITS / 8,
    KERNEL = STEP / 16 * TILE,
    X = 16 * M * STEP * 2,
    GAMMA = STEP * 4,
    SCALES = SIDE * 4
  };
  enum { STAGE = FEW_ROWS_TILED_STAGE(M, BITS) };
  const few_rows_args &a;
  const char *kernel, *scale; /* this lane's chunk of the first stage, and of the first group */
  int64_t outputs;
  unsigned ring;
  int end, bytes, scale_bytes; /* bytes: 16, or 0 where there are no such columns */

  __device__ tiled_stages(const few_rows_args &a, const few_rows_tile<2 * SIDE> &tile, int side, int end, unsigned ring)
      : a(a), ring(ring), end(end) {
    const few_rows_product &p = a.of[tile.product + (a.gated ? side : 0)];
    const int64_t first = tile.first + (a.gated ? 0 : side * SIDE);
    outputs = p.outputs;
    bytes = first < outputs ? 16 : 0;
    kernel = (const char *)p.kernel + (bytes ? first / SIDE * (a.inputs / STEP) * KERNEL : 0) + lane_id() * 16;
    /* Of 64 scales and then 64 zeros, 16 bytes each lane, float; of 16 bits for the first half of the lanes. */
    const int size = a.wide ? 4 : 2, chunks = SIDE * size / 16, chunk = lane_id() % chunks;
    const int64_t column = first + chunk * (16 / size);
    scale_bytes = column < outputs && lane_id() < 2 * chunks ? 16 : 0;
    scale = (const char *)p.scale + (scale_bytes ? (lane_id() / chunks * outputs + column) * size : 0);
  }

  __device__ unsigned stage_at(int slot) const { return ring + slot * STAGE; }
  __device__ tile<T, STEP> left(int slot) const { return {stage_at(slot) + KERNEL}; }
  __device__ unsigned gamma_at(int slot) const { return stage_at(slot) + KERNEL + X; }
  __device__ unsigned scales_at(int slot) const { return stage_at(slot) + KERNEL + X + GAMMA; }

  /* Whether the sums are scaled after this stage: it is the last of its group, or of the warp. */
  __device__ bool closes(int stage) const {
    return stage + 1 == end || (stage + 1) >> a.group_shift != stage >> a.group_shift;
  }

  __device__ void load_kernel(int slot, int stage) const {
    const char *from = kernel + (int64_t)stage * KERNEL;
    UNROLLED(i, KERNEL / 512) copy_pack(stage_at(slot) + i * 512 + lane_id() * 16, from + i * 512, bytes);
    if (a.gamma && lane_id() < GAMMA / 16)
      copy_pack(gamma_at(slot) + lane_id() * 16, a.gamma + (int64_t)stage * STEP + lane_id() * 4);
    if (closes(stage)) {
      const int size = a.wide ? 4 : 2, chunks = SIDE * size / 16, lane = (int)lane_id();
      const int64_t group = stage >> a.group_shift;
      if (lane < 2 * chunks)
        copy_pack(scales_at(slot) + lane / chunks * SCALES + lane % chunks * 16,
                  scale + (scale_bytes ? group * 2 * outputs * size : 0), scale_bytes);
    }
  }
  __device__ void load_x(int slot, int stage) const {
    const T *from = (const T *)a.x + lane_id() / 8 * a.inputs + (int64_t)stage * STEP + lane_id() % 8 * 8;
    UNROLLED(i, 4 * M) {
      const int row = 4 * i + lane_id() / 8;
      if (row < a.rows) copy_shared_pack(left(slot).chunk(row, lane_id() % 8), from + 4 * i * a.inputs);
    }
  }

  /* f, columns k .. k + 15 of x, times gamma; adds the squares of f to those of rows g and g + 8. */
  __device__ void norm(factor<T> &f, int slot, int k, float (&squares)[2]) const {
    UNROLLED(h, 2) { /* f.v[2 h + r] has columns 8 h + 2 t, 8 h + 2 t + 1 of row g + 8 r */
      const float2 by = load_two(gamma_at(slot) + (k + h * 8 + lane_id() % 4 * 2) * 4);
      UNROLLED(r, 2) {
        const float2 v = pair_of<T>::widen(f.v[2 * h + r]);
        squares[r] = fmaf(v.x, v.x, fmaf(v.y, v.y, squares[r]));
        f.v[2 * h + r] = pair_of<T>::narrow(v.x * by.x, v.y * by.y);
      }
    }
  }

  /* part += l x rows 16 h .. 16 h + 15 of the stage's kernel. */
  __device__ void multiply_tile(float (&part)[M][BLOCKS][4], const factor<T> (&l)[M], int slot, int h) const {
    UNROLLED(piece, BITS / 4) {
      const int4 bits = load_shared(stage_at(slot) + h * TILE + piece * 512 + lane_id() * 16);
      const unsigned words[4] = {(unsigned)bits.x, (unsigned)bits.y, (unsigned)bits.z, (unsigned)bits.w};
      UNROLLED(i, 4) {
        UNROLLED(c, 8 / BITS) { /* blocks of eight columns that are in one word */
          const unsigned upper = codes<T, BITS>::pair(words[i], 2 * c),
                         lower = codes<T, BITS>::pair(words[i], 2 * c + 1);
          UNROLLED(m, M) multiply(part[m][BITS == 8 ? 4 * piece + i : 2 * i + c], l[m].v, upper, lower, T());
        }
      }
    }
  }

  /* sum += scale * (part - (zero + MAGIC) * ones), where ones has the sums of x; and both begin anew. */
  __device__ void close_group(float (&sum)[M][BLOCKS][4], float (&part)[M][BLOCKS][4], float (&ones)[M][4],
                              int slot) const {
    UNROLLED(b, BLOCKS) {
      const int column = 8 * b + lane_id() % 4 * 2;
      float2 by, zero;
      if (a.wide) by = load_two(scales_at(slot) + column * 4), zero = load_two(scales_at(slot) + SCALES + column * 4);
      else {
        by = pair_of<T>::widen(load_one(scales_at(slot) + column * 2));
        zero = pair_of<T>::widen(load_one(scales_at(slot) + SCALES + column * 2));
      }
      zero.x += codes<T, BITS>::MAGIC, zero.y += codes<T, BITS>::MAGIC;
      UNROLLED(m, M) {
        UNROLLED(r, 2) {
          float(&s)[4] = sum[m][b], (&p)[4] = part[m][b];
          s[2 * r] = fmaf(by.x, fmaf(-zero.x, ones[m][2 * r], p[2 * r]), s[2 * r]);
          s[2 * r + 1] = fmaf(by.y, fmaf(-zero.y, ones[m][2 * r], p[2 * r + 1]), s[2 * r + 1]);
          p[2 * r] = p[2 * r + 1] = 0;
        }
      }
    }
    UNROLLED(m, M) {
      UNROLLED(i, 4) ones[m][i] = 0;
    }
  }
};

/* Sixteen rows of sums, of which each warp has a slice, to y, through shared memory that no copy is on its way to; the
 * squares of x are one more column of the first side. `early` is the residual of the thread's first result. */
template <typename T>
__device__ inline void join_sides(const few_rows_args &a, const few_rows_tile<2 * SIDE> &tile,
                                  const float (&sum)[BLOCKS][4], const float (&squares)[2], int first_row, char *memory,
                                  float early) {
  enum { SQUARES = SIDE, PITCH = SIDE + 4 };
  float(*const part)[16][PITCH] = (float(*)[16][PITCH])memory;
  const int g = lane_id() / 4, t = lane_id() % 4, warp = threadIdx.x / 32,
            split = (int)(blockIdx.x % (unsigned)a.splits);
  const int rows = min(16, a.rows - first_row), columns = a.gated ? SIDE : 2 * SIDE;
  __syncthreads();
  UNROLLED(n, BLOCKS) {
    UNROLLED(r, 2) {
      if (g + 8 * r < rows)
        *(float2 *)&part[warp][g + 8 * r][8 * n + 2 * t] = make_float2(sum[n][2 * r], sum[n][2 * r + 1]);
    }
  }
  UNROLLED(r, 2) {
    float all = squares[r] + __shfl_xor_sync(0xffffffffu, squares[r], 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    if (t == 0) part[warp][g + 8 * r][SQUARES] = all;
  }
  __syncthreads();
  const auto join_slices = [&](int side, int row, int c) {
    float v = part[side * SLICES][row][c];
    UNROLLED(w, SLICES - 1) v += part[side * SLICES + w + 1][row][c];
    part[side * SLICES][row][c] = v;
  };
  for (int i = threadIdx.x; i < rows * 2 * SIDE; i += THREADS) join_slices(i / SIDE % 2, i / (2 * SIDE), i % SIDE);
  if (a.gamma && threadIdx.x < rows) join_slices(0, threadIdx.x, SQUARES);
  if (a.splits > 1) cluster_barrier();
  else __syncthreads();
  const auto total = [&](int side, int row, int c) {
    const float *mine = &part[side * SLICES][row][c];
    return a.splits > 1 ? sum_over_cluster(mine, a.splits) : *mine;
  };
  for (int i = split * THREADS + threadIdx.x; i < rows * columns; i += a.splits * THREADS) {
    const int row = i / columns, c = i % columns;
    float scale = a.gamma ? rsqrtf(total(0, row, SQUARES) / (float)a.inputs + a.epsilon) : 1;
    if (a.row_scale) scale *= a.row_scale[first_row + row];
    const few_rows_result<T, 2 * SIDE> result(a, tile, first_row + row, c);
    result.finish(a, total(c / SIDE, row, c % SIDE) * scale, a.gated ? total(1, row, c) * scale : 0,
                  first_row == 0 && i < a.splits * THREADS ? early : result.residual(a));
  }
  if (a.splits > 1) leave_cluster();
}

/* The groups of copies: as in few_rows.cu. */
template <typename T, int M, int BITS>
__device__ inline void few_rows_tiled(const few_rows_args &a) {
  extern __shared__ __align__(1024) char memory[];
  const int warp = threadIdx.x / 32, side = warp / SLICES, slice = warp % SLICES;
  const int split = (int)(blockIdx.x % (unsigned)a.splits), steps = (int)(a.inputs / STEP);
  const few_rows_tile<2 * SIDE> tile(a, blockIdx.x / (unsigned)a.splits);
  const int begin = (int)((int64_t)steps * (split * SLICES + slice) / (a.splits * SLICES));
  const int end = (int)((int64_t)steps * (split * SLICES + slice + 1) / (a.splits * SLICES));
  const tiled_stages<T, M, BITS> ring(a, tile, side, end,
                                      shared_address(memory) + warp * FEW_ROWS_DEPTH * FEW_ROWS_TILED_STAGE(M, BITS));
  const int first = split * THREADS + threadIdx.x, columns = a.gated ? SIDE : 2 * SIDE;
  UNROLLED(i, FEW_ROWS_DEPTH) {
    if (begin + i < end) ring.load_kernel(i, begin + i);
    close_copies();
  }
  wait_for_those_before();
  UNROLLED(i, FEW_ROWS_DEPTH) {
    if (begin + i < end) ring.load_x(i, begin + i);
    close_copies();
  }
  const float early = few_rows_result<T, 2 * SIDE>(a, tile, first / columns, first % columns).residual(a);
  float sum[M][BLOCKS][4] = {}, part[M][BLOCKS][4] = {}, ones[M][4] = {}, squares[M][2] = {};
  int slot = 0;
  ONCE
  for (int s = begin; s < end; s++) {
    wait_for_copies<FEW_ROWS_DEPTH - 1>();
    __syncwarp();
    UNROLLED(h, STEP / 16) {
      factor<T> l[M];
      UNROLLED(m, M) {
        l[m] = ring.left(slot).left(16 * m, 16 * h);
        if (a.gamma) ring.norm(l[m], slot, 16 * h, squares[m]);
        multiply(ones[m], l[m].v, codes<T, BITS>::ONES, codes<T, BITS>::ONES, T());
      }
      ring.multiply_tile(part, l, slot, h);
    }
    if (ring.closes(s)) ring.close_group(sum, part, ones, slot);
    __syncwarp();
    const int next = s + FEW_ROWS_DEPTH;
    if (next < end) ring.load_kernel(slot, next), ring.load_x(slot, next);
    else start_those_after();
    close_copies();
    slot = slot + 1 < FEW_ROWS_DEPTH ? slot + 1 : 0;
  }
  UNROLLED(m, M) {
    if (16 * m < a.rows) join_sides<T>(a, tile, sum[m], squares[m], 16 * m, memory, early);
  }
}
#define FEW_ROWS_TILED_OF_(tiles, bits, tag, T) \
  TFU_STAMP((THREADS), few_rows_tiled_##tiles##_##bits##_##tag, few_rows_args, few_rows_tiled<T, tiles, bits>)
#else /* there are no clusters: it is not served */
__device__ inline void not_here(const few_rows_args &) {}
#define FEW_ROWS_TILED_OF_(tiles, bits, tag, T) \
  TFU_STAMP((32), few_rows_tiled_##tiles##_##bits##_##tag, few_rows_args, not_here)
#endif
TFU_HALVES(FEW_ROWS_TILED_OF_, 1, 8)
TFU_HALVES(FEW_ROWS_TILED_OF_, 1, 4)
TFU_HALVES(FEW_ROWS_TILED_OF_, 2, 8)
TFU_HALVES(FEW_ROWS_TILED_OF_, 2, 4)
