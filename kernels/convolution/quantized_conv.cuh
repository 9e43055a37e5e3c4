/* quantized_conv.cuh - what the kernels of QuantizedConv share: the epilogue, and for those on tensor cores how tiles
 * come to shared memory, and how their sums are finished.
 *
 * On tensor cores it is an implicit GEMM: the left factor is what windows see (conv_windows.cuh), the right one is the
 * kernel, whose lines lie along the terms, too. quantized_conv.h has the sizes. */
#pragma once

#include "kernels/convolution/conv_own.cuh"
#include "kernels/convolution/conv_windows.cuh"
#include "kernels/convolution/quantized_conv.h"
#include "kernels/core/device/mma.cuh"

/* ---- the epilogue ---- */

/* What sums of N neighbouring outputs are multiplied with, and what is added to them. Where y is int8, what comes of
 * that is between 0 and 1 from the least number that y may be to the most. */
template <int N>
struct epilogue {
  float by[N], add[N];
  __device__ void set(const quantized_conv_args &a, int i, float scale, float bias) {
    by[i] = scale * a.y_step, add[i] = fmaf(bias, a.y_step, a.y_first);
  }
};

/* A float of MIDDLE and a whole number has that number in its last bits. */
constexpr float MIDDLE = 12582912; /* 1.5 * 2^23 */

/* Byte i of a word of int8, by an addition. */
__device__ inline float number_of_byte(unsigned word, int i) {
  return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 + i)) - (8388608 + 128);
}

/* N neighbours as they lie in memory, aligned to all of them. */
template <typename T, int N>
struct neighbours {
  enum { BYTES = N * (int)sizeof(T), WORDS = (BYTES + 3) / 4 };
  struct alignas(BYTES < 16 ? BYTES : 16) in_memory {
    T v[N];
  };
  union {
    in_memory own;
    unsigned word[WORDS];
    int4 pack[(BYTES + 15) / 16];
  };
  __device__ neighbours() {}

  /* Nobody writes them while the kernel runs. */
  __device__ void load(const T *from) {
    if constexpr (BYTES % 16 == 0) {
      UNROLLED(i, BYTES / 16) pack[i] = __ldg((const int4 *)from + i);
    } else {
      own = *(const in_memory *)from;
    }
  }
  __device__ void store(T *to) const {
    if constexpr (BYTES % 16 == 0) {
      UNROLLED(i, BYTES / 16) ((int4 *)to)[i] = pack[i];
    } else {
      *(in_memory *)to = own;
    }
  }
  __device__ float number(int i) const {
    if constexpr (sizeof(T) == 1 && N % 4 == 0) return number_of_byte(word[i / 4], i % 4);
    else return (float)own.v[i];
  }
};

template <typename Y, typename R, int N>
struct finisher {
  enum { NARROW = sizeof(Y) == 1 };

  /* The results of one position, which are the elements of y from `at` on. */
  static __device__ void finish(const quantized_conv_args &a, int64_t at, const int (&sum)[N], const epilogue<N> &e) {
    float v[N];
    neighbours<Y, N> y;
    UNROLLED(i, N) v[i] = fmaf((float)sum[i], e.by[i], e.add[i]);
    if (a.residual) {
      neighbours<R, N> r;
      r.load((const R *)a.residual + at);
      const float step = a.residual_scale * a.y_step;
      UNROLLED(i, N) v[i] = fmaf(r.number(i), step, v[i]);
    }
    if constexpr (NARROW) {
      unsigned whole[N]; /* in their last bytes */
      UNROLLED(i, N) whole[i] = __float_as_uint(fmaf(__saturatef(v[i]), a.y_steps, MIDDLE + a.y_least));
      if constexpr (N % 4 == 0) {
        UNROLLED(i, N / 4)
          y.word[i] = __byte_perm(__byte_perm(whole[4 * i], whole[4 * i + 1], 0x0040),
                                  __byte_perm(whole[4 * i + 2], whole[4 * i + 3], 0x0040), 0x5410);
      } else {
        UNROLLED(i, N) y.own.v[i] = (int8_t)whole[i];
      }
    } else {
      UNROLLED(i, N) y.own.v[i] = (Y)(a.relu && v[i] < 0 ? 0 : v[i]);
    }
    y.store((Y *)a.y + at);
  }
};

