/* few_rows_tiled_x.cuh - a block's rows of x for products with kernels in tiles: from memory to shared memory, normed,
 * and where that is asked for rounded to whole numbers, in the order of right factors. */
#pragma once

#include "kernels/products/few_rows.cuh"

#if __CUDA_ARCH__ >= 900
enum {
  UNIT = FEW_ROWS_TILED_UNIT,
  STEP = FEW_ROWS_TILED_STEP,
  STEPS = UNIT / STEP,
  COLUMNS = FEW_ROWS_TILED_COLUMNS,
  TILES = UNIT / 16, /* of a unit */
  FACTORS = COLUMNS / 16
};

/* What is known of rows of x. Of each warp's columns, and of each block's in a cluster: the sum of squares, and the
 * largest magnitude of what is rounded, as the bits of a float, which are in the order of their numbers. Of rows that
 * are rounded: how they are normed before, what they are multiplied with then, and what a whole number stands for. */
struct row_found {
  float squares;
  unsigned largest;

  __device__ void join(row_found other) { squares += other.squares, largest = max(largest, other.largest); }
};
template <int ROWS>
struct row_numbers {
  row_found found[FEW_ROWS_WARPS][ROWS], of_blocks[FEW_ROWS_SPLITS][ROWS];
  float rstd[ROWS], by[ROWS], back[ROWS];
  unsigned long long arrival; /* of of_blocks */
};

/* f(pack, gamma, row, k, is_first) for the packs of some rows in units from `first` on, which a thread has the same
 * columns of, k the first one's place in these units. Packs beyond the last column are zeros. A warp calls f together.
 * is_first: of the thread's packs of the row. */
template <typename T, int N, typename F>
__device__ inline void for_packs(const few_rows_args &a, int first_row, int first, int units, F f) {
  enum { AT_ONCE = 8 }; /* rows on their way */
  const int rows = min(8 * N, a.rows - first_row);
  ONCE
  for (int from = 0; from < units * UNIT; from += 8 * THREADS) {
    const int k = from + 8 * threadIdx.x;
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
      int4 pack[AT_ONCE];
      UNROLLED(r, AT_ONCE) {
        pack[r] = make_int4(0, 0, 0, 0);
        if (is_one && row + r < rows) pack[r] = *(const int4 *)(x + (row + r) * a.inputs);
      }
      UNROLLED(r, AT_ONCE) {
        if (row + r < rows) f(pack[r], gamma, row + r, k, from == 0);
      }
    }
  }
}

/* A warp's columns of a row. */
__device__ inline void find(const float (&v)[8], bool is_first, row_found &found) {
  float squares = 0;
  UNROLLED(i, 8) squares = fmaf(v[i], v[i], squares);
  UNROLLED(i, 5) squares += __shfl_xor_sync(0xffffffffu, squares, 1 << i);
  if (lane_id() == 0) found.squares = (is_first ? 0 : found.squares) + squares;
}

