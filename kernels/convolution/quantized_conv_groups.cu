/* quantized_conv_groups.cu - QuantizedConv by warpgroups (wgmma): the same implicit GEMM as in quantized_conv.cu, whose
 * factors are multiplied straight out of shared memory. GPUs of compute capability 9.0 alone have that. */
#include "kernels/convolution/quantized_conv.cuh"
#include "kernels/core/device/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define R4_(c, i) "+r"(c[i][0]), "+r"(c[i][1]), "+r"(c[i][2]), "+r"(c[i][3])
#define R16_(c, i) R4_(c, i), R4_(c, i + 1), R4_(c, i + 2), R4_(c, i + 3)

/* c = left x right, c + that where `add`: 64 rows by 64 or 128 columns, of 32 terms. */
__device__ inline void multiply_warpgroup(int (&c)[8][4], uint64_t left, uint64_t right, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p;\n}"
      : R16_(c, 0), R16_(c, 4)
      : "l"(left), "l"(right), "r"(add));
}
__device__ inline void multiply_warpgroup(int (&c)[16][4], uint64_t left, uint64_t right, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
      "%58, %59, %60, %61, %62, %63}, %64, %65, p;\n}"
      : R16_(c, 0), R16_(c, 4), R16_(c, 8), R16_(c, 12)
      : "l"(left), "l"(right), "r"(add));
}

/* wgmma reads shared memory in a way of its own, which sees copies of packs after this. */
__device__ inline void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Lines of 64 or 128 bytes as wgmma takes them: their chunks are permuted as loader::place has it. */
template <int LINE>
__device__ inline uint64_t lines_of_wgmma(unsigned at) {
  return (uint64_t)(LINE == 128 ? 1 : 2) << 62 | (uint64_t)(8 * LINE >> 4) << 32 | (uint64_t)1 << 16 | at >> 4;
}
#endif

/* DOWN warpgroups, of M times 64 positions by OWN outputs each. */
template <int DOWN, int M, int OWN, int LINE, int STAGES>
__device__ inline void quantized_conv_groups(const quantized_conv_args &a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  typedef loader<DOWN * M * 64, OWN, DOWN * 128, LINE, STAGES> parts;
  extern __shared__ __align__(1024) char memory[];
  const unsigned begin = shared_address(memory);
  parts load(a, begin);
  const int down = threadIdx.x / 128 * M * 64;
  unsigned reading = begin;
  for (int i = 0; i < STAGES - 1; i++) load.fetch();
  ONCE
  for (int tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
    int sum[M][OWN / 8][4];
    unsigned last;
    ONCE
    for (int part = 0; part < load.count; part++) {
      wait_for_copies<STAGES - 2>();
      show_copies();
      __syncthreads(); /* this part is there for all, and all have read the one before, whose place is written next */
      begin_products();
      UNROLLED(k, LINE / 32)
        UNROLLED(m, M)
          multiply_warpgroup(sum[m], lines_of_wgmma<LINE>(reading + (down + m * 64) * LINE + k * 32),
                             lines_of_wgmma<LINE>(reading + parts::LEFT + k * 32), part + k);
      close_products();
      load.fetch();
      wait_for_products<0>();
      last = reading;
      reading = load.after(reading);
    }
    UNROLLED(i, M * OWN / 2) /* not before the wait: the compiler does not see what wgmma writes then */
      asm volatile("" : "+r"(sum[i / (OWN / 2)][i / 4 % (OWN / 8)][i % 4]));
    const tile_place p(a, tile, DOWN * M * 64, OWN);
    finish_tile<64, OWN>(a, p, down + threadIdx.x % 128 / 32 * 16, 0, sum, last + parts::LINES);
  }
#endif
}
#define STAMP(down, m, own, line, stages, blocks)                                \
  TFU_STAMP((down * 128, blocks), quantized_conv_groups_##down##m##_##own##_any, \
            __grid_constant__ quantized_conv_args, quantized_conv_groups<down, m, own, line, stages>)
STAMP(1, 2, 128, 128, 3, 2)
STAMP(1, 2, 64, 64, 4, 3)
