"""Fused operations for TensorFlow, on CPU and GPU, eagerly, in tf.function and inside XLA."""

from tfuse._version import __version__
from tfuse._core import _command
from tfuse._core._explain import explain
from tfuse._core._library import load
from tfuse import own
from tfuse.elementwise.add_constant import AddConstant, add_constant
from tfuse.elementwise.dropout import Dropout, dropout
from tfuse.elementwise.gated import Gated, gated, geglu, glu, reglu, swiglu
from tfuse.elementwise.rope import RotaryEmbedding, rope
from tfuse.elementwise.scale_bias_act import (ScaleBiasAct, elu, gelu, hard_swish, leaky_relu, mish, relu, relu6,
                                              scale_bias_act, sigmoid, silu, softplus, tanh)
from tfuse.elementwise.square import square
from tfuse.rows.cross_entropy import (CategoricalCrossentropy, SparseCategoricalCrossentropy, cross_entropy,
                                      sparse_cross_entropy)
from tfuse.rows.group_norm import GroupNormalization, group_norm
from tfuse.rows.norm import LayerNormalization, RMSNormalization, layer_norm, rms_norm
from tfuse.rows.softmax import Softmax, log_softmax, softmax
from tfuse.reductions.arg_reduce import argmax, argmin
from tfuse.reductions.reduce import (reduce_l2, reduce_logsumexp, reduce_max, reduce_mean, reduce_min, reduce_prod,
                                     reduce_std, reduce_sum, reduce_variance)
from tfuse.reductions.segment_sum import segment_sum, unsorted_segment_sum
from tfuse.attention.attention import attention, paged_attention
from tfuse.attention.multi_head_attention import GroupedQueryAttention, MultiHeadAttention
from tfuse.products.batched_matmul import batched_matmul
from tfuse.products.einsum_dense import EinsumDense
from tfuse.products.gated_linear import GatedDense, gated_linear
from tfuse.products.linear import Dense, linear
from tfuse.products.linear_cross_entropy import LanguageModelHead, linear_cross_entropy
from tfuse.products.matmul_own import matmul_own
from tfuse.products.float8_linear import float8_kernel
from tfuse.products.quantized_linear import pack_kernel, quantized_linear
from tfuse.convolution.batch_norm import BatchNormalization, batch_norm
from tfuse.convolution.conv import conv, conv_transpose
from tfuse.convolution.conv_layers import (Conv1D, Conv1DTranspose, Conv2D, Conv2DTranspose, Conv3D, Conv3DTranspose,
                                           DepthwiseConv1D, DepthwiseConv2D, SeparableConv1D, SeparableConv2D)
from tfuse.convolution.conv_norm import conv_norm
from tfuse.convolution.conv_own import conv_own
from tfuse.convolution.depthwise_conv import depthwise_conv, separable_conv
from tfuse.convolution.pool import (AveragePooling1D, AveragePooling2D, AveragePooling3D, GlobalAveragePooling1D,
                                    GlobalAveragePooling2D, GlobalAveragePooling3D, MaxPooling1D, MaxPooling2D,
                                    MaxPooling3D, average_pool, global_average_pool, max_pool)
from tfuse.convolution.quantized_conv import quantized_conv
from tfuse.convolution.quantized_conv_layer import Quantize, QuantizedConv2D
from tfuse.convolution.resize import resize
from tfuse.convolution.scale_channels import scale_channels
from tfuse.layout.concat import concat
from tfuse.layout.transpose import depth_to_space, space_to_depth, transpose
from tfuse.recurrent.linear_recurrence import LinearRecurrence
from tfuse.recurrent.recurrent_layers import GRU, LSTM
from tfuse.recurrent.rnn import gru, lstm
from tfuse.scans.scan import cumlogsumexp, cummax, cumprod, cumsum, cumulative_logsumexp
from tfuse.scans.scan_linear import scan_linear
from tfuse.scans.selective_scan import selective_scan
from tfuse.lists.tensors_norm import all_finite, clip_by_global_norm, global_norm
from tfuse.sorting.bincount import bincount
from tfuse.sorting.histogram import histogram, histogram_fixed_width
from tfuse.sorting.sort import argsort, sort
from tfuse.sorting.top_k import top_k
from tfuse.sorting.unique import unique_counts, unique_with_counts
from tfuse import jit, optimizers
from tfuse.generation.generate import generate
from tfuse import calibration
from tfuse.calibration.calibrate import calibrate
from tfuse._keras._enable import disable, enable, enabled
