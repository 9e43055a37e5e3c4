import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _windows
from tfuse.cases import AHEAD, Case, Input, Timed, bars, each, fitting, ones, refusing, sums, volume
from tfuse.cases.convolution import conv
from tfuse.cases.elementwise.scale_bias_act import plain_epilogue
from tfuse.elementwise.scale_bias_act import PLAIN

# A case's shape is x's: [batch, height, width, channels], or without a height.
_SHAPES = [(2, 9, 8, 12), (1, 7, 7, 1), (3, 8, 15, 5), (0, 9, 8, 4), (2, 12, 12, 66), (1, 8, 70, 3)]
_LINES = [(2, 9, 12), (1, 7, 1), (3, 70, 5), (0, 9, 4), (2, 12, 66)]


class Geometry(conv.Geometry):
    """Windows over each channel by itself."""

    def __init__(self, size, strides=1, padding="valid", dilation=1, multiplier=1):
        super().__init__(size, strides, padding, dilation)
        self.multiplier, axes = multiplier, len(size)
        self.fit = fitting(axes + 2, lambda rows, columns: (min(rows, 2), *(9, 8, 7)[:axes], min(columns, 34)))

    def options(self):
        return {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}

    def result(self, shape):
        return (shape[0], *self.out(shape[1:-1]), shape[-1] * self.multiplier)

    def _grouped(self, x, kernel):
        """The convolution of as many groups as x has channels, and its kernel."""
        return (conv.Geometry(self.size, self.strides, self.padding, self.dilation, x.shape[-1]),
                kernel.reshape(*self.size, 1, kernel.shape[-2] * kernel.shape[-1]))

    def forward(self, x, kernel):
        grouped, filters = self._grouped(x, kernel)
        return grouped.forward(x, filters)

    def gradients(self, g, x, kernel):
        grouped, filters = self._grouped(x, kernel)
        dx, dfilters = grouped.gradients(g, x, filters)
        return [dx, sums(lambda filters: filters.reshape(kernel.shape), dfilters)]

    def stock(self, x, kernel):
        """TensorFlow's own."""
        padding, size = self.padding, self.size
        if padding == "causal":
            x, padding = tf.pad(x, [(0, 0), (_windows.reach(size[0], self.dilation[0]) - 1, 0), (0, 0)]), "valid"
        if len(size) == 1:
            one = self.strides[0]
            y = tf.nn.depthwise_conv2d(x[:, None], kernel[None], [1, one, one, 1], padding.upper(),
                                       dilations=[1, *self.dilation])
            return tf.squeeze(y, 1)
        return tf.nn.depthwise_conv2d(x, kernel, [1, *self.strides, 1], padding.upper(), dilations=self.dilation)


def _case(name, geometry, activations, bias=True, **more):
    inputs = {"x": lambda shape: shape,
              "kernel": Input(lambda shape: (*geometry.size, shape[-1], geometry.multiplier),
                              lambda rng, own, shape: rng.normal(size=own) / np.sqrt(np.prod(geometry.size)))}
    if bias:
        inputs["bias"] = lambda shape: (shape[-1] * geometry.multiplier,)

    def run(x, kernel, bias=None, activation="linear"):
        return tfuse.depthwise_conv(x, kernel, bias, activation, **geometry.options())

    def plain(x, kernel, bias=None, activation="linear"):
        return plain_epilogue(geometry.stock(x, kernel), bias, activation)

    reference, gradient = conv.truth(geometry)
    return Case(name=name, run=run, plain=plain, reference=reference, gradient=gradient, inputs=inputs,
                outputs={"value": geometry.result}, options=each("activation", activations), fit=geometry.fit,
                shapes=_LINES if len(geometry.size) == 1 else _SHAPES, special=False,
                summed=lambda shape: volume(shape[:-1]), **more)


def _timed(name, geometry, cpu_size, **limits):
    return Timed(_case(name, geometry, ["linear"]), [_SIZE], cpu_sizes=[cpu_size],
                 bars=bars(_SIZE, dtypes=["bfloat16"], **limits, **AHEAD))


_SIZE = (64, 56, 56, 384)
_refused = refusing(tfuse.depthwise_conv, x=ones(1, 5, 5, 2), kernel=ones(3, 3, 2, 1))
CASES = [
    _case("depthwise_conv", Geometry((3, 3), padding="same"), PLAIN, rejects=[
        _refused("depthwise_conv: x must be .batch, height, width, channels. and kernel .*, or both without their height, got "
                 r"shapes .* \(2, 3\)", kernel=ones(2, 3)),
        _refused("the last axis of x and the third of kernel must be of one size, got shapes .1, 5, 5, 2. and .3, 3, 4, 1.",
                 kernel=ones(3, 3, 4, 1)),
        _refused("bias must be a vector with one value for each channel of the result, the last two axes of kernel "
                 ".3, 3, 2, 2., got shape .2.", kernel=ones(3, 3, 2, 2), bias=ones(2)),
        _refused("depthwise_conv: the window reaches over 7 positions along the height, and x has 5; padding 'same' would make "
                 "room", kernel=ones(4, 2, 2, 1), dilation=2),
        _refused("the window must have at least one position along the width, got 0", kernel=ones(3, 0, 2, 1), padding="same"),
        _refused("depthwise_conv: padding must be 'valid' or 'same', got 'causal'", padding="causal"),
        _refused("depthwise_conv: strides must be an integer of at least 1, or 2 of them, one for each axis, got 0", strides=0),
        _refused(r"depthwise_conv: dilation must be .* got \(1, 2, 3\)", dilation=(1, 2, 3)),
        _refused("the stride along the height must be 1 to 16777216, got 33554432", strides=1 << 25, padding="same"),
        _refused("depthwise_conv: kernel must be float32 like x, got float16", kernel=ones(3, 3, 2, 1, dtype=tf.float16)),
        _refused("depthwise_conv: x must be float32.*got int32", x=ones(1, 5, 5, 2, dtype=tf.int32),
                 kernel=ones(3, 3, 2, 1, dtype=tf.int32)),
        _refused("activation must be one of linear, relu, .*got 'swoosh'", activation="swoosh"),
    ]),
    _case("depthwise_conv, stride 2", Geometry((3, 3), 2, "same"), ["linear", "silu"]),
    _case("depthwise_conv, 5 by 5", Geometry((5, 5)), ["linear", "relu"], bias=False),
    _case("depthwise_conv, 5 by 5, stride 2", Geometry((5, 5), 2, "same"), ["linear"]),
    _case("depthwise_conv, 7 by 7", Geometry((7, 7), padding="same"), ["linear", "gelu"]),
    _case("depthwise_conv, 7 by 7, stride 2", Geometry((7, 7), 2), ["linear"], bias=False),
    _case("depthwise_conv, any window", Geometry((4, 2), padding="same", dilation=2, multiplier=3), ["linear", "tanh"]),
    _case("depthwise_conv, of lines", Geometry((4,), padding="causal"), ["linear", "relu", "silu"]),
    _case("depthwise_conv, of lines, any", Geometry((6,), 2, "same", multiplier=2), ["linear"], bias=False),
]
TIMES = [
    _timed("depthwise_conv, 3 by 3, speed", Geometry((3, 3), padding="same"), (8, 28, 28, 96), forward=75),
    _timed("depthwise_conv, 7 by 7, speed", Geometry((7, 7), padding="same"), (8, 14, 14, 96)),
]
