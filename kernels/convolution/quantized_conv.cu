/* QuantizedConv (ops/convolution/quantized_conv.c): int8 times int8, summed in int32, and an epilogue that makes floats
 * of the sums, or int8 for the next convolution.
 *
 * direct takes any shape, a result for each thread. tensor is an implicit GEMM on tensor cores (quantized_conv.cuh), by
 * warps that multiply each for itself; quantized_conv_groups.cu has the same by warpgroups. */
#include "kernels/convolution/quantized_conv.cuh"

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
    epilogue<1> e;
    e.set(a, 0, a.scale[k], a.bias ? a.bias[k] : 0);
    with_types<1>(a, [&](auto one) { one.finish(a, to, sum, e); });
  }
}
TFU_STAMP((TFU_THREADS), quantized_conv_direct_any, __grid_constant__ quantized_conv_args, quantized_conv_direct)

/* ---- tiles on tensor cores ---- */

#if __CUDA_ARCH__ >= 800
__device__ inline void multiply(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

/* DOWN x ACROSS warps, of 64 positions by 64 outputs each. */
template <int DOWN, int ACROSS>
__device__ inline void quantized_conv_tensor(const quantized_conv_args &a) {
#if __CUDA_ARCH__ >= 800
  enum { LINE = 64, STAGES = 4, SIDE = 64, M = SIDE / 16, N = SIDE / 8 };
  typedef loader<DOWN * SIDE, ACROSS * SIDE, DOWN * ACROSS * 32, LINE, STAGES> parts;
  extern __shared__ __align__(1024) char memory[];
  const unsigned begin = shared_address(memory), l = lane_id();
  parts load(a, begin);
  const int warp = threadIdx.x / 32, down = warp / ACROSS * SIDE, across = warp % ACROSS * SIDE;
  const unsigned left_lane = down * LINE + parts::place(l & 15, l >> 4);
  const unsigned right_lane = parts::LEFT + across * LINE + parts::place((l & 7) + (l >> 4) * 8, l >> 3 & 1);
  unsigned reading = begin;
  for (int i = 0; i < STAGES - 1; i++) load.fetch();
  ONCE
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    int sum[M][N][4] = {};
    unsigned last;
    ONCE
    for (int part = 0; part < load.count; part++) {
      wait_for_copies<STAGES - 2>();
      __syncthreads(); /* this part is there for all, and all have read the one before, whose place is written next */
      load.fetch();
      UNROLLED(k, LINE / 32) {
        unsigned f[M][4], w[N / 2][4];
        UNROLLED(m, M) load_matrices(reading + ((left_lane + m * 16 * LINE) ^ (k * 32)), f[m]);
        UNROLLED(n, N / 2) load_matrices(reading + ((right_lane + n * 16 * LINE) ^ (k * 32)), w[n]);
        UNROLLED(m, M)
          UNROLLED(n, N) multiply(sum[m][n], f[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
      }
      last = reading;
      reading = load.after(reading);
    }
    const tile_place p(a, tile, DOWN * SIDE, ACROSS * SIDE);
    finish_tile<16, ACROSS * SIDE>(a, p, down, across, sum, last + parts::LINES);
  }
#endif
}
#define STAMP(down, across, blocks)                                                                                   \
  TFU_STAMP((down * across * 32, blocks), quantized_conv_##down##across##_any, __grid_constant__ quantized_conv_args, \
            quantized_conv_tensor<down, across>)
STAMP(2, 2, 2)
STAMP(4, 1, 2)
