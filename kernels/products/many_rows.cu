/* Products of many rows with a kernel of 8 or 4 bits in tiles (quantized_kernel.h), for GPUs that have wgmma:
 *
 *   y = act(row_scale * (x . kernel) + bias) + residual
 *
 * Columns of the kernel are the rows of the left factor, so that weights go from shared memory into registers as
 * codes, become numbers of bfloat16 there, and go from registers into tensor cores; rows of x are the right factor. A
 * unit of work is 64 columns, those of a tile, by N rows of x. A block, one on each multiprocessor, has as many
 * neighbouring units as others have, or one more, and takes up to four of them at a time: each warpgroup has two. A
 * single one both share: they take turns with stages, which are 64 rows of the kernel. Where there are few units, the
 * blocks of a cluster share each (split-K). A thread of one more warpgroup copies x and codes ahead, into a ring of
 * stages.
 *
 * w = (code - zero) * scale is rounded once to bfloat16, as is scale, which is the same for a group. MAGIC + code -
 * (MAGIC + zero) has no error where zero is a whole number; what is left of others is subtracted with the scale. */
#include "kernels/core/device/any_activation.cuh"
#include "kernels/core/device/row_team.cuh"
#include "kernels/core/device/wgmma.cuh"
#include "kernels/products/few_rows.h"
#include "kernels/products/tile_words.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum {
  WARPGROUP = 128,
  GROUPS = 2, /* warpgroups that multiply */
  UNITS = MANY_ROWS_UNITS,
  COLUMNS = FEW_ROWS_TILED_COLUMNS,
  DEEP = MANY_ROWS_DEEP, /* rows of the kernel in a stage */
  TILES = DEEP / 16,
  PITCH = COLUMNS + 4, /* of sums in shared memory: rows in other banks */
  ROWS_AT_ONCE = 64,   /* of these */
  BUFFER = ROWS_AT_ONCE * PITCH
};

/* Some units side by side: a block's next piece of work. */
struct piece {
  int row, column, units; /* the first row of x; the first column, in 64 */

  template <int N>
  __device__ static piece at(const few_rows_args &a, int64_t unit, int64_t end) {
    const int across = (int)((a.of[0].outputs + COLUMNS - 1) / COLUMNS), column = (int)(unit % across);
    return {(int)(unit / across) * N, column, (int)min(min((int64_t)UNITS, end - unit), (int64_t)(across - column))};
  }
};

/* The stages in shared memory, and who waits for whom. */
template <int BITS, int N>
struct stages {
  enum {
    TILE = 128 * BITS, /* bytes */
    X = N * DEEP * 2,
    UNIT = TILES * TILE, /* codes of one */
    STAGE = MANY_ROWS_STAGE(BITS, N),
    COUNT = MANY_ROWS_STAGES(BITS, N)
  };
  unsigned at, barriers;
  int now = 0;
  unsigned parity = 0;

  __device__ unsigned x() const { return at + now * STAGE; }
  __device__ unsigned codes(int unit) const { return x() + X + unit * UNIT; }
  __device__ unsigned full(int stage) const { return barriers + 16 * stage; }
  __device__ unsigned empty(int stage) const { return full(stage) + 8; }
  __device__ void next() {
    if (++now == COUNT) now = 0, parity ^= 1;
  }
};

/* The stages of the kernel that a block has, which are all or, of a cluster, its share (split-K). */
struct share {
  int begin, end;

  __device__ share(const few_rows_args &a) {
    const int steps = (int)((a.inputs + DEEP - 1) / DEEP), rank = (int)(blockIdx.x % (unsigned)a.splits);
    begin = steps * rank / a.splits, end = steps * (rank + 1) / a.splits;
  }
};

/* ---- the thread that copies ---- */

template <int BITS, int N>
__device__ inline void copy_piece(const many_rows_args &all, const piece &p, stages<BITS, N> &ring) {
  const few_rows_args &a = all.of;
  const share steps(a);
  const int tiles = (int)(a.inputs / 16);
  const char *codes = (const char *)a.of[0].kernel + (int64_t)p.column * tiles * ring.TILE;
  ONCE
  for (int step = steps.begin; step < steps.end; step++) {
    const unsigned full = ring.full(ring.now), bytes = min((int)TILES, tiles - step * TILES) * ring.TILE;
    wait_for_barrier(ring.empty(ring.now), ring.parity ^ 1);
    expect_bytes(full, ring.X + bytes * p.units);
    copy_box(ring.x(), all.x, step * DEEP, p.row, full);
    for (int u = 0; u < p.units; u++)
      copy_bulk(ring.codes(u), codes + ((int64_t)u * tiles + step * TILES) * ring.TILE, bytes, full);
    ring.next();
  }
}

