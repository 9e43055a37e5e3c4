/* QuantizedConv (ops/convolution/quantized_conv.c): int8 times int8, summed in int32, and an epilogue that makes floats
 * of the sums, or int8 for the next convolution.
 *
 * direct takes any shape, a result for each thread. tensor is an implicit GEMM on tensor cores: row m of the left
 * matrix is what the window at position m sees, [window, channels of a group], gathered from x when a tile of it is
 * copied to shared memory; the right one is the kernel, whose lines lie along the terms, too. */
#include "kernels/convolution/quantized_conv.h"

#include "kernels/convolution/conv_own.cuh"
#include "kernels/core/device/mma.cuh"

/* ---- the epilogue ---- */

/* Two whole numbers, saturated to bytes, below those of a third word. */
__device__ inline unsigned pack_bytes(int low, int high, unsigned above) {
  unsigned bytes;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(high), "r"(low), "r"(above));
  return bytes;
}

/* What sums of N neighbouring outputs are multiplied with, and what is added to them. Where y is int8, y_scale is in
 * both: relu lets a positive number through. */
template <int N>
struct epilogue {
  float by[N], add[N];
};

__device__ inline float scale_of_all(const quantized_conv_args &a) {
  return a.y_kind == QUANTIZED_CONV_I8 ? a.y_scale : 1;
}

/* What is read and written is aligned to all N. */
template <typename Y, typename R, int N>
struct finisher {
  enum { NARROW = sizeof(Y) == 1 };
  struct alignas(N * sizeof(Y) < 16 ? N * sizeof(Y) : 16) results {
    Y v[N];
  };
  struct alignas(N * sizeof(R) < 16 ? N * sizeof(R) : 16) residuals {
    R v[N];
  };

  /* Nobody writes the residual while the kernel runs. */
  static __device__ residuals load(const quantized_conv_args &a, int64_t at) {
    const residuals *from = (const residuals *)((const R *)a.residual + at);
    residuals r;
    if constexpr (sizeof(residuals) % 16 == 0) {
      UNROLLED(i, (int)sizeof(residuals) / 16) ((int4 *)&r)[i] = __ldg((const int4 *)from + i);
    } else {
      r = *from;
    }
    return r;
  }

  /* The results of one position, which are the elements of y from `at` on. */
  static __device__ void finish(const quantized_conv_args &a, int64_t at, const int (&sum)[N], const epilogue<N> &e) {
    float v[N];
    results y;
    UNROLLED(i, N) v[i] = fmaf((float)sum[i], e.by[i], e.add[i]);
    if (a.residual) {
      const residuals r = load(a, at);
      const float of_residual = a.residual_scale * scale_of_all(a);
      UNROLLED(i, N) v[i] = fmaf((float)r.v[i], of_residual, v[i]);
    }
    if constexpr (NARROW) {
      const float least = a.relu ? 0 : -127;
      int whole[N];
      UNROLLED(i, N) whole[i] = __float2int_rn(fmaxf(v[i], least));
      if constexpr (N % 4 == 0) {
        UNROLLED(i, N / 4)
          ((unsigned *)&y)[i] =
              pack_bytes(whole[4 * i], whole[4 * i + 1], pack_bytes(whole[4 * i + 2], whole[4 * i + 3], 0));
      } else {
        UNROLLED(i, N) y.v[i] = (int8_t)min(whole[i], 127);
      }
    } else {
      UNROLLED(i, N) y.v[i] = (Y)(a.relu && v[i] < 0 ? 0 : v[i]);
    }
    *(results *)((Y *)a.y + at) = y;
  }
};

/* Calls f with y's type and the residual's: that of y, or int8. */
template <typename Y, typename F>
__device__ inline void with_residual(const quantized_conv_args &a, F f) {
  if (a.narrow) f(Y(), int8_t());
  else f(Y(), Y());
}
template <typename F>
__device__ inline void with_types(const quantized_conv_args &a, F f) {
  switch (a.y_kind) {
    case QUANTIZED_CONV_F32: with_residual<float>(a, f); break;
    case QUANTIZED_CONV_F16: with_residual<f16>(a, f); break;
    case QUANTIZED_CONV_BF16: with_residual<bf16>(a, f); break;
    default: f(int8_t(), int8_t());
  }
}

/* ---- a result for each thread ---- */

