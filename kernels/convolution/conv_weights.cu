/* A convolution's kernel between float32 and 16 bits, transposed (conv_weights.h). Most of them take no longer than a
 * launch does: a block has a small tile, so that many blocks share one. Each element is read and written once. */
#include "kernels/convolution/conv_weights.h"

#include "kernels/core/device/pack.cuh"

/* Threads stand side by side along the columns that are read, then along those that are written; the tile's odd pitch
 * keeps both ways free of bank conflicts. */
template <typename FROM, typename TO>
__device__ inline void transpose(const conv_weights_args &a) {
  enum { TILE = CONV_WEIGHTS_TILE, STEP = TFU_THREADS / TILE };
  __shared__ float tile[TILE][TILE + 1];
  const int64_t across = (a.cols + TILE - 1) / TILE;
  const int64_t row = blockIdx.x / across * TILE, col = blockIdx.x % across * TILE;
  const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
  UNROLL
  for (int i = y; i < TILE; i += STEP)
    if (row + i < a.rows && col + x < a.cols) tile[i][x] = (float)((const FROM *)a.from)[(row + i) * a.cols + col + x];
  __syncthreads();
  UNROLL
  for (int i = y; i < TILE; i += STEP)
    if (col + i < a.cols && row + x < a.rows) ((TO *)a.to)[(col + i) * a.rows + row + x] = (TO)tile[x][i];
}

#define STAMP(name, tag, T)                                                   \
  TFU_KERNEL_AS_(name##_narrow_##tag, conv_weights_args, transpose<float, T>) \
  TFU_KERNEL_AS_(name##_widen_##tag, conv_weights_args, transpose<T, float>)
TFU_HALVES(STAMP, conv_weights)
