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

template <typename Y>
__device__ inline Y narrow(float v, float) {
  return (Y)v;
}
template <>
__device__ inline int8_t narrow<int8_t>(float v, float scale) {
  return (int8_t)min(max(__float2int_rn(v * scale), -127), 127); /* NaN is 0 */
}

/* N neighbours of one position from output k on, which are element `to` of y, and aligned to all N. */
template <typename Y, typename R, int N>
__device__ inline void finish_as(const quantized_conv_args &a, int64_t to, int64_t k, const int (&sum)[N]) {
  struct alignas(N * sizeof(Y)) results {
    Y v[N];
  } y;
  struct alignas(N * sizeof(R)) residuals {
    R v[N];
  } more;
  if (a.residual) more = *(const residuals *)((const R *)a.residual + to);
  UNROLLED(i, N) {
    float v = (float)sum[i] * __ldg(a.scale + k + i);
    if (a.bias) v += __ldg(a.bias + k + i);
    if (a.residual) v += (float)more.v[i] * a.residual_scale;
    y.v[i] = narrow<Y>(a.relu && v < 0 ? 0 : v, a.y_scale);
  }
  *(results *)((Y *)a.y + to) = y;
}

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
    with_types(a, [&](auto y, auto r) { finish_as<decltype(y), decltype(r), 1>(a, to, k, sum); });
  }
}
TFU_STAMP((TFU_THREADS), quantized_conv_direct_any, __grid_constant__ quantized_conv_args, quantized_conv_direct)

/* ---- tiles on tensor cores ---- */

#if __CUDA_ARCH__ >= 800
enum { ROWS = QUANTIZED_CONV_ROWS, LINE = QUANTIZED_CONV_LINE, STAGES = QUANTIZED_CONV_STAGES, CHUNKS = LINE / 16 };
enum { AT_ONCE = TFU_THREADS / CHUNKS }; /* lines that all threads copy, a chunk of 16 bytes each */

/* Where a chunk lies. Two lines are 128 bytes, all banks: eight lines of one chunk, which is what a matrix load takes,
 * come from different ones. */
__device__ inline unsigned place(int line, int chunk) { return line * LINE + ((chunk ^ (line >> 1 & 3)) << 4); }

