"""The sum of all elements in CUDA C: blocks add in shared memory, by halves; one more block adds what they found."""

import numpy as np
import tensorflow as tf
import tfuse

SOURCE = """
extern "C" __global__ void reduce_sum(const T0 *x, U0 *y, long n) {
  __shared__ R part[256];
  R sum = 0;
  for (long i = blockIdx.x * 256L + threadIdx.x; i < n; i += gridDim.x * 256L) sum += R(x[i]);
  part[threadIdx.x] = sum;
  for (int half = 128; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}"""
of_blocks, of_all = (tfuse.jit.raw(SOURCE, "reduce_sum", outputs=str(blocks)) for blocks in (64, 1))
x = tf.random.uniform([1000003])
try:
    parts, = of_blocks(x, grid=64, block=256, args=["0.n"])
    total, = of_all(parts, grid=1, block=256, args=["0.n"])
    print("reduce_sum: largest error %.1e" % np.abs(total[0] / np.sum(x, dtype=np.float64) - 1))
except tf.errors.UnimplementedError as error:
    print(error)