/* What load() reads of gamma, into the first-level cache. */
__device__ inline void expect_gamma(const few_rows_args &a, int first, int units) {
  for (int k = 4 * threadIdx.x; k < units * UNIT; k += 4 * THREADS) {
    const int64_t column = (int64_t)first * UNIT + k;
    if (column >= a.inputs) return;
    const float4 four = *(const float4 *)(a.gamma + column);
    asm volatile("" ::"f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w));
  }
}

/* A block's rows of x in shared memory, units from `first` on. As numbers of T, times gamma, where there is one: lane
 * 4 g + t has of row g columns 2 t, 2 t + 1 and 8 more, of the two halves of a step side by side. Places are permuted
 * (swizzle), so that eight steps of a row lie in different banks. */
template <typename T, int N, bool WHOLE>
struct tiled_x {
  typedef int4 factor;
  unsigned at;

  __device__ unsigned place(int step, int n, int lane) const {
    return at + ((step * N + n) * 32 + (lane ^ (step & 7))) * 16;
  }
  __device__ int4 factors(int step, int n) const { return load_shared(place(step, n, lane_id())); }

  __device__ void load(const few_rows_args &a, int first_row, int first, int units, row_numbers<8 * N> &numbers) const {
    for_packs<T, N>(a, first_row, first, units, [&](int4 pack, const float(&gamma)[8], int row, int k, bool is_first) {
      if (a.gamma) {
        float v[8];
        widen_pack<T>(pack, v);
        find(v, is_first, numbers.found[threadIdx.x / 32][row]);
        UNROLLED(i, 8) v[i] *= gamma[i];
        pack = narrow_pack<T>(v);
      }
      if (k >= units * UNIT) return;
      const unsigned words[4] = {(unsigned)pack.x, (unsigned)pack.y, (unsigned)pack.z, (unsigned)pack.w};
      UNROLLED(t, 4) store_word(place(k / STEP, row / 8, 4 * (row % 8) + t) + k % STEP / 8 * 4, words[t]);
    });
  }
};

/* As bytes: rows are normed, rounded to T as a norm's result is, and then to whole numbers up to 127. Lane 4 g + t has
 * of row g the bytes of columns 2 t, 2 t + 8, 2 t + 1 and 2 t + 9, as tile_words has them. What a row is multiplied
 * with depends on all of it: each block of a cluster looks at all of a few columns; of more, they tell each other what
 * they have found. */
template <typename T, int N>
struct tiled_x<T, N, true> {
  typedef uint2 factor;
  unsigned at;

  __device__ unsigned place(int step, int n, int lane) const {
    return at + ((step * N + n) * 32 + (lane ^ (step & 7))) * 8;
  }
  __device__ uint2 factors(int step, int n) const {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(place(step, n, lane_id())) : "memory");
    return v;
  }

  __device__ void load(const few_rows_args &a, int first_row, int first, int units, row_numbers<8 * N> &numbers) const {
    const int all = (int)((a.inputs + UNIT - 1) / UNIT);
    const bool alone = a.splits == 1 || all <= 2 * 8 * THREADS / UNIT;
    for_packs<T, N>(a, first_row, alone ? 0 : first, alone ? all : units,
                    [&](int4 pack, const float(&gamma)[8], int row, int, bool is_first) {
                      row_found &found = numbers.found[threadIdx.x / 32][row];
                      float v[8], top = 0;
                      widen_pack<T>(pack, v);
                      if (a.gamma) {
                        find(v, is_first, found);
                        UNROLLED(i, 8) v[i] *= gamma[i];
                      }
                      UNROLLED(i, 8) top = top_of(top, fabsf(v[i]));
                      const unsigned largest = __reduce_max_sync(0xffffffffu, __float_as_uint(top));
                      if (lane_id() == 0) found.largest = max(is_first ? 0 : found.largest, largest);
                    });
    finish(a, min(8 * N, a.rows - first_row), alone, numbers);
    for_packs<T, N>(a, first_row, first, units, [&](int4 pack, const float(&gamma)[8], int row, int k, bool) {
      const float rstd = numbers.rstd[row], by = numbers.by[row];
      float v[8];
      unsigned code[8];
      widen_pack<T>(pack, v);
      if (a.gamma) {
        UNROLLED(i, 8) v[i] = (float)(T)(v[i] * gamma[i] * rstd);
      }
      /* Beside 3 * 2^22 a float has no digits of a fraction: its last byte is that of the whole number. */
      UNROLLED(i, 8) code[i] = __float_as_uint(__fadd_rn(__fmul_rn(v[i], by), 12582912.0f));
      const auto pair = [&](int i) { return __byte_perm(code[i], code[i + 1], 0x0400) & 0x00ff00ffu; };
      store(k, row, pair(0), pair(2), pair(4), pair(6), k < units * UNIT);
    });
  }

 private:
  /* Rounding to T is monotonous: so the largest of the normed numbers is the largest one, normed. */
  static __device__ void finish(const few_rows_args &a, int rows, bool alone, row_numbers<8 * N> &numbers) {
    const int row = threadIdx.x;
    row_found all = {};
    __syncthreads();
    if (row < rows) {
      all = numbers.found[0][row];
      UNROLLED(w, FEW_ROWS_WARPS - 1) all.join(numbers.found[w + 1][row]);
    }
    if (!alone) {
      const unsigned arrival = shared_address(&numbers.arrival);
      if (row == 0) expect_bytes(arrival, a.splits * rows * (int)sizeof(all));
      if (row < rows) {
        const unsigned to = shared_address(&numbers.of_blocks[blockIdx.x % (unsigned)a.splits][row]);
        for (int rank = 0; rank < a.splits; rank++) send(to, arrival, rank, all);
        wait_for_sent(arrival, 0);
        all = numbers.of_blocks[0][row];
        for (int rank = 1; rank < a.splits; rank++) all.join(numbers.of_blocks[rank][row]);
      }
    }
    if (row < rows) {
      const float rstd = a.gamma ? rsqrtf(__fdividef(all.squares, (float)a.inputs) + a.epsilon) : 1;
      const float top = (float)(T)(__uint_as_float(all.largest) * rstd) + 1e-7f;
      numbers.rstd[row] = rstd, numbers.by[row] = 127.0f / top;
      numbers.back[row] = top * (1 / 127.0f) + (top - top); /* of infinity there are no parts: NaN */
    }
    __syncthreads();
  }

  /* Four pairs of neighbouring columns, the two in the halves of a word. A tile's columns are the packs of two
   * neighbouring lanes: each stores two words of both. */
  __device__ void store(int k, int row, unsigned p, unsigned q, unsigned r, unsigned s, bool is_here) const {
    const int h = k / 8 % 2;
    const unsigned u = __shfl_xor_sync(0xffffffffu, h ? p : r, 1), v = __shfl_xor_sync(0xffffffffu, h ? q : s, 1);
    if (!is_here) return;
    const unsigned lane = 4 * (row % 8) + 2 * h, half = k % STEP / 16 * 4;
    const auto at = [&](int i) { return place(k / STEP, row / 8, lane + i) + half; };
    store_word(at(0), h ? u | r << 8 : p | u << 8);
    store_word(at(1), h ? v | s << 8 : q | v << 8);
  }
};
#endif
