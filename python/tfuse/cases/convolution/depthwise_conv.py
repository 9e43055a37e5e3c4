import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _windows
from tfuse.cases import Case, Input, bars, of_terms
from tfuse.cases.convolution import conv
from tfuse.cases.elementwise.scale_bias_act import slopes, value
from tfuse.elementwise.scale_bias_act import PLAIN

# A case's shape is x's: [batch, height, width, channels], or without a height.
_SHAPES = [(2, 9, 8, 12), (1, 7, 7, 1), (3, 8, 15, 5), (0, 9, 8, 4), (2, 12, 12, 66), (1, 8, 70, 3)]
_LINES = [(2, 9, 12), (1, 7, 1), (3, 70, 5), (0, 9, 4), (2, 12, 66)]


class Geometry(conv.Geometry):
    """Windows over each channel by itself."""

    def __init__(self, size, strides=1, padding="valid", dilation=1, multiplier=1):
        super().__init__(size, strides, padding, dilation)
        self.multiplier = multiplier

    def options(self):
        return {"strides": self.strides, "padding": self.padding, "dilation": self.dilation}

    def fit(self, shape):
        """Makes of any shape one that the case can have."""
        axes = len(self.size)
        if len(shape) == axes + 2:
            return shape
        return (min(int(np.prod(shape[:-1])), 2), *(9, 8, 7)[:axes], min(shape[-1], 34))

    def result(self, shape):
        return (shape[0], *self.out(shape[1:-1]), shape[-1] * self.multiplier)

    def sums(self, x, kernel):
        wide, total = self.wide(x), np.zeros(self.result(x.shape))
        for tap, places in self.taps(x.shape[1:-1]):
            total += (wide[places][..., None] * kernel[tap]).reshape(total.shape)
        return total

    def sums_back(self, g, x, kernel):
        """Gradients of x and kernel."""
        wide, dkernel = self.wide(x), np.zeros(kernel.shape)
        dx, g = np.zeros(wide.shape), g.reshape(*g.shape[:-1], *kernel.shape[-2:])
        for tap, places in self.taps(x.shape[1:-1]):
            dx[places] += (g * kernel[tap]).sum(-1)
            dkernel[tap] = (wide[places][..., None] * g).sum(tuple(range(g.ndim - 2)))
        return dx[self.padded(x.shape[1:-1])[1]], dkernel

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

    def pre(x, kernel, bias=None):
        add = 0 if bias is None else bias
        return geometry.sums(x, kernel) + add, geometry.sums(x * x, kernel * kernel) + add * add

    def reference(x, kernel, bias=None, activation="linear"):
        sums, squares = pre(x, kernel, bias)
        return of_terms(value(sums, activation), squares)

    def gradient(dy, x, kernel, bias=None, activation="linear"):
        g, g2 = slopes(dy, *pre(x, kernel, bias), activation)
        gradients = [of_terms(v, s) for v, s in zip(geometry.sums_back(g, x, kernel),
                                                    geometry.sums_back(g2, x * x, kernel * kernel))]
        places = tuple(range(g.ndim - 1))
        return gradients if bias is None else [*gradients, of_terms(g.sum(places), g2.sum(places))]

    def plain(x, kernel, bias=None, activation="linear"):
        y = geometry.stock(x, kernel)
        return PLAIN[activation](y if bias is None else y + bias)

    def run(x, kernel, bias=None, activation="linear"):
        return tfuse.depthwise_conv(x, kernel, bias, activation, **geometry.options())

    shapes = _LINES if len(geometry.size) == 1 else _SHAPES
    return Case(**{**dict(name=name, run=run, plain=plain, reference=reference, gradient=gradient, inputs=inputs,
                          outputs={"value": geometry.result}, options=[{"activation": a} for a in activations],
                          fit=geometry.fit, shapes=shapes, special=False, sizes=[],
                          summed=lambda shape: int(np.prod(shape[:-1]))), **more})


