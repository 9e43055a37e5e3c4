"""A 1-D convolution in CUDA C. Its weights are constant memory: Python writes them into the source."""

import numpy as np
import tensorflow as tf
import tfuse

weights = [0.1, 0.2, 0.4, 0.2, 0.1]
convolution = tfuse.jit.raw("""
__constant__ float weights[] = {%s};
extern "C" __global__ void convolution(const T0 *x, U0 *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  R sum = 0;
  for (int k = 0; k < %d; k++) sum += weights[k] * R(x[i + k]);
  y[i] = sum;
}""" % (", ".join(map(str, weights)), len(weights)), "convolution", outputs="0.0 - %d" % (len(weights) - 1))

x = tf.random.uniform([100003], -1, 1)
try:
    y, = convolution(x, grid="(0.n + 255) / 256", block=256, args=["0.n - %d" % (len(weights) - 1)])
    print("convolution: largest error %.1e" % np.abs(y - np.convolve(x, weights[::-1], "valid")).max())
except tf.errors.UnimplementedError as error:
    print(error)
