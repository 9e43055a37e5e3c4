"""What Projections compute, of TensorFlow's own ops, for their tests."""

import tensorflow as tf

from tfuse.elementwise.scale_bias_act import PLAIN


def composed(dtype, x, gamma, kernels, biases, residual=None, activation="linear", gated=False):
    x, gamma, residual, *rest = (None if t is None else tf.cast(t, dtype) for t in (x, gamma, residual, *kernels, *biases))
    kernels, biases = rest[:len(kernels)], rest[len(kernels):]
    if gamma is not None:
        x = x * tf.math.rsqrt(tf.reduce_mean(x * x, -1, keepdims=True) + tf.cast(1e-5, dtype)) * gamma
    found = [tf.matmul(x, k) if b is None else tf.matmul(x, k) + b for k, b in zip(kernels, biases)]
    if gated:
        return [PLAIN[activation](found[0]) * found[1]]
    found = [PLAIN[activation](y) for y in found]
    return found if residual is None else [found[0] + residual, *found[1:]]
