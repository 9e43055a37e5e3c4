"""Fused operations for TensorFlow, on CPU and GPU, eagerly, in tf.function and inside XLA."""

from tfuse._version import __version__
from tfuse._explain import explain
from tfuse.add_constant import AddConstant, add_constant
from tfuse.attention import attention, paged_attention
from tfuse.batched_matmul import batched_matmul
from tfuse.cross_entropy import (CategoricalCrossentropy, SparseCategoricalCrossentropy, cross_entropy,
                                 sparse_cross_entropy)
from tfuse.dropout import Dropout, dropout
from tfuse.einsum_dense import EinsumDense
from tfuse.gated import Gated, gated, geglu, glu, reglu, swiglu
from tfuse.gated_linear import GatedDense, gated_linear
from tfuse.group_norm import GroupNormalization, group_norm
from tfuse.linear import Dense, linear
from tfuse.linear_cross_entropy import LanguageModelHead, linear_cross_entropy
from tfuse.matmul_own import matmul_own
from tfuse.multi_head_attention import GroupedQueryAttention, MultiHeadAttention
from tfuse.norm import LayerNormalization, RMSNormalization, layer_norm, rms_norm
from tfuse.rope import RotaryEmbedding, rope
from tfuse.scale_bias_act import (ScaleBiasAct, elu, gelu, hard_swish, leaky_relu, mish, relu, scale_bias_act, sigmoid,
                                  silu, softplus, tanh)
from tfuse.softmax import Softmax, log_softmax, softmax
from tfuse.square import square
from tfuse import optimizers
from tfuse.tensors_norm import all_finite, clip_by_global_norm, global_norm
from tfuse._enable import disable, enable, enabled