_SIZE, _AHEAD = (64, 56, 56, 384), {"of_XLA": 1.0, "of_torch": 1.0}


def _timed(name, geometry, cpu_size, **limits):
    """A case that only the benchmark has."""
    return _case(name, geometry, ["linear"], shapes=[], sizes=[_SIZE], cpu_sizes=[cpu_size],
                 bars=bars(_SIZE, dtypes=["bfloat16"], **limits, **_AHEAD))


_ones = lambda *shape: tf.ones(shape)
CASES = [
    _case("depthwise_conv", Geometry((3, 3), padding="same"), PLAIN, rejects=[
        ("depthwise_conv: x must be .batch, height, width, channels. and kernel .*, or both without their height, got shapes .* "
         r"\(2, 3\)", lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(2, 3))),
        ("the last axis of x and the third of kernel must be of one size, got shapes .1, 5, 5, 2. and .3, 3, 4, 1.",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(3, 3, 4, 1))),
        ("bias must be a vector with one value for each channel of the result, the last two axes of kernel .3, 3, 2, 2., got "
         "shape .2.", lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(3, 3, 2, 2), _ones(2))),
        ("depthwise_conv: the window reaches over 7 places along the height, and x has 5; padding 'same' would make room",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(4, 2, 2, 1), dilation=2)),
        ("the window must have at least one place along the width, got 0",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(3, 0, 2, 1), padding="same")),
        ("depthwise_conv: padding must be 'valid' or 'same', got 'causal'",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(3, 3, 2, 1), padding="causal")),
        ("depthwise_conv: strides must be an integer of at least 1, or 2 of them, one for each axis, got 0",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(3, 3, 2, 1), strides=0)),
        (r"depthwise_conv: dilation must be .* got \(1, 2, 3\)",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(3, 3, 2, 1), dilation=(1, 2, 3))),
        ("the stride along the height must be 1 to 16777216, got 33554432",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(3, 3, 2, 1), strides=1 << 25, padding="same")),
        ("depthwise_conv: kernel must be float32 like x, got float16",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), tf.ones([3, 3, 2, 1], tf.float16))),
        ("depthwise_conv: x must be float32.*got int32", lambda: tfuse.depthwise_conv(
            tf.ones([1, 5, 5, 2], tf.int32), tf.ones([3, 3, 2, 1], tf.int32))),
        ("activation must be one of linear, relu, .*got 'swoosh'",
         lambda: tfuse.depthwise_conv(_ones(1, 5, 5, 2), _ones(3, 3, 2, 1), activation="swoosh")),
    ]),
    _case("depthwise_conv, stride 2", Geometry((3, 3), 2, "same"), ["linear", "silu"]),
    _case("depthwise_conv, 5 by 5", Geometry((5, 5)), ["linear", "relu"], bias=False),
    _case("depthwise_conv, 5 by 5, stride 2", Geometry((5, 5), 2, "same"), ["linear"]),
    _case("depthwise_conv, 7 by 7", Geometry((7, 7), padding="same"), ["linear", "gelu"]),
    _case("depthwise_conv, 7 by 7, stride 2", Geometry((7, 7), 2), ["linear"], bias=False),
    _case("depthwise_conv, any window", Geometry((4, 2), padding="same", dilation=2, multiplier=3), ["linear", "tanh"]),
    _case("depthwise_conv, of lines", Geometry((4,), padding="causal"), ["linear", "relu", "silu"]),
    _case("depthwise_conv, of lines, any", Geometry((6,), 2, "same", multiplier=2), ["linear"], bias=False),
    _timed("depthwise_conv, 3 by 3, speed", Geometry((3, 3), padding="same"), (8, 28, 28, 96), forward=75),
    _timed("depthwise_conv, 7 by 7, speed", Geometry((7, 7), padding="same"), (8, 14, 14, 96)),
]