/* ---- those that multiply ---- */

/* What a lane has of a group: of its columns g and g + 8, pairs of the same two numbers. */
struct column_pair {
  unsigned scale[2], zero[2], rest[2];

  __device__ void set(int c, float by, float from) {
    zero[c] = pair_of<bf16>::narrow(from, from);
    const float less = (pair_of<bf16>::widen(zero[c]).x - from) * by;
    scale[c] = pair_of<bf16>::narrow(by, by);
    rest[c] = pair_of<bf16>::narrow(less, less);
  }
  /* (v - zero) * scale + rest */
  __device__ unsigned weights(int c, unsigned v) const {
    unsigned y;
    asm("sub.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(v), "r"(zero[c]));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(y), "r"(scale[c]), "r"(rest[c]));
    return y;
  }
};

/* A warpgroup's part of a piece: MINE units, of which each warp has 16 columns, in one or the other tile. */
template <int BITS, int N, int MINE>
struct part {
  enum { WORDS = MINE * BITS / 4 }; /* of a tile */
  const few_rows_args &a;
  int first, tile, slice; /* its first unit in the piece; the warp's tile of the part, its first 16 columns there */
  float sum[MINE][N / 2] = {};
  column_pair of_group[MINE];
  const char *table;             /* scales of the lane's first column, in the first group */
  int other[MINE][2], row, last; /* bytes from there to its other columns, and of a row of scales; the last group */
  unsigned ahead[MINE][2][2];    /* scales and zeros of the next group, as they lie in memory */