__device__ inline void multiply(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* What windows see: this thread's chunk of some lines. */
struct seen {
  enum { COUNT = ROWS / AT_ONCE, NOWHERE = -(1 << 30) };
  const conv_shape &s;
  const int8_t *x;             /* of the group */
  int top[COUNT], left[COUNT]; /* where the windows of the lines begin … */
  unsigned at[COUNT];          /* … as a pixel of x: outside of it, modulo 2^32 */
  int down, across, c;         /* tap and channel of the chunk of the next tile */

  __device__ seen(const quantized_conv_args &a, int first, int positions, int group, int line, int chunk)
      : s(a.s), x(a.x + group * a.s.c), down(0), across(0), c(16 * chunk) {
    UNROLLED(i, COUNT) {
      const int m = first + line + i * AT_ONCE, high = (int)s.out[1], wide = (int)s.out[2];
      top[i] = m < positions ? m / wide % high * (int)s.stride[1] - (int)s.before[1] : NOWHERE;
      left[i] = m % wide * (int)s.stride[2] - (int)s.before[2];
      at[i] = (m / wide / high * (unsigned)s.in[1] + top[i]) * (unsigned)s.in[2] + left[i];
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

/* Eight warps have 32 x OWN results each, four below each other and two side by side. Lane 4 g + t of a warp has
 * columns 2 t and 2 t + 1 of each product of 8 columns: the outputs are dealt to lines of the right tile so that these,
 * over all products, are EACH outputs side by side.
 *
 * blockIdx.x counts tiles of outputs first, since these see the same windows, then those of positions, then groups. */
template <int COLUMNS>
__device__ inline void quantized_conv_tensor(const quantized_conv_args &a) {
#if __CUDA_ARCH__ >= 800
  enum { OWN = COLUMNS / 2, PRODUCTS = OWN / 8, EACH = OWN / 4, COUNT = COLUMNS / AT_ONCE };
  enum { LEFT = ROWS * LINE, STAGE = LEFT + COLUMNS * LINE };
  extern __shared__ __align__(1024) char memory[];
  const conv_shape &s = a.s;
  const int positions = (int)(s.batch * volume(s.out)), terms = (int)(volume(s.window) * s.c), outputs = (int)s.k;
  const int tiles = (outputs + COLUMNS - 1) / COLUMNS, rows = (positions + ROWS - 1) / ROWS;
  const int row = (int)blockIdx.x / tiles % rows * ROWS, col = (int)blockIdx.x % tiles * COLUMNS;
  const int group = (int)blockIdx.x / tiles / rows, count = (terms + LINE - 1) / LINE;
  const int line = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
  const unsigned begin = shared_address(memory), mine = place(line, chunk);
  seen windows(a, row, positions, group, line, chunk);
  const int8_t *weights[COUNT]; /* NULL: beyond the outputs */
  UNROLLED(i, COUNT) {
    const int n = line + i * AT_ONCE, r = n % 8;
    const int o = col + n / OWN * OWN + EACH * (r / 2) + n % OWN / 8 * 2 + r % 2;
    weights[i] = o < outputs ? a.kernel + ((int64_t)group * outputs + o) * terms + 16 * chunk : NULL;
  }
  int left_terms = terms - 16 * chunk; /* from this thread's chunk of the next tile on */
  unsigned writing = begin;
  const auto fetch = [&](bool more) {
    if (more) {
      windows.fetch(writing + mine);
      UNROLLED(i, COUNT) {
        const bool there = weights[i] && left_terms > 0;
        copy_pack(writing + LEFT + mine + i * AT_ONCE * LINE, there ? weights[i] : a.kernel, there ? 16 : 0);
        if (weights[i]) weights[i] += LINE;
      }
      left_terms -= LINE;
    }
    close_copies();
    writing = writing + STAGE == begin + STAGES * STAGE ? begin : writing + STAGE;
  };

  const int warp = threadIdx.x / 32;
  const unsigned l = lane_id();
  const unsigned left_lane = warp % 4 * 32 * LINE + place(l & 15, l >> 4);
  const unsigned right_lane = LEFT + warp / 4 * OWN * LINE + place((l & 7) + (l >> 4) * 8, l >> 3 & 1);
  int sum[2][PRODUCTS][4] = {};
  unsigned reading = begin;
  for (int i = 0; i < STAGES - 1; i++) fetch(i < count);
  ONCE
  for (int tile = 0; tile < count; tile++) {
    wait_for_copies<STAGES - 2>();
    __syncthreads(); /* this tile is there for all, and all have read the one before, whose place is written next */
    fetch(tile + STAGES - 1 < count);
    UNROLLED(k, LINE / 32) {
      unsigned f[2][4], w[PRODUCTS / 2][4];
      UNROLLED(m, 2) load_matrices(reading + ((left_lane + m * 16 * LINE) ^ (k * 32)), f[m]);
      UNROLLED(n, PRODUCTS / 2) load_matrices(reading + ((right_lane + n * 16 * LINE) ^ (k * 32)), w[n]);
      UNROLLED(m, 2)
        UNROLLED(n, PRODUCTS) multiply(sum[m][n], f[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
    }
    reading = reading + STAGE == begin + STAGES * STAGE ? begin : reading + STAGE;
  }

  const int first = col + warp / 4 * OWN + EACH * (l % 4);
  if (first >= outputs) return;
  const int64_t k = (int64_t)group * outputs + first;
  with_types(a, [&](auto y, auto r) {
    UNROLLED(i, 4) {
      const int m = row + warp % 4 * 32 + i / 2 * 16 + i % 2 * 8 + (int)l / 4;
      int v[EACH];
      UNROLLED(n, EACH) v[n] = sum[i / 2][n / 2][i % 2 * 2 + n % 2];
      if (m < positions) finish_as<decltype(y), decltype(r), EACH>(a, m * (s.groups * s.k) + k, k, v);
    }
  });
#endif
}
TFU_STAMP((TFU_THREADS, 2), quantized_conv_64_any, __grid_constant__ quantized_conv_args, quantized_conv_tensor<64>)
TFU_STAMP((TFU_THREADS, 2), quantized_conv_128_any, __grid_constant__ quantized_conv_args, quantized_conv_tensor<128>)