/* Calls f with the finisher of y's type and the residual's, which is that of y, or int8. */
template <int N, typename Y, typename F>
__device__ inline void with_residual(const quantized_conv_args &a, F f) {
  if (a.narrow) f(finisher<Y, int8_t, N>());
  else f(finisher<Y, Y, N>());
}
template <int N, typename F>
__device__ inline void with_types(const quantized_conv_args &a, F f) {
  switch (a.y_kind) {
    case QUANTIZED_CONV_F32: with_residual<N, float>(a, f); break;
    case QUANTIZED_CONV_F16: with_residual<N, f16>(a, f); break;
    case QUANTIZED_CONV_BF16: with_residual<N, bf16>(a, f); break;
    default: f(finisher<int8_t, int8_t, N>());
  }
}

/* ---- tiles ---- */

#if __CUDA_ARCH__ >= 800
/* Where a tile lies. blockIdx counts tiles of outputs first, since these see the same windows, then those of positions,
 * then groups. */
struct tile_place {
  int row, col, group;
  __device__ tile_place(const quantized_conv_args &a, unsigned tile, int rows, int columns) {
    const unsigned down = divide(tile, a.across), all = divide(down, a.down);
    row = (int)(down - all * a.down.by) * rows, col = (int)(tile - down * a.across.by) * columns, group = (int)all;
  }
};