__device__ inline void quantized_conv_direct(const quantized_conv_args &a) {
  const conv_shape &s = a.s;
  const int64_t outputs = s.groups * s.k, results = s.batch * volume(s.out) * outputs;
  for (int64_t to = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; to < results;
       to += (int64_t)gridDim.x * blockDim.x) {
    const int64_t k = to % outputs, group = k / s.k;
    const coordinates o(to / outputs, s.out);
    const int8_t *w = a.kernel + k * volume(s.window) * s.c;
    int sum[1] = {0};
    int64_t tap[CONV_AXES];
    for (tap[0] = 0; tap[0] < s.window[0]; tap[0]++)
      for (tap[1] = 0; tap[1] < s.window[1]; tap[1]++)
        for (tap[2] = 0; tap[2] < s.window[2]; tap[2]++, w += s.c) {
          const int64_t pixel = pixel_of_x(s, o, tap);
          if (pixel < 0) continue;
          const int8_t *x = a.x + (pixel * s.groups + group) * s.c;
          for (int64_t c = 0; c < s.c; c++) sum[0] += x[c] * w[c];
        }
    const float all = scale_of_all(a);
    const epilogue<1> e = {{a.scale[k] * all}, {a.bias ? a.bias[k] * all : 0}};
    with_types(a, [&](auto y, auto r) { finisher<decltype(y), decltype(r), 1>::finish(a, to, sum, e); });
  }
}
TFU_STAMP((TFU_THREADS), quantized_conv_direct_any, __grid_constant__ quantized_conv_args, quantized_conv_direct)

/* ---- tiles on tensor cores ---- */

#if __CUDA_ARCH__ >= 800
enum { HIGH = QUANTIZED_CONV_HIGH, LINE = QUANTIZED_CONV_LINE, STAGES = QUANTIZED_CONV_STAGES, CHUNKS = LINE / 16 };

/* Where a chunk of 16 bytes lies. Two lines are 128 bytes, all banks: eight lines of one chunk, which is what a matrix
 * load takes, come from different ones. */
__device__ inline unsigned place(int line, int chunk) { return line * LINE + ((chunk ^ (line >> 1 & 3)) << 4); }

