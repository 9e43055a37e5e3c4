/* few_rows.cuh - what the kernels for few rows share, whatever the type of their weights: which columns a block has,
 * sums over a cluster, and what is made of a sum. */
#pragma once

#include "kernels/core/device/any_activation.cuh"
#include "kernels/core/device/cluster.cuh"
#include "kernels/core/device/mma.cuh"
#include "kernels/core/device/overlap.cuh"
#include "kernels/core/device/row_team.cuh"
#include "kernels/products/few_rows.h"

#if __CUDA_ARCH__ >= 900
enum { THREADS = 32 * FEW_ROWS_WARPS };

/* What a block computes: N columns of one product, or half as many of each of two that are gated. */
template <int N>
struct few_rows_tile {
  int product;   /* the first of them */
  int64_t first; /* column */

  __device__ few_rows_tile(const few_rows_args &a, int64_t tile) : product(0) {
    const int columns = a.gated ? N / 2 : N;
    first = tile * columns;
    if (a.gated) return;
    while (product < 2 && first >= (a.of[product].outputs + columns - 1) / columns * columns) {
      first -= (a.of[product].outputs + columns - 1) / columns * columns;
      product++;
    }
  }
};

/* The sum of a number over the blocks of the cluster, in their order. All are asked for before the first is waited for.
 */
__device__ inline float sum_over_cluster(const float *mine, int blocks) {
  float v[FEW_ROWS_SPLITS];
  UNROLLED(rank, FEW_ROWS_SPLITS) {
    v[rank] = 0;
    if (rank < blocks) {
      unsigned at;
      asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(rank));
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v[rank]) : "r"(at) : "memory");
    }
  }
  float sum = 0;
  UNROLLED(rank, FEW_ROWS_SPLITS) sum += v[rank];
  return sum;
}

/* A result: its row of x, and its column, counted within the tile. */
template <typename T, int N>
struct few_rows_result {
  const few_rows_product &p;
  int64_t column, at;
  bool is_one; /* not beyond the last row or column */
  bool added;  /* has a residual */

  __device__ few_rows_result(const few_rows_args &a, const few_rows_tile<N> &tile, int row, int c)
      : p(a.of[tile.product]), column(tile.first + c), at(row * p.outputs + column) {
    is_one = row < a.rows && column < p.outputs;
    added = is_one && a.residual && tile.product == 0;
  }
  __device__ float residual(const few_rows_args &a) const { return added ? (float)((const T *)a.residual)[at] : 0.0f; }
  /* v is the sum of a column; of a gated unit, `factor` that of the same column of the other product. */
  __device__ void finish(const few_rows_args &a, float v, float factor, float residual) const {
    if (!is_one) return;
    if (p.bias) v += (float)((const T *)p.bias)[column];
    v = activate<T>(a.activation, v);
    if (a.gated) v *= factor + (a.of[1].bias ? (float)((const T *)a.of[1].bias)[column] : 0);
    ((T *)p.y)[at] = (T)(v + residual);
  }
};
#endif
