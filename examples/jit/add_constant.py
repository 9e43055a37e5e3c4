"""x + c, the smallest kernel: another c is data, and compiles nothing anew."""

import numpy as np
import tensorflow as tf
import tfuse

add_constant = tfuse.jit.elementwise("T x, R c", "T y", "y = x + c", name="add_constant")

x = tf.random.uniform([1000, 1000])
error = max(np.abs(add_constant(x, c) - (x.numpy() + np.float32(c))).max() for c in (1.5, 2.5))
print("add_constant: largest error %.1e" % error)