__device__ inline void multiply(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Where a tile lies. blockIdx counts tiles of outputs first, since these see the same windows, then those of positions,
 * then groups. */
struct tile_place {
  int row, col, group;
  __device__ tile_place(const quantized_conv_args &a, unsigned tile, int rows, int columns) {
    const unsigned down = divide(tile, a.across), all = divide(down, a.down);
    row = (int)(down - all * a.down.by) * rows, col = (int)(tile - down * a.across.by) * columns, group = (int)all;
  }
};

/* What windows see: this thread's chunks of ROWS lines, of which all threads copy AT_ONCE at a time. */
template <int ROWS, int AT_ONCE>
struct seen {
  enum { COUNT = ROWS / AT_ONCE, NOWHERE = -(1 << 30) };
  const conv_shape &s;
  const int8_t *x;             /* of the group */
  int top[COUNT], left[COUNT]; /* where the windows of the lines begin … */
  unsigned at[COUNT];          /* … as a pixel of x: outside of it, modulo 2^32 */
  int down, across, c;         /* tap and channel of the chunk of the next part */

  __device__ seen(const quantized_conv_args &a) : s(a.s) {}

  __device__ void begin(const quantized_conv_args &a, const tile_place &p, int positions, int line, int chunk) {
    x = a.x + p.group * s.c;
    down = across = 0, c = 16 * chunk;
    UNROLLED(i, COUNT) {
      const unsigned m = p.row + line + i * AT_ONCE, row = divide(m, a.wide), image = divide(row, a.high);
      top[i] = m < positions ? (int)(row - image * a.high.by) * (int)s.stride[1] - (int)s.before[1] : NOWHERE;
      left[i] = (int)(m - row * a.wide.by) * (int)s.stride[2] - (int)s.before[2];
      at[i] = (image * (unsigned)s.in[1] + top[i]) * (unsigned)s.in[2] + left[i];
    }
  }

  __device__ void fetch(unsigned to) {
    const int channels = (int)s.c, high = (int)s.in[1], wide = (int)s.in[2];
    while (c >= channels) {
      c -= channels;
      if (++across == (int)s.window[2]) across = 0, down++;
    }
    const int i_tap = down * (int)s.dilation[1], j_tap = across * (int)s.dilation[2];
    const bool there = down < (int)s.window[1];
    UNROLLED(i, COUNT) {
      const bool inside =
          there && (unsigned)(top[i] + i_tap) < (unsigned)high && (unsigned)(left[i] + j_tap) < (unsigned)wide;
      const int8_t *const from = x + (at[i] + i_tap * (unsigned)wide + j_tap) * (s.groups * s.c) + c;
      copy_pack(to + i * AT_ONCE * LINE, inside ? from : x, inside ? 16 : 0);
    }
    c += LINE;
  }
};

__device__ inline void fetch_to_cache(const void *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

/* Brings the parts of a block's tiles to shared memory, one after the other: left lines, right lines, and with the last
 * part of a tile scale and bias of its outputs. */
template <int ROWS, int COLUMNS, int OWN, int THREADS>
struct loader {
  enum { AT_ONCE = THREADS / CHUNKS, COUNT = COLUMNS / AT_ONCE, PER_WARP = OWN < AT_ONCE ? 1 : OWN / AT_ONCE };
  enum { EACH = OWN / 4, LEFT = ROWS * LINE, LINES = LEFT + COLUMNS * LINE, STAGE = LINES + 8 * COLUMNS };
  const quantized_conv_args &a;
  const int positions, terms, outputs, count, line, chunk;
  const unsigned first_stage;
  seen<ROWS, AT_ONCE> windows;
  const int8_t *weights; /* this thread's first chunk of the next part */
  int tile, part, o, col, group;
  unsigned writing;

  __device__ loader(const quantized_conv_args &a, unsigned memory)
      : a(a),
        positions((int)(a.s.batch * volume(a.s.out))),
        terms((int)(volume(a.s.window) * a.s.c)),
        outputs((int)a.s.k),
        count((terms + LINE - 1) / LINE),
        line(threadIdx.x / CHUNKS),
        chunk(threadIdx.x % CHUNKS),
        first_stage(memory),
        windows(a),
        tile(blockIdx.x),
        part(0),
        writing(memory) {}

  /* Of a warp's OWN lines of the right factor, line n has output EACH * (n % 8 / 2) + n / 8 * 2 + n % 2. */
  __device__ void begin() {
    const tile_place p(a, tile, ROWS, COLUMNS);
    windows.begin(a, p, positions, line, chunk);
    col = p.col, group = p.group;
    o = col + line / OWN * OWN + EACH * (line % 8 / 2) + line % OWN / 8 * 2 + line % 2;
    weights = a.kernel + ((int64_t)group * outputs + o) * terms + 16 * chunk;
    if (!a.residual || !a.narrow) return;
    for (int i = threadIdx.x; i < ROWS; i += THREADS) /* a line of the residual is at most a line of the cache */
      if (p.row + i < positions)
        fetch_to_cache((const char *)a.residual + (p.row + i) * (a.s.groups * a.s.k) + group * outputs + col);
  }

  __device__ void fetch() {
    if (tile < a.tiles) {
      if (part == 0) begin();
      const unsigned mine = writing + place(line, chunk);
      windows.fetch(mine);
      UNROLLED(i, COUNT) {
        const int further = PER_WARP == 1 ? i * AT_ONCE : i % PER_WARP * (AT_ONCE / 4) + i / PER_WARP * OWN;
        const bool there = o + further < outputs && part * LINE + 16 * chunk < terms;
        copy_pack(mine + LEFT + i * AT_ONCE * LINE, there ? weights + (int64_t)further * terms : a.kernel,
                  there ? 16 : 0);
      }
      weights += LINE;
      if (++part == count) {
        fetch_numbers();
        part = 0, tile += gridDim.x;
      }
    }
    close_copies();
    writing = writing + STAGE == first_stage + STAGES * STAGE ? first_stage : writing + STAGE;
  }

  __device__ void fetch_numbers() {
    for (int i = threadIdx.x; i < COLUMNS / 2; i += THREADS) {
      const int at = i % (COLUMNS / 4) * 4;
      const float *const from = i < COLUMNS / 4 ? a.scale : a.bias;
      const bool there = from && col + at < outputs;
      copy_pack(writing + LINES + i * 16, there ? from + group * outputs + col + at : a.scale, there ? 16 : 0);
    }
  }
};

/* Scale and bias of EACH outputs from shared memory. */
template <int N>
__device__ inline epilogue<N> numbers_at(const quantized_conv_args &a, unsigned at, int columns) {
  const float all = scale_of_all(a);
  epilogue<N> e;
  UNROLLED(i, N / 4) {
    const int4 by = load_shared(at + 16 * i), add = load_shared(at + 4 * columns + 16 * i);
    const int *const words[2] = {&by.x, &add.x};
    UNROLLED(n, 4) {
      e.by[4 * i + n] = __int_as_float(words[0][n]) * all;
      e.add[4 * i + n] = __int_as_float(words[1][n]) * all;
    }
  }
  return e;
}
#endif

/* Lane 4 g + t of a warp has columns 2 t and 2 t + 1 of each product of 8 columns: the outputs are dealt to lines of
 * the right factor so that these, over all products, are EACH outputs side by side. */
template <int DOWN, int ACROSS, int OWN>
__device__ inline void quantized_conv_tensor(const quantized_conv_args &a) {
#if __CUDA_ARCH__ >= 800
  enum { ROWS = DOWN * HIGH, COLUMNS = ACROSS * OWN, PRODUCTS = OWN / 8, EACH = OWN / 4 };
  typedef loader<ROWS, COLUMNS, OWN, DOWN * ACROSS * 32> parts;
  enum { LEFT = parts::LEFT, LINES = parts::LINES, STAGE = parts::STAGE };
  static_assert(STAGE == QUANTIZED_CONV_STAGE(DOWN, ACROSS, OWN), "what is launched has this much shared memory");
  extern __shared__ __align__(1024) char memory[];
  const unsigned begin = shared_address(memory), l = lane_id();
  parts load(a, begin);
  const int warp = threadIdx.x / 32, down = warp / ACROSS * HIGH, across = warp % ACROSS * OWN;
  const unsigned left_lane = down * LINE + place(l & 15, l >> 4);
  const unsigned right_lane = LEFT + across * LINE + place((l & 7) + (l >> 4) * 8, l >> 3 & 1);
  unsigned reading = begin;
  for (int i = 0; i < STAGES - 1; i++) load.fetch();
  ONCE
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    int sum[HIGH / 16][PRODUCTS][4] = {};
    unsigned last;
    ONCE
    for (int part = 0; part < load.count; part++) {
      wait_for_copies<STAGES - 2>();
      __syncthreads(); /* this part is there for all, and all have read the one before, whose place is written next */
      load.fetch();
      UNROLLED(k, LINE / 32) {
        unsigned f[HIGH / 16][4], w[PRODUCTS / 2][4];
        UNROLLED(m, HIGH / 16) load_matrices(reading + ((left_lane + m * 16 * LINE) ^ (k * 32)), f[m]);
        UNROLLED(n, PRODUCTS / 2) load_matrices(reading + ((right_lane + n * 16 * LINE) ^ (k * 32)), w[n]);
        UNROLLED(m, HIGH / 16)
          UNROLLED(n, PRODUCTS) multiply(sum[m][n], f[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
      }
      last = reading;
      reading = reading + STAGE == begin + STAGES * STAGE ? begin : reading + STAGE;
    }
    const tile_place p(a, tile, ROWS, COLUMNS);
    const int own = across + EACH * (l % 4); /* the first of the tile's outputs that this lane has */
    if (p.col + own >= load.outputs) continue;
    const epilogue<EACH> e = numbers_at<EACH>(a, last + LINES + 4 * own, COLUMNS);
    const int64_t k = (int64_t)p.group * load.outputs + p.col + own;
    with_types(a, [&](auto y, auto r) {
      UNROLLED(i, HIGH / 8) {
        const int m = p.row + down + i * 8 + (int)l / 4;
        int v[EACH];
        UNROLLED(n, EACH) v[n] = sum[i / 2][n / 2][i % 2 * 2 + n % 2];
        if (m < load.positions) finisher<decltype(y), decltype(r), EACH>::finish(a, m * (a.s.groups * a.s.k) + k, v, e);
      }
    });
  }
#endif
}
#define STAMP(down, across, own, blocks)                                               \
  TFU_STAMP((down * across * 32, blocks), quantized_conv_##down##across##_##own##_any, \
            __grid_constant__ quantized_conv_args, quantized_conv_tensor<down, across, own>)
STAMP(2, 2, 64, 2)
STAMP(4, 1, 64, 2)
