"""A convolution and the batch normalisation after it, as one function."""

import tensorflow as tf

from tfuse._core._op import composite, real
from tfuse.convolution.batch_norm import batch_norm
from tfuse.convolution.conv import conv


@composite
def conv_norm(x, kernel, gamma, beta, mean, variance, training, activation=None, residual=None, strides=1, padding="valid",
              dilation=1, groups=1, momentum=0.99, epsilon=1e-3):
    """Returns act((z - m) / sqrt(v + epsilon) * gamma + beta + residual) with z = x convolved with kernel, and the running mean
    and variance.

    In training, m and v are those of z, and the running ones follow them, as tfuse.batch_norm has it: the convolution, one pass
    over z for both, and one for all the rest. Else m and v are `mean` and `variance`, and in float32 and float64 the whole is
    one convolution, whose kernel is scaled; in 16 bits, where that would round the kernel again, a pass follows it.

    Args:
      x: float tensor, [batch, spatial axes, channels].
      kernel: [spatial axes, channels / groups, outputs], as in Keras. A bias would have no effect but on the running mean.
      gamma, beta: a value per output, or None; of any float dtype.
      mean, variance: the running ones, a value per output each.
      training: whether to normalise by z's own mean and variance.
      activation, residual: as in tfuse.conv.
      strides, padding, dilation, groups: as in tfuse.conv.
      momentum, epsilon: as in tfuse.batch_norm.

    Example:
      x, kernel, one, none = tf.random.normal([8, 14, 14, 32]), tf.random.normal([3, 3, 32, 64]), tf.ones([64]), tf.zeros([64])
      y, mean, variance = tfuse.conv_norm(x, kernel, one, none, none, one, training=True, activation="relu", padding="same")
    """
    options = {"strides": strides, "padding": padding, "dilation": dilation, "groups": groups}
    dtype = tf.convert_to_tensor(x).dtype
    if training or dtype not in (tf.float32, tf.float64):
        z = conv(x, kernel, **options)
        return batch_norm(z, gamma, beta, mean, variance, training, activation, residual, momentum=momentum, epsilon=epsilon)
    mean, variance = (tf.cast(t, real(dtype)) for t in (mean, variance))
    scale = tf.math.rsqrt(variance + epsilon)
    scale = scale if gamma is None else scale * tf.cast(gamma, dtype)
    bias = -mean * scale if beta is None else tf.cast(beta, dtype) - mean * scale
    return conv(x, kernel * scale, bias, activation, residual, **options), mean, variance
