"""A transposed matrix in CUDA C: tiles go through shared memory, so that reads and writes are both of whole lines."""

import numpy as np
import tensorflow as tf
import tfuse

transpose = tfuse.jit.raw("""
extern "C" __global__ void transpose(const T0 *x, U0 *y, int rows, int cols) {
  __shared__ T0 tile[32][33];  // 33: the elements of a column lie in different banks
  int row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x;
  for (int k = 0; k < 32; k += 8)
    if (row + k < rows && col < cols) tile[threadIdx.y + k][threadIdx.x] = x[(long)(row + k) * cols + col];
  __syncthreads();
  row = blockIdx.x * 32 + threadIdx.y, col = blockIdx.y * 32 + threadIdx.x;
  for (int k = 0; k < 32; k += 8)
    if (row + k < cols && col < rows) y[(long)(row + k) * rows + col] = tile[threadIdx.x][threadIdx.y + k];
}""", "transpose", outputs="0.1, 0.0")

x = tf.random.uniform([1000, 777])
try:
    y, = transpose(x, grid=("(0.1 + 31) / 32", "(0.0 + 31) / 32"), block=(32, 8), args=["0.0", "0.1"])
    print("transpose: largest error %.1e" % np.abs(y - x.numpy().T).max())
except tf.errors.UnimplementedError as error:
    print(error)
