/* What a recurrent layer moves on the GPU: weights between Keras's order and cuDNN's, and states to the step after. */
#include "kernels/recurrent/rnn.h"

#include "kernels/core/device/pack.cuh"

enum { TILE = 32, ROWS = TFU_THREADS / TILE };

/* A block of z has a matrix, transposed tile by tile: x has its units, y its columns, features or units. The blocks
 * after those of all matrices have vectors, of which those beyond the first of y have nothing to do. */
template <typename T>
__device__ inline void rnn_weights(const rnn_weights_args &a) {
  __shared__ T tile[TILE][TILE + 1];
  const int matrices = 2 * a.gates, lane = threadIdx.x % TILE, row = threadIdx.x / TILE;
  const int number = (int)blockIdx.z % matrices;
  const bool recurrent = number >= a.gates;
  const int64_t width = a.gates * a.units, first = a.gate[number] * a.units;
  const int64_t unit = (int64_t)blockIdx.x * TILE, column = (int64_t)blockIdx.y * TILE;
  if ((int)blockIdx.z >= matrices) {
    T *const own = (T *)a.vector[number], *const bias = (T *)(recurrent ? a.recurrent_bias : a.bias);
    if (blockIdx.y == 0 && row == 0 && unit + lane < a.units) {
      if (!a.back) own[unit + lane] = bias ? bias[first + unit + lane] : (T)0.0f;
      else if (bias) bias[first + unit + lane] = own[unit + lane];
    }
    return;
  }
  T *const own = (T *)a.matrix[number], *const kernel = (T *)(recurrent ? a.recurrent : a.kernel);
  const int64_t columns = recurrent ? a.units : a.features;
  ONCE
  for (int r = row; r < TILE; r += ROWS) {
    if (a.back) {
      if (unit + r < a.units && column + lane < columns) tile[r][lane] = own[(unit + r) * columns + column + lane];
    } else {
      if (column + r < columns && unit + lane < a.units)
        tile[r][lane] = kernel[(column + r) * width + first + unit + lane];
    }
  }
  __syncthreads();
  ONCE
  for (int r = row; r < TILE; r += ROWS) {
    if (a.back) {
      if (column + r < columns && unit + lane < a.units)
        kernel[(column + r) * width + first + unit + lane] = tile[lane][r];
    } else {
      if (unit + r < a.units && column + lane < columns) own[(unit + r) * columns + column + lane] = tile[lane][r];
    }
  }
}
/* As one __grid_constant__: arguments are counted through. */
#define WEIGHTS(tag, T) TFU_STAMP((TFU_THREADS), rnn_weights_##tag, __grid_constant__ rnn_weights_args, rnn_weights<T>)
WEIGHTS(f32, float)
WEIGHTS(f16, f16)
WEIGHTS(bf16, bf16)
WEIGHTS(f64, double)

template <typename T>
__device__ inline void rnn_before(const rnn_before_args &a) {
  const int64_t i = (int64_t)blockIdx.x * TFU_THREADS + threadIdx.x;
  if (i >= a.batch * a.steps * a.units) return;
  const int64_t row = i / a.units, unit = i - row * a.units, b = row / a.steps;
  const bool first = row == b * a.steps;
  T v = (T)0.0f;
  if (!first) v = ((const T *)a.y)[i - a.units];
  else if (a.h) v = ((const T *)a.h)[b * a.units + unit];
  ((T *)a.before)[i] = v;
}
TFU_KERNEL(rnn_before, rnn_before_args)
