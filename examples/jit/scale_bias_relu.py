"""relu(x * scale + bias) in one kernel, with a scale and a bias for each channel, and derived gradients."""

import numpy as np
import tensorflow as tf
import tfuse

scale_bias_relu = tfuse.jit.elementwise("T x, T scale, T bias", "T y", "y = relu(x * scale + bias)", grad=True,
                                        name="scale_bias_relu")

inputs = [tf.random.uniform(shape, -1, 1) for shape in ([1000, 64], [64], [64])]
with tf.GradientTape(persistent=True) as tape:
    tape.watch(inputs)
    x, scale, bias = inputs
    y, want = scale_bias_relu(x, scale, bias), tf.nn.relu(x * scale + bias)
print("scale_bias_relu: largest error %.1e" % np.abs(y - want).max())
for name, ours, theirs in zip(("x", "scale", "bias"), tape.gradient(y, inputs), tape.gradient(want, inputs)):
    print("gradient of %s: largest error %.1e" % (name, np.abs(ours - theirs).max() / np.abs(theirs).max()))