  __device__ part(const few_rows_args &a, const piece &p, int first) : a(a), first(first) {
    const int warp = threadIdx.x / 32 % 4, size = a.wide ? 4 : 2;
    tile = MINE == 2 ? warp / 2 : 0, slice = MINE == 2 ? warp % 2 * 2 : warp;
    const int64_t column = (int64_t)(p.column + first + tile) * COLUMNS + slice * 16 + lane_id() / 4;
    const int64_t end = a.of[0].outputs - 1, at = min(column, end);
    table = (const char *)a.of[0].scale + at * size;
    UNROLLED(i, 2 * MINE) other[i / 2][i % 2] = (int)(min(column + 8 * i, end) - at) * size;
    row = (int)a.of[0].outputs * size, last = (int)((a.inputs - 1) / 32) >> a.group_shift;
  }
  /* Nothing is made of them yet: that would wait for memory. */
  __device__ void read_group(int group) {
    const char *const from = table + (int64_t)min(group, last) * 2 * row;
    const auto each = [&](auto load) {
      UNROLLED(i, 4 * MINE) load(ahead[i / 4][i / 2 % 2][i % 2], from + other[i / 4][i / 2 % 2] + i % 2 * row);
    };
    if (a.wide) {
      each([](unsigned &v, const char *at) { asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(at)); });
    } else {
      each([](unsigned &v, const char *at) { asm volatile("ld.global.nc.u16 %0, [%1];" : "=r"(v) : "l"(at)); });
    }
  }
  __device__ void take_group() {
    UNROLLED(i, 2 * MINE) {
      const unsigned(&of)[2] = ahead[i / 2][i % 2];
      const int up = a.wide ? 0 : 16; /* bfloat16 is the upper half of a float */
      of_group[i / 2].set(i % 2, __uint_as_float(of[0] << up), __uint_as_float(of[1] << up) + codes<bf16, BITS>::MAGIC);
    }
  }
  /* The warp's words of a tile, and the left factor that they are in one unit. */
  __device__ void read(unsigned at, unsigned (&v)[WORDS]) const {
    at += lane_id() * 16 + (BITS == 8 ? slice / 2 * 512 + slice % 2 * 8 : slice * 4);
    if constexpr (WORDS == 4) {
      const int4 four = load_shared(at);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else if constexpr (WORDS == 2) {
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at) : "memory");
    } else {
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v[0]) : "r"(at) : "memory");
    }
  }
  __device__ void factors(const unsigned (&v)[WORDS], int u, unsigned (&f)[4]) const {
    UNROLLED(r, 4) {
      const int block = r % 2, h = r / 2;
      const unsigned w =
          BITS == 8 ? codes<bf16, BITS>::pair(v[2 * u + block], h) : codes<bf16, BITS>::pair(v[u], 2 * block + h);
      f[r] = of_group[u].weights(block, w);
    }
  }

  /* The next group that a warpgroup comes to that has this stage and every second one, or every one. */
  __device__ int after(int group, int step, int by) const {
    const int begins = (group + 1) << a.group_shift, stage = begins / 2; /* in 32 rows */
    return ((stage - step) & (by - 1)) == 0 ? group + 1 : 2 * (stage + 1) >> a.group_shift;
  }
  /* All stages or, where `by` is 2, every second one, from the block's first or second on. */
  __device__ void multiply(stages<BITS, N> &ring, int from, int by) {
    const share steps(a);
    unsigned f[2][4];
    int before = -1; /* the stage that products under way still read */
    int group = -1;
    read_group(2 * (steps.begin + from) >> a.group_shift);
    ONCE
    for (int step = steps.begin; step < steps.end; step++, ring.next()) {
      wait_for_barrier(ring.full(ring.now), ring.parity);
      if (((step - steps.begin) & (by - 1)) != from) {
        if (lane_id() == 0) arrive(ring.empty(ring.now));
        continue;
      }
      const uint64_t x = tile_of_wgmma(ring.x());
      unsigned words[TILES][WORDS];
      UNROLLED(i, TILES) read(ring.codes(first + tile) + i * ring.TILE, words[i]);
      UNROLLED(i, TILES) {
        const int now = (2 * step + i / 2) >> a.group_shift;
        if (i % 2 == 0 && now != group) {
          group = now;
          take_group();
          read_group(after(group, step, by));
        }
        UNROLLED(u, MINE) {
          unsigned(&next)[4] = f[(i * MINE + u) % 2];
          factors(words[i], u, next);
          begin_products();
          multiply_warpgroup(sum[u], next, x + 2 * i, bf16());
          close_products();
          wait_for_products<1>();
        }
        if (i == 0) {
          if (before >= 0 && lane_id() == 0) arrive(ring.empty(before));
          before = ring.now;
        }
      }
    }
    wait_for_products<0>();
    if (before >= 0 && lane_id() == 0) arrive(ring.empty(before));
  }

  /* Through shared memory, so that rows of y are written in packs. What both warpgroups, and all blocks of the cluster,
   * have a part of (joined) is summed there, and shared between all of them. */
  __device__ void finish(const piece &p, float *buffers, int mine) {
    const bool joined = p.units == 1;
    const int thread = threadIdx.x % WARPGROUP, g = lane_id() / 4, t = lane_id() % 4;
    const int rank = (int)(blockIdx.x % (unsigned)a.splits);
    const int id = joined ? (rank * GROUPS + mine) * WARPGROUP + thread : thread;
    const int all = joined ? a.splits * GROUPS * WARPGROUP : WARPGROUP;
    float *const buffer = buffers + mine * BUFFER;
    const auto sync = [&] {
      if (!joined) sync_threads<WARPGROUP>(1 + mine);
      else if (a.splits == 1) sync_threads<GROUPS * WARPGROUP>(1 + GROUPS);
      else cluster_barrier();
    };
    UNROLLED(u, MINE) {
      UNROLLED(rows, N / ROWS_AT_ONCE) {
        sync();
        UNROLLED(i, ROWS_AT_ONCE / 2) {
          const int row = i / 4 * 8 + 2 * t + i % 2, c = threadIdx.x / 32 % 4 * 16 + i % 4 / 2 * 8 + g;
          buffer[row * PITCH + c] = sum[u][rows * (ROWS_AT_ONCE / 2) + i];
        }
        sync();
        const int pack = id % 8; /* 8 columns; of two units, 16 of warp w are 64 (w / 2) + 32 (w % 2) + 16 u on */
        const int w = pack / 2, within = MINE == 2 ? w / 2 * 64 + w % 2 * 32 + u * 16 : w * 16;
        const int64_t to = (int64_t)(p.column + first) * COLUMNS + within + pack % 2 * 8;
        for (int row = id / 8; row < ROWS_AT_ONCE; row += all / 8) {
          const int of_x = p.row + rows * ROWS_AT_ONCE + row;
          float v[8] = {};
          if (of_x >= a.rows || to >= a.of[0].outputs) continue;
          const unsigned place = shared_address(buffers) + 4 * (row * PITCH + 8 * pack);
          if (joined) {
            for (int from = 0; from < a.splits * GROUPS; from++)
              add_eight(v, place + from % GROUPS * BUFFER * 4, from / GROUPS);
          } else {
            UNROLLED(i, 2)
              widen_pack<float>(load_shared(place + mine * BUFFER * 4 + 16 * i), *(float(*)[4])(v + 4 * i));
          }
          store(of_x, to, v);
        }
      }
    }
    if (joined) sync(); /* others still read this block's sums */
  }

 private:
  /* v += eight numbers in the shared memory of a block of the cluster. */
  static __device__ void add_eight(float (&v)[8], unsigned at, int block) {
    float more[8];
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(block));
    UNROLLED(i, 2)
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(more[4 * i]), "=f"(more[4 * i + 1]), "=f"(more[4 * i + 2]), "=f"(more[4 * i + 3])
                   : "r"(at + 16 * i)
                   : "memory");
    UNROLLED(i, 8) v[i] += more[i];
  }
  __device__ void store(int row, int64_t column, float (&v)[8]) {
    const few_rows_product &y = a.of[0];
    const int64_t at = row * y.outputs + column;
    float more[8];
    if (a.row_scale) {
      UNROLLED(i, 8) v[i] *= a.row_scale[row];
    }
    if (y.bias) {
      widen_pack<bf16>(*(const int4 *)((const bf16 *)y.bias + column), more);
      UNROLLED(i, 8) v[i] += more[i];
    }
    if (a.activation != TFU_ACT_linear) {
      UNROLLED(i, 8) v[i] = activate<bf16>(a.activation, v[i]);
    }
    if (a.residual) {
      widen_pack<bf16>(*(const int4 *)((const bf16 *)a.residual + at), more);
      UNROLLED(i, 8) v[i] += more[i];
    }
    store_bits((bf16 *)y.y + at, narrow_pack<bf16>(v));
  }
};

