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

/* Two words of numbers that are whole, saturated to bytes, below those of a third. */
__device__ inline unsigned pack_bytes(int low, int high, unsigned above) {
  unsigned bytes;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(high), "r"(low), "r"(above));
  return bytes;
}

/* Of N neighbouring outputs from k on: what sums are multiplied with, and what is added. Where y is int8, y_scale is in
 * all of these: relu lets a positive number through. What is read and written is aligned to all N. */
template <typename Y, typename R, int N>
struct finisher {
  enum { NARROW = sizeof(Y) == 1 };
  struct alignas(N * sizeof(Y) < 16 ? N * sizeof(Y) : 16) results {
    Y v[N];
  };
  struct alignas(N * sizeof(R) < 16 ? N * sizeof(R) : 16) residuals {
    R v[N];
  };
  float by[N], add[N], of_residual;

  __device__ finisher(const quantized_conv_args &a, int64_t k) {
    const float all = NARROW ? a.y_scale : 1;
    of_residual = a.residual_scale * all;
    UNROLLED(i, N) by[i] = a.scale[k + i] * all;
    UNROLLED(i, N) add[i] = a.bias ? a.bias[k + i] * all : 0;
  }

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
  __device__ void operator()(const quantized_conv_args &a, int64_t at, const int (&sum)[N]) const {
    float v[N];
    results y;
    UNROLLED(i, N) v[i] = fmaf((float)sum[i], by[i], add[i]);
    if (a.residual) {
      const residuals r = load(a, at);
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
    with_types(a, [&](auto y, auto r) { finisher<decltype(y), decltype(r), 1>(a, k)(a, to, sum); });
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

/* What windows see: this thread's chunks of ROWS lines, of which all threads copy AT_ONCE at a time. */
template <int ROWS, int AT_ONCE>
struct seen {
  enum { COUNT = ROWS / AT_ONCE, NOWHERE = -(1 << 30) };
  const conv_shape &s;
  const int8_t *x;             /* of the group */
  int top[COUNT], left[COUNT]; /* where the windows of the lines begin … */
  unsigned at[COUNT];          /* … as a pixel of x: outside of it, modulo 2^32 */
  int down, across, c;         /* tap and channel of the chunk of the next tile */

  __device__ seen(const quantized_conv_args &a, int first, int positions, int group, int line, int chunk)
      : s(a.s), x(a.x + group * a.s.c), down(0), across(0), c(16 * chunk) {
    const unsigned high = (unsigned)s.out[1], wide = (unsigned)s.out[2];
    UNROLLED(i, COUNT) {
      const unsigned m = first + line + i * AT_ONCE, row = m / wide, image = row / high;
      top[i] = m < positions ? (int)(row - image * high) * (int)s.stride[1] - (int)s.before[1] : NOWHERE;
      left[i] = (int)(m - row * wide) * (int)s.stride[2] - (int)s.before[2];
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
#endif

/* Lane 4 g + t of a warp has columns 2 t and 2 t + 1 of each
 * product of 8 columns: the outputs are dealt to lines of the right tile so that these, over all products, are EACH
 * outputs side by side.
 *
 * blockIdx.x counts tiles of outputs first, since these see the same windows, then those of positions, then groups. */
template <int DOWN, int ACROSS, int OWN>
__device__ inline void quantized_conv_tensor(const quantized_conv_args &a) {
#if __CUDA_ARCH__ >= 800
  enum { ROWS = DOWN * HIGH, COLUMNS = ACROSS * OWN, PRODUCTS = OWN / 8, EACH = OWN / 4 };
  enum {
    AT_ONCE = DOWN * ACROSS * 32 / CHUNKS,
    COUNT = COLUMNS / AT_ONCE,
    PER_WARP = OWN < AT_ONCE ? 1 : OWN / AT_ONCE
  };
  enum { LEFT = ROWS * LINE, STAGE = LEFT + COLUMNS * LINE };
  extern __shared__ __align__(1024) char memory[];
  const conv_shape &s = a.s;
  const int positions = (int)(s.batch * volume(s.out)), terms = (int)(volume(s.window) * s.c), outputs = (int)s.k;
  const int tiles = (outputs + COLUMNS - 1) / COLUMNS, rows = (positions + ROWS - 1) / ROWS;
  const int row = (int)blockIdx.x / tiles % rows * ROWS, col = (int)blockIdx.x % tiles * COLUMNS;
  const int group = (int)blockIdx.x / tiles / rows, count = (terms + LINE - 1) / LINE;
  const int line = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  const unsigned begin = shared_address(memory), mine = place(line, chunk);
  seen<ROWS, AT_ONCE> windows(a, row, positions, group, line, chunk);
  /* Of a warp's OWN lines of the right tile, line n has output EACH * (n % 8 / 2) + n / 8 * 2 + n % 2. */
  const int o = col + line / OWN * OWN + EACH * (line % 8 / 2) + line % OWN / 8 * 2 + line % 2;
  const int8_t *weights = a.kernel + ((int64_t)group * outputs + o) * terms + 16 * chunk;
  int terms_left = terms - 16 * chunk; /* from this thread's chunk of the next tile on */
  unsigned writing = begin;
  const auto fetch = [&](bool more) {
    if (more) {
      windows.fetch(writing + mine);
      UNROLLED(i, COUNT) {
        const int further = PER_WARP == 1 ? i * AT_ONCE : i % PER_WARP * (AT_ONCE / 4) + i / PER_WARP * OWN;
        const bool there = o + further < outputs && terms_left > 0;
        copy_pack(writing + LEFT + mine + i * AT_ONCE * LINE, there ? weights + (int64_t)further * terms : a.kernel,
                  there ? 16 : 0);
      }
      weights += LINE;
      terms_left -= LINE;
    }
    close_copies();
    writing = writing + STAGE == begin + STAGES * STAGE ? begin : writing + STAGE;
  };

  const int warp = threadIdx.x / 32, down = warp / ACROSS * HIGH, across = warp % ACROSS * OWN;
  const unsigned l = lane_id();
  const unsigned left_lane = down * LINE + place(l & 15, l >> 4);
  const unsigned right_lane = LEFT + across * LINE + place((l & 7) + (l >> 4) * 8, l >> 3 & 1);
  int sum[HIGH / 16][PRODUCTS][4] = {};
  unsigned reading = begin;
  for (int i = 0; i < STAGES - 1; i++) fetch(i < count);
  ONCE
  for (int tile = 0; tile < count; tile++) {
    wait_for_copies<STAGES - 2>();
    __syncthreads(); /* this tile is there for all, and all have read the one before, whose place is written next */
    fetch(tile + STAGES - 1 < count);
    UNROLLED(k, LINE / 32) {
      unsigned f[HIGH / 16][4], w[PRODUCTS / 2][4];
      UNROLLED(m, HIGH / 16) load_matrices(reading + ((left_lane + m * 16 * LINE) ^ (k * 32)), f[m]);
      UNROLLED(n, PRODUCTS / 2) load_matrices(reading + ((right_lane + n * 16 * LINE) ^ (k * 32)), w[n]);
      UNROLLED(m, HIGH / 16)
        UNROLLED(n, PRODUCTS) multiply(sum[m][n], f[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
    }
    reading = reading + STAGE == begin + STAGES * STAGE ? begin : reading + STAGE;
  }

  const int first = col + across + EACH * (l % 4);
  if (first >= outputs) return;
  const int64_t k = (int64_t)group * outputs + first;
  with_types(a, [&](auto y, auto r) {
    const finisher<decltype(y), decltype(r), EACH> finish(a, k);
    UNROLLED(i, HIGH / 8) {
      const int m = row + down + i * 8 + (int)l / 4;
      int v[EACH];
      UNROLLED(n, EACH) v[n] = sum[i / 2][n / 2][i % 2 * 2 + n % 2];
      if (m < positions) finish(a, m * (s.groups * s.k) + k, v);
    }
  });
#endif
}
#define STAMP(down, across, own, blocks)                                               \
  TFU_STAMP((down * across * 32, blocks), quantized_conv_##down##across##_##own##_any, \
            __grid_constant__ quantized_conv_args, quantized_conv_tensor<down, across, own>)
STAMP(2, 2, 64, 2)
STAMP(4, 1, 64, 2)
STAMP(2, 4, 32, 2)
STAMP(2, 2, 32, 4)
STAMP(4, 2, 32, 2)
