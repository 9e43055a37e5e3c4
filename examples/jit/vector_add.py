"""a + b in CUDA C, a thread for each element. AT(a, i) is a[i], which tfuse.jit.check looks after."""

import numpy as np
import tensorflow as tf
import tfuse

vector_add = tfuse.jit.raw("""
#include "tfuse.cuh"
extern "C" __global__ void vector_add(const T0 *a, const T1 *b, U0 *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) AT(y, i) = R(AT(a, i)) + R(AT(b, i));
}""", "vector_add", outputs="like 0")

a, b = tf.random.uniform([100003]), tf.random.uniform([100003])
launch = dict(grid="(0.n + 255) / 256", block=256)
try:
    y, = vector_add(a, b, **launch, args=["0.n"])
    print("vector_add: largest error %.1e" % np.abs(y - (a.numpy() + b.numpy())).max())
    tfuse.jit.check(vector_add, a, b, **launch, args=["0.n + 1"])  # one thread too many
except (tf.errors.UnimplementedError, IndexError) as error:
    print(error)
