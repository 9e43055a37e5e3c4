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

/* What a block computes: so many columns of one product, or of each of two that are gated. */
struct few_rows_tile {
  int product;   /* the first of them */
  int64_t first; /* column */

  __device__ few_rows_tile(const few_rows_args &a, int64_t tile, int columns) : product(0), first(tile * columns) {
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
template <typename T>
struct few_rows_result {
  const few_rows_product &p;
  int64_t column, at;
  bool is_one; /* not beyond the last row or column */
  bool added;  /* has a residual */

  __device__ few_rows_result(const few_rows_args &a, const few_rows_tile &tile, int row, int c)
      : p(a.of[tile.product]), column(tile.first + c), at(row * p.outputs + column) {
    is_one = row < a.rows && column < p.outputs;
    added = is_one && a.residual && tile.product == 0;
  }
  __device__ float residual(const few_rows_args &a) const { return added ? (float)((const T *)a.residual)[at] : 0.0f; }
  /* v is the sum of a column; of a gated unit, `factor` that of the same column of the other product. */
  __device__ void finish(const few_rows_args &a, float v, float factor, float residual) const {
    if (!is_one) return;
    if (p.bias) v += (float)((const T *)p.bias)[column];
    if (a.activation != TFU_ACT_linear) v = activate<T>(a.activation, v);
    if (a.gated) v *= factor + (a.of[1].bias ? (float)((const T *)a.of[1].bias)[column] : 0);
    ((T *)p.y)[at] = (T)(v + residual);
  }
};

/* Sums of up to ROWS rows, of which each slice of a block's warps has a part, in shared memory; the squares of x are
 * one more column. */
template <int N, int SLICES, int ROWS>
struct few_rows_parts {
  enum { SQUARES = N };
  float of[SLICES][ROWS][N + 4]; /* of a row, those four further on are in other banks */
};

/* Makes results of them: joined over slices, then over the blocks of the cluster, in fixed order (split-K). It begins
 * with a barrier: until then, threads may write their own. Rows count from first_row; `early`, where it is not NULL, is
 * the residual of the thread's first result. `row_scale`, where it is not NULL, multiplies the sums of each row, whose
 * x was normed before. */
template <typename T, int N, int SLICES, int ROWS>
__device__ inline void join(const few_rows_args &a, const few_rows_tile &tile, few_rows_parts<N, SLICES, ROWS> &parts,
                            int first_row, const float *early, const float *row_scale) {
  enum { SQUARES = few_rows_parts<N, SLICES, ROWS>::SQUARES };
  auto &part = parts.of;
  const int split = (int)(blockIdx.x % (unsigned)a.splits), rows = min((int)ROWS, a.rows - first_row),
            columns = a.gated ? N / 2 : N;
  const bool normed = a.gamma && !row_scale;
  __syncthreads();
  const auto join_slices = [&](int row, int c) {
    float v = part[0][row][c];
    UNROLLED(s, SLICES - 1) v += part[s + 1][row][c];
    part[0][row][c] = v;
  };
  for (int i = threadIdx.x; i < rows * N; i += THREADS) join_slices(i / N, i % N);
  if (normed && threadIdx.x < rows) join_slices(threadIdx.x, SQUARES);
  if (a.splits > 1) cluster_barrier();
  else __syncthreads();
  const auto total = [&](int row, int c) {
    return a.splits > 1 ? sum_over_cluster(&part[0][row][c], a.splits) : part[0][row][c];
  };
  for (int i = split * THREADS + threadIdx.x; i < rows * columns; i += a.splits * THREADS) {
    const int row = a.gated ? i / (N / 2) : i / N, c = i & (columns - 1);
    float scale = row_scale ? row_scale[row] : 1;
    if (normed) scale = rsqrtf(total(row, SQUARES) / (float)a.inputs + a.epsilon);
    const few_rows_result<T> result(a, tile, first_row + row, c);
    result.finish(a, total(row, c) * scale, a.gated ? total(row, c + columns) * scale : 0,
                  early && i < a.splits * THREADS ? *early : result.residual(a));
  }
  if (a.splits > 1) leave_cluster();
}
#endif