__device__ inline void fetch_to_cache(const void *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

/* Brings the parts of a block's tiles to shared memory, one after the other, into a ring of STAGES: left lines, right
 * lines, and with the last part of a tile scale and bias of its outputs. */
template <int ROWS, int COLUMNS, int THREADS, int LINE, int STAGES>
struct loader {
  enum { CHUNKS = LINE / 16, AT_ONCE = THREADS / CHUNKS, COUNT = COLUMNS / AT_ONCE };
  enum { LEFT = ROWS * LINE, LINES = LEFT + COLUMNS * LINE, STAGE = QUANTIZED_CONV_STAGE(ROWS, COLUMNS, LINE) };
  const quantized_conv_args &a;
  const int line, chunk, count; /* count: parts of a tile */
  const unsigned first_stage;
  window_lines<int8_t, ROWS / AT_ONCE, AT_ONCE, LINE> windows;
  const int8_t *weights; /* this thread's first chunk of the next part */
  int tile, part, o, col, group;
  unsigned writing;

  __device__ loader(const quantized_conv_args &a, unsigned memory)
      : a(a),
        line(threadIdx.x / CHUNKS),
        chunk(threadIdx.x % CHUNKS),
        count((a.terms + LINE - 1) / LINE),
        first_stage(memory),
        windows(a.s, a.high, a.wide),
        tile(blockIdx.x),
        part(0),
        writing(memory) {}

  /* Where a chunk lies: eight lines of one chunk, which is what a matrix load takes, come from different banks. */
  static __device__ unsigned place(int line, int chunk) {
    return line * LINE + ((chunk ^ (LINE == 128 ? line & 7 : line >> 1 & 3)) << 4);
  }

  /* Of 64 lines of the right factor, line n has output 16 * (n % 8 / 2) + n / 8 * 2 + n % 2: see finish_tile. */
  __device__ void begin() {
    const tile_place p(a, tile, ROWS, COLUMNS);
    const int outputs = (int)a.s.k;
    windows.begin(a.x + p.group * a.s.c, p.row + line, a.positions, chunk);
    col = p.col, group = p.group;
    o = col + line / 64 * 64 + 16 * (line % 8 / 2) + line % 64 / 8 * 2 + line % 2;
    weights = a.kernel + ((int64_t)group * outputs + o) * a.terms + 16 * chunk;
    if (!a.residual || !a.narrow) return;
    ONCE
    for (int i = threadIdx.x; i < ROWS; i += THREADS) /* a line of the residual is at most a line of the cache */
      if (p.row + i < a.positions)
        fetch_to_cache((const char *)a.residual + (p.row + i) * (a.s.groups * a.s.k) + group * outputs + col);
  }

  __device__ void fetch() {
    if (tile < a.tiles) {
      if (part == 0) begin();
      const unsigned mine = writing + place(line, chunk);
      const bool within = part * LINE + 16 * chunk < a.terms;
      windows.fetch(mine);
      UNROLLED(i, COUNT) {
        const int further = i * AT_ONCE % 64 / 4 + i * AT_ONCE / 64 * 64;
        const bool there = within && o + further < (int)a.s.k;
        copy_pack(mine + LEFT + i * AT_ONCE * LINE, there ? weights + (int64_t)further * a.terms : a.kernel,
                  there ? 16 : 0);
      }
      weights += LINE;
      if (++part == count) {
        fetch_numbers();
        part = 0, tile += gridDim.x;
      }
    }
    close_copies();
    writing = after(writing);
  }

  __device__ void fetch_numbers() {
    ONCE
    for (int i = threadIdx.x; i < COLUMNS / 2; i += THREADS) {
      const int at = i % (COLUMNS / 4) * 4, outputs = (int)a.s.k;
      const float *const from = i < COLUMNS / 4 ? a.scale : a.bias;
      const bool there = from && col + at < outputs;
      copy_pack(writing + LINES + i * 16, there ? from + group * outputs + col + at : a.scale, there ? 16 : 0);
    }
  }

  __device__ unsigned after(unsigned stage) const {
    return stage + STAGE == first_stage + STAGES * STAGE ? first_stage : stage + STAGE;
  }
};

/* Scale and bias of 16 outputs from shared memory. */
__device__ inline epilogue<16> numbers_at(const quantized_conv_args &a, unsigned at, int columns) {
  epilogue<16> e;
  UNROLLED(i, 4) {
    const int4 by = load_shared(at + 16 * i), add = load_shared(at + 4 * columns + 16 * i);
    const int *const words[2] = {&by.x, &add.x};
    UNROLLED(n, 4) e.set(a, 4 * i + n, __int_as_float(words[0][n]), __int_as_float(words[1][n]));
  }
  return e;
}

/* The results of a warp's sums in the accumulators' layout (mma.cuh), M times 16 rows, APART from each other, by 8 N
 * columns; the first is at (row, col) of the tile, of COLUMNS. Lane 4 g + t has columns 2 t and 2 t + 1 of every 8. The
 * outputs are dealt to lines of the right factor so that these, over 64 lines, are 16 outputs side by side. */
template <int APART, int COLUMNS, int M, int N>
__device__ inline void finish_tile(const quantized_conv_args &a, const tile_place &p, int row, int col,
                                   const int (&sum)[M][N][4], unsigned numbers) {
  const int l = (int)lane_id();
  UNROLLED(q, N / 8) {
    const int own = col + q * 64 + 16 * (l % 4); /* the first of the outputs that this lane has */
    if (p.col + own >= (int)a.s.k) continue;
    const epilogue<16> e = numbers_at(a, numbers + 4 * own, COLUMNS);
    const int first = p.row + row + l / 4, pitch = (int)(a.s.groups * a.s.k);
    const int64_t to = (int64_t)first * pitch + (p.group * (int)a.s.k + p.col + own);
    with_types<16>(a, [&](auto rows) {
      UNROLLED(i, 2 * M) {
        const int down = i / 2 * APART + i % 2 * 8;
        int v[16];
        UNROLLED(n, 16) v[n] = sum[i / 2][q * 8 + n / 2][i % 2 * 2 + n % 2];
        if (first + down < a.positions) rows.finish(a, to + (int64_t)down * pitch, v, e);
      }
    });
  }
}
#endif
