/* wgmma.cuh - what GPUs of compute capability 9.0 alone have (sm_90a): products of tiles by warpgroups, 128 threads
 * that multiply at one time (wgmma), and what feeds them, copies of whole tiles (TMA) that report to barriers in shared
 * memory (mbarrier).
 *
 * A tile in shared memory is lines of 64 numbers of 16 bits, 128 bytes. Its 16-byte chunks lie permuted, as in mma.cuh
 * (swizzle of 128 bytes), and it begins at a multiple of 1024 bytes. A factor in registers is mma.cuh's: warp w of the
 * warpgroup has its rows 16 w .. 16 w + 15. Results are in the accumulators' layout there, float[4] for every eight
 * columns. */
#pragma once

#include "kernels/core/device/barriers.cuh"
#include "kernels/core/device/mma.cuh"
#include "kernels/core/gpu/tensor_map.h"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* For so many threads of a block alone, whole warps; `which` is 1 or more. */
template <int COUNT>
__device__ inline void sync_threads(int which) {
  asm volatile("bar.sync %0, %1;" ::"r"(which), "n"(COUNT) : "memory");
}

/* ---- copies ---- */

/* A box of a matrix, a tile of 64 columns, from its column and row on, with zeros beyond the matrix. */
__device__ inline void copy_box(unsigned to, const tfu_tensor_map &map, int column, int row, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
/* The same to several blocks of the cluster, a bit each: to the same places there, and counted there. */
__device__ inline void copy_box_to(unsigned blocks, unsigned to, const tfu_tensor_map &map, int column, int row,
                                   unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, "
      "%3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"((uint16_t)blocks)
      : "memory");
}

/* ---- registers: what one warpgroup gives back, others take ---- */

template <int COUNT>
__device__ inline void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- products ---- */

/* Before products that read registers which have been written. */
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Until at most so many closed groups of products are under way. */
template <int AT_MOST>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(AT_MOST) : "memory");
}

/* A tile as wgmma takes it, whose lines are the factor's rows or, where the instruction transposes, its columns: eight
 * lines further on are 1024 bytes. What is 16 columns of the tile further on is 2 more. */
__device__ inline uint64_t tile_of_wgmma(unsigned at) {
  return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(1024 >> 4) << 16 | (at & 0x3ffff) >> 4;
}

#define WGMMA_8_(c, i)                                                                                        \
  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
      "+f"(c[i + 7])
#define WGMMA_32_(c, i) WGMMA_8_(c, i), WGMMA_8_(c, i + 8), WGMMA_8_(c, i + 16), WGMMA_8_(c, i + 24)

/* c += left x right: 64 rows by as many columns as c has numbers for, which are lines of the right tile. */
__device__ inline void multiply_warpgroup(float (&c)[32], const unsigned (&a)[4], uint64_t right, bf16) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
      : WGMMA_32_(c, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));
}
__device__ inline void multiply_warpgroup(float (&c)[64], const unsigned (&a)[4], uint64_t right, bf16) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
      "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, "
      "%67}, "
      "%68, 1, 1, 1, 0;"
      : WGMMA_32_(c, 0), WGMMA_32_(c, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right));
}

/* The same with a left tile, whose lines are the factor's columns; c = left x right where nothing is to be `added` to.
 */
#define WGMMA_4_(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define WGMMA_16_(c, i) WGMMA_8_(c, i), WGMMA_8_(c, i + 8)
#define WGMMA_64_(c, i) WGMMA_32_(c, i), WGMMA_32_(c, i + 32)
#define WGMMA_NAMES_4_ "%0, %1, %2, %3"
#define WGMMA_NAMES_8_ WGMMA_NAMES_4_ ", %4, %5, %6, %7"
#define WGMMA_NAMES_16_ WGMMA_NAMES_8_ ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_32_ \
  WGMMA_NAMES_16_ ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_NAMES_64_                                                                     \
  WGMMA_NAMES_32_                                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_TILES_(columns, sums, left_name, right_name, added_name, T)                                           \
  __device__ inline void multiply_warpgroup(float(&c)[sums], uint64_t left, uint64_t right, int added, T) {         \
    asm volatile("{\n.reg .pred added;\nsetp.ne.b32 added, %" #added_name                                           \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #T "." #T " {" WGMMA_NAMES_##sums##_ \
                 "}, %" #left_name ", %" #right_name ", added, 1, 1, 1, 0;\n}"                                      \
                 : WGMMA_##sums##_(c, 0)                                                                            \
                 : "l"(left), "l"(right), "r"(added));                                                              \
  }
#define WGMMA_BOTH_TYPES_(columns, sums, left_name, right_name, added_name) \
  WGMMA_TILES_(columns, sums, left_name, right_name, added_name, f16)       \
  WGMMA_TILES_(columns, sums, left_name, right_name, added_name, bf16)
WGMMA_BOTH_TYPES_(8, 4, 4, 5, 6)
WGMMA_BOTH_TYPES_(16, 8, 8, 9, 10)
WGMMA_BOTH_TYPES_(32, 16, 16, 17, 18)
WGMMA_BOTH_TYPES_(64, 32, 32, 33, 34)
WGMMA_BOTH_TYPES_(128, 64, 64, 65, 66)
#endif
