"""x * x, with a gradient that is derived, and one that is given as text."""

import numpy as np
import tensorflow as tf
import tfuse

derived = tfuse.jit.elementwise("T x", "T y", "y = x * x", grad=True, name="square")
given = tfuse.jit.elementwise("T x", "T y", "y = x * x", grad="dx = 2 * x * dy", name="square_too")

x = tf.random.uniform([1000], -1, 1)
for square in derived, given:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = square(x)
    slope = tape.gradient(y, x)
    print("square: largest error %.1e" % np.abs(y - np.square(x)).max())
    print("its gradient: largest error %.1e" % np.abs(slope - 2 * x.numpy()).max())