template <int BITS, int N, int MINE>
__device__ inline void work(const few_rows_args &a, const piece &p, stages<BITS, N> &ring, float *buffers, int mine) {
  part<BITS, N, MINE> units(a, p, p.units == 1 ? 0 : mine * ((p.units + 1) / 2));
  units.multiply(ring, p.units == 1 ? mine : 0, p.units == 1 ? GROUPS : 1);
  units.finish(p, buffers, mine);
}

template <int BITS, int N>
__device__ inline void many_rows(const many_rows_args &all) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ __align__(16) uint64_t barriers[2 * stages<BITS, N>::COUNT];
  stages<BITS, N> ring = {shared_address(memory), shared_address(barriers)};
  const few_rows_args &a = all.of;
  const int group = threadIdx.x / WARPGROUP - 1;
  const int64_t units = (a.of[0].outputs + COLUMNS - 1) / COLUMNS * ((a.rows + N - 1) / N);
  const unsigned clusters = gridDim.x / a.splits, cluster = blockIdx.x / a.splits;
  const int64_t end = units * (cluster + 1) / clusters;
  int64_t unit = units * cluster / clusters;
  if (threadIdx.x == 0) {
    for (int s = 0; s < ring.COUNT; s++) {
      open_barrier(ring.full(s), 1);
      open_barrier(ring.empty(s), GROUPS * WARPGROUP / 32);
    }
    publish_barriers();
  }
  __syncthreads();
  if (group < 0) {
    keep_registers<40>();
    if (threadIdx.x != 0) return;
    while (unit < end) {
      const piece p = piece::at<N>(a, unit, end);
      copy_piece(all, p, ring);
      unit += p.units;
    }
    return;
  }
  take_registers<232>();
  float *const buffers = (float *)(memory + ring.COUNT * ring.STAGE);
  while (unit < end) {
    const piece p = piece::at<N>(a, unit, end);
    if (p.units > 2 + group) work<BITS, N, 2>(a, p, ring, buffers, group);
    else work<BITS, N, 1>(a, p, ring, buffers, group);
    unit += p.units;
  }
}
#define MANY_ROWS_OF_(bits, n) \
  TFU_STAMP((MANY_ROWS_THREADS, 1), many_rows_##n##_##bits##_bf16, __grid_constant__ many_rows_args, many_rows<bits, n>)
#else
__device__ inline void not_here(const many_rows_args &) {}
#define MANY_ROWS_OF_(bits, n) \
  TFU_STAMP((32), many_rows_##n##_##bits##_bf16, __grid_constant__ many_rows_args, not_here)
#endif
MANY_ROWS_OF_(8, 64)
MANY_ROWS_OF_(8, 128)
MANY_ROWS_OF_(4, 64)
MANY_ROWS_OF_(4, 128)
