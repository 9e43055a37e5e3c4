"""Fused operations for TensorFlow, on CPU and GPU, eagerly, in tf.function and inside XLA."""

from tfuse._version import __version__
from tfuse._explain import explain
from tfuse.add_constant import AddConstant, add_constant
from tfuse.scale_bias_act import (ScaleBiasAct, elu, gelu, hard_swish, leaky_relu, mish, relu, scale_bias_act, sigmoid,
                                  silu, softplus, tanh)
from tfuse.square import square
