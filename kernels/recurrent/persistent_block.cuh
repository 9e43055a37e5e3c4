/* persistent_block.cuh - a recurrence over all steps in one launch (persistent kernel): each block keeps its part of
 * the recurrent kernel in registers, and the blocks hand each other what a step needs of the one before, through y
 * forward and through dp backward, which are written anyhow (held_factor.cuh).
 *
 * A step of a tile of 16 sequences is
 *
 *   product: each warp has some of the summed index for all columns of the block; what it has of the sums goes to
 *            shared memory;
 *   gates:   a thread for each word of units of each sequence adds these up in the order of warps.
 *
 * One barrier lies between the two; what they hand over has two places, so none is needed after the gates. Inputs of
 * the next tile are copied to shared memory meanwhile. All blocks have to be there at the same time, which a
 * cooperative launch promises; then none waits for ever, as no step waits for a later one. */
#pragma once

#include "kernels/core/device/activations.cuh"
#include "kernels/recurrent/held_factor.cuh"
#include "kernels/recurrent/recurrence_persistent.h"

#if __CUDA_ARCH__ >= 800
/* Any activation of several numbers, and its derivative there, where SLOPES says so. They are part of the kernel: a
 * call would have to save its registers. */
template <typename T, bool SLOPES, int N>
__device__ __forceinline__ void activate_all(int which, const float (&in)[N], float (&value)[N], float (&slope)[N]) {
  switch (which) {
#define X(name)                                                    \
  case TFU_ACT_##name:                                             \
    UNROLLED(i, N) {                                               \
      value[i] = math_of<T>::type::name(in[i]);                    \
      if (SLOPES) slope[i] = math_of<T>::type::name##_grad(in[i]); \
    }                                                              \
    break;
    TFU_ACTIVATIONS(X)
#undef X
  }
}
__device__ inline void copy_4_bytes(unsigned to, const void *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
/* What a thread has of the units: a word of them. */
template <typename T>
struct units_of {
  enum { V = 2 };
  static __device__ void widen(unsigned word, float (&v)[V]) {
    const float2 both = pair_of<T>::widen(word);
    v[0] = both.x, v[1] = both.y;
  }
  static __device__ unsigned narrow(const float (&v)[V]) { return pair_of<T>::narrow(v[0], v[1]); }
};
template <>
struct units_of<float> {
  enum { V = 1 };
  static __device__ void widen(unsigned word, float (&v)[V]) { v[0] = __uint_as_float(word); }
  static __device__ unsigned narrow(const float (&v)[V]) { return __float_as_uint(v[0]); }
};
/* Those at an element of a tensor; zeros where there is none. */
template <typename T, int V>
__device__ inline void read_units(const T *from, float (&v)[V]) {
  units_of<T>::widen(from ? *(const unsigned *)from : 0, v);
}
template <typename T, int V>
__device__ inline void write_units(T *to, const float (&v)[V]) {
  *(unsigned *)to = units_of<T>::narrow(v);
}
template <typename T>
__device__ inline const T *element(const void *tensor, int64_t at) {
  return tensor ? (const T *)tensor + at : NULL;
}

/* A block, and what is the same in both directions; A is the kernel's arguments. Forward, its columns are the gates of
 * its units, and each warp has a part of h. Back, they are the units of its cluster of two blocks, of which each has
 * two gates of dp, and each warp a part of one. */
template <typename T, typename A, bool BACK>
struct block_of {
  enum {
    WARPS = PERSISTENT_WARPS,
    ROWS = PERSISTENT_ROWS,
    SLICE = PERSISTENT_SLICE(sizeof(T)),
    V = units_of<T>::V,
    TILES = SLICE / 8 * (BACK ? 2 : 4),
    CHUNKS = 32 / TILES
  };
  const A &a;
  const recurrence_sizes &s;
  char *memory;
  int warp, rank, gate, first_unit, columns, stride, first_row, tiles;
  int r, mine;  /* the thread's row of a tile, and where its first unit is in a state of it */
  int64_t unit; /* that, of all */
  held_factor<T, TILES, CHUNKS> held;

  __device__ block_of(const A &a, char *memory) : a(a), s(a.size), memory(memory) {
    warp = threadIdx.x / 32;
    rank = BACK ? blockIdx.x % 2 : 0;
    gate = BACK ? 2 * rank + warp / 4 : 0;
    first_unit = blockIdx.x * SLICE;
    columns = (BACK ? 2 : s.gates) * SLICE;
    stride = columns + PERSISTENT_PAD;
    first_row = blockIdx.y * a.tiles * ROWS;
    tiles = min(a.tiles, ((int)s.batch - first_row + ROWS - 1) / ROWS);
    mine = threadIdx.x % (TFU_THREADS / 2) * V;
    r = mine / SLICE;
    unit = first_unit + mine % SLICE;
    const int64_t width = s.gates * s.units;
    held.load(rows(NULL, 0, 0), BACK ? 1 : width, a.tf32, [&](int n) -> const T * {
      const int column = n * 8 + (int)lane_id() / 4, of = BACK ? gate : column / SLICE;
      const int at = BACK ? first_unit - rank * SLICE + column : first_unit + column % SLICE;
      if (column >= columns || at >= s.units || of >= s.gates) return NULL;
      return (const T *)a.kernel + (BACK ? at * width + of * s.units : of * s.units + at);
    });
  }

  /* The rows that a product of the tile reads: those of two sequences are `apart` elements apart. */
  __device__ heard_rows<T> rows(const T *from, int64_t apart, int tile) const {
    heard_rows<T> rows;
    rows.first = BACK ? warp % 4 : warp;
    rows.step = BACK ? 4 : WARPS;
    rows.length = (int)s.units;
    UNROLLED(i, 2) {
      const int row = first_row + tile * ROWS + (int)lane_id() / 4 + 8 * i;
      rows.row[i] = from && row < s.batch ? from + row * apart + gate * s.units : NULL;
    }
    return rows;
  }

  __device__ float *partial(int turn) const { return (float *)(memory + a.at.partial) + turn * WARPS * ROWS * stride; }
  __device__ float *state(int which, int tile) const {
    return (float *)(memory + a.at.state) + (which * a.tiles + tile) * ROWS * SLICE + mine;
  }
  /* The thread's, of a gate. */
  __device__ T *scale(int tile, int gate) const {
    return (T *)(memory + a.at.scale) + (tile * s.gates + gate) * ROWS * SLICE + mine;
  }
  /* Of source `i`, which there are `sources` of. */
  __device__ T *input(int turn, int sources, int i) const {
    return (T *)(memory + a.at.input) + (turn * sources + i) * ROWS * SLICE;
  }
  __device__ unsigned *mask(int turn) const { return (unsigned *)(memory + a.at.mask) + turn * ROWS; }

  template <bool FEW, typename C>
  __device__ void multiply(const heard_rows<T> &rows, const C &change, bool wait, int turn) const {
    if (gate >= s.gates) return;
    float sum[TILES][4];
    multiply_held<FEW>(sum, rows, held, columns / 8, change, wait, tiles > 1, a.tf32);
    const int g = lane_id() / 4, t = lane_id() % 4;
    float *to = partial(turn) + warp * ROWS * stride;
    UNROLLED(n, TILES) {
      if (n >= columns / 8) continue;
      if (FEW) { /* of an even tile, rows 2 t and 2 t + 1 of columns g, and of those of the next tile */
        const int of = n & ~1, i = n % 2 * 2;
        UNROLLED(e, 2) to[(2 * t + e) * stride + n * 8 + g] = sum[of][i + e];
      } else {
        UNROLLED(e, 2)
          *(float2 *)(to + (g + 8 * e) * stride + n * 8 + 2 * t) = make_float2(sum[n][2 * e], sum[n][2 * e + 1]);
      }
    }
  }
  /* Whether the tile has so few rows. */
  __device__ bool is_few(int tile) const { return s.batch - first_row - tile * ROWS <= ROWS / 2; }

  /* Of so many warps from `first` on, in their order. */
  template <int COUNT>
  __device__ float sum(int turn, int row, int column, int first) const {
    const float *from = partial(turn) + (first * ROWS + row) * stride + column;
    float all = 0;
    UNROLLED(w, COUNT) all += from[w * ROWS * stride];
    return all;
  }

  /* Packs of `count` sources of the tile's rows on their way: from(i, row) is where row `row` of source i begins, or
   * NULL. */
  template <typename F>
  __device__ void prefetch(int turn, int tile, int64_t step, int count, F from) const {
    enum { N = packed<T>::N, PACKS = SLICE / N };
    for (int i = threadIdx.x; i < count * ROWS * PACKS; i += TFU_THREADS) {
      const int pack = i % PACKS, at = i / PACKS % ROWS, source = i / PACKS / ROWS;
      const int64_t row = first_row + tile * ROWS + at, first = first_unit + pack * N;
      if (row >= s.batch || first >= s.units) continue;
      const T *begin = from(source, row);
      if (begin) copy_pack(shared_address(input(turn, count, source) + at * SLICE + pack * N), begin + first);
    }
    const int64_t row = first_row + tile * ROWS + threadIdx.x;
    if (a.mask && threadIdx.x < ROWS && row < s.batch)
      copy_4_bytes(shared_address(mask(turn) + threadIdx.x),
                   (const void *)((uintptr_t)(a.mask + row * s.steps + step) & ~(uintptr_t)3));
    close_copies();
  }

  /* Half of the threads have the gates of a tile, while the others go on with the next one's product. */
  __device__ bool works(int turn) const { return warp / (WARPS / 2) == turn; }
  /* The thread's sequence of the tile, of all. */
  __device__ int64_t row(int tile) const { return first_row + tile * ROWS + r; }
  __device__ bool there(int tile) const { return row(tile) < s.batch && unit < s.units; }
  __device__ bool counts(int turn, int tile, int64_t step) const {
    return !a.mask || (mask(turn)[r] >> ((uintptr_t)(a.mask + row(tile) * s.steps + step) & 3) * 8 & 255);
  }
};
#endif

#define PERSISTENT_KERNEL(function, args, tag, T) \
  TFU_STAMP((TFU_THREADS, 1), function##_##tag, __grid_constant__ args, function<T>)
