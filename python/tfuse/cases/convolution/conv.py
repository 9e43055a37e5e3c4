import itertools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _windows
from tfuse.cases import AHEAD, Case, Input, Timed, each, fitting, ones, plus, refusing, sums, twice, volume
from tfuse.cases.elementwise.scale_bias_act import activated, plain_epilogue, slopes
from tfuse.convolution import conv as op

# A case's shape is (batch, spatial axes …, channels, outputs).
PLANE = [(2, 9, 7, 8, 5), (1, 1, 1, 2, 2), (0, 4, 5, 4, 6), (2, 4, 5, 0, 4), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34),
         (1, 5, 40, 34, 8), (2, 17, 19, 16, 72)]


class Geometry:
    """A convolution in NumPy: by one product for each element of the window."""

    def __init__(self, size, strides=1, padding="valid", dilation=1, groups=1):
        axes = len(size)
        each = lambda v: (v,) * axes if isinstance(v, int) else tuple(v)
        self.size, self.strides, self.dilation, self.padding, self.groups = size, each(strides), each(dilation), padding, groups

    def options(self):
        options = {"strides": self.strides, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}
        return {name: v for name, v in options.items() if v != {"padding": "valid", "groups": 1}.get(name, (1,) * len(self.size))}

    def axis(self, i, n):
        """Size of the result, and what is before x."""
        reach, s = (self.size[i] - 1) * self.dilation[i] + 1, self.strides[i]
        if self.padding == "same":
            out = -(-n // s)
            return out, max((out - 1) * s + reach - n, 0) // 2
        before, after = (reach - 1, 0) if self.padding == "causal" else (0, 0) if self.padding == "valid" else self.padding[i]
        return max((n + before + after - reach) // s + 1, 0), before

    def least(self):
        """The smallest sizes that windows are not too long for, as in TensorFlow, where less than two strides may be missing."""
        pairs = [(0, 0)] * len(self.size) if isinstance(self.padding, str) else self.padding
        return [1 if self.padding in ("same", "causal") else max(1, (k - 1) * d + 2 - sum(pair) - 2 * s) for k, d, s, pair in zip(
            self.size, self.dilation, self.strides, pairs)]

    def out(self, spatial):
        return tuple(self.axis(i, n)[0] for i, n in enumerate(spatial))

    def taps(self, spatial):
        """By element of the window: the part of a padded x that it sees."""
        out, before = zip(*(self.axis(i, n) for i, n in enumerate(spatial)))
        for tap in itertools.product(*map(range, self.size)):
            first = [t * d for t, d in zip(tap, self.dilation)]
            yield tap, (slice(None), *(slice(f, f + o * s, s) for f, o, s in zip(first, out, self.strides)))

    def padded(self, spatial):
        """The sizes of x with all that windows reach, and where x lies in it."""
        out, before = zip(*(self.axis(i, n) for i, n in enumerate(spatial)))
        reach = [max(b + n, o * s + (k - 1) * d) for b, n, o, s, k, d in zip(
            before, spatial, out, self.strides, self.size, self.dilation)]
        return reach, (slice(None), *(slice(b, b + n) for b, n in zip(before, spatial)))

    def _split(self, t):
        return t.reshape(*t.shape[:-1], self.groups, t.shape[-1] // self.groups)

    def wide(self, x, outside=0.0):
        """x with all that windows reach around it."""
        reach, inside = self.padded(x.shape[1:-1])
        wide = np.full([x.shape[0], *reach, x.shape[-1]], outside, float)
        wide[inside] = x
        return wide

    def forward(self, x, kernel):
        spatial, wide = x.shape[1:-1], self.wide(x)
        y = np.zeros([x.shape[0], *self.out(spatial), kernel.shape[-1]])
        for tap, seen in self.taps(spatial):
            y += np.einsum("...gc,cgk->...gk", self._split(wide[seen]), self._split(kernel[tap])).reshape(y.shape)
        return y

    def data(self, y, kernel, spatial):
        reach, inside = self.padded(spatial)
        wide = np.zeros([y.shape[0], *reach, kernel.shape[-2] * self.groups])
        for tap, seen in self.taps(spatial):
            part = np.einsum("...gk,cgk->...gc", self._split(y), self._split(kernel[tap]))
            wide[seen] += part.reshape(*part.shape[:-2], wide.shape[-1])
        return wide[inside]

    def filter(self, x, y):
        wide = self.wide(x)
        kernel = np.zeros([*self.size, x.shape[-1] // self.groups, y.shape[-1]])
        for tap, seen in self.taps(x.shape[1:-1]):
            flat = [t.reshape(volume(t.shape[:-2]), *t.shape[-2:]) for t in (self._split(wide[seen]), self._split(y))]
            kernel[tap] = np.einsum("ngc,ngk->cgk", *flat).reshape(kernel[tap].shape)
        return kernel

    def gradients(self, g, x, kernel):
        """Of x and kernel."""
        return [sums(lambda g, kernel: self.data(g, kernel, x.shape[1:-1]), g, kernel), sums(self.filter, x, g)]


def _bias_gradient(g):
    return sums(lambda g: g.reshape(-1, g.shape[-1]).sum(0) if g.size else np.zeros(g.shape[-1]), g)


def truth(geometry):
    """Reference and gradient."""
    def pre(x, kernel, bias, residual):
        return plus(sums(geometry.forward, x, kernel), bias, residual)

    def reference(x, kernel, bias=None, residual=None, activation="linear"):
        return activated(pre(x, kernel, bias, residual), activation)

    def gradient(dy, x, kernel, bias=None, residual=None, activation="linear"):
        g = slopes(dy, pre(x, kernel, bias, residual), activation)
        more = [(bias, _bias_gradient(g)), (residual, g)]
        return [*geometry.gradients(g, x, kernel), *(gradient for given, gradient in more if given is not None)]

    return reference, gradient


def naive(geometry, x, kernel):
    """By stock TensorFlow, group by group: on a CPU it has no groups."""
    axes = len(geometry.size)
    sizes = geometry.out(x.shape[1:-1])
    before = [geometry.axis(i, n)[1] for i, n in enumerate(x.shape[1:-1])]
    options = {"padding": "before", "strides": _windows.word(geometry.strides), "dilation": _windows.word(geometry.dilation),
               "before": _windows.word(before)}
    parts = zip(tf.split(x, geometry.groups, -1), tf.split(kernel, geometry.groups, -1))
    return tf.concat([op._plain_linear(a, b, tf.zeros([*sizes, 0]), **options) for a, b in parts], -1)


def by_stock(geometry, x, kernel):
    """As Keras calls it."""
    x = x if isinstance(geometry.padding, str) else tf.pad(x, [(0, 0), *geometry.padding, (0, 0)])
    return tf.nn.convolution(x, kernel, geometry.strides, "SAME" if geometry.padding == "same" else "VALID")


def _plain(geometry, convolve=naive):
    def plain(x, kernel, bias=None, residual=None, activation="linear"):
        return plain_epilogue(convolve(geometry, x, kernel), bias, activation, residual)

    return plain


def _fused(geometry):
    """Not what tfuse.conv does where there is no GPU."""
    def run(x, kernel, bias=None, residual=None, activation=None):
        x, kernel, bias, residual, _ = op._conv.tensors(x, kernel, bias, residual, None)
        window = op._window_of("conv", x, kernel, geometry.strides, geometry.padding, geometry.dilation)
        return op.fused(x, kernel, bias, residual, window, op.activation_name(activation))

    return run


def _weights(rng, own, shape):
    """So that results are as large as what they are made of."""
    return rng.normal(size=own) / np.sqrt(max(np.prod(own[:-1]), 1))


def positions(shape):
    """Of all images, over which the gradient of a kernel sums: more than a window has."""
    return volume(shape[:-2])


def fit_of(axes):
    """Small: references are slow. Sizes still tell cells apart."""
    return fitting(axes + 3, lambda rows, columns: (min(rows, 2), *(11, 9, 8)[:axes], 2 * min(columns, 5), 6))


def out_of(geometry):
    return lambda shape: (shape[0], *geometry.out(shape[1:-2]), shape[-1])


def kernel_of(geometry):
    return Input(lambda shape: (*geometry.size, shape[-2] // geometry.groups, shape[-1]), _weights)


def case(name, geometry, inputs=("bias",), activations=("linear", "relu"), shapes=PLANE, run=_fused, **more):
    reference, gradient = truth(geometry)
    all_inputs = {"x": lambda shape: shape[:-1], "kernel": kernel_of(geometry), "bias": lambda shape: shape[-1:],
                  "residual": out_of(geometry)}
    return Case(name=name, run=run(geometry), plain=_plain(geometry), reference=reference, gradient=gradient,
                fit=fit_of(len(geometry.size)), summed=positions, special=False, shapes=shapes,
                inputs={i: all_inputs[i] for i in ("x", "kernel", *inputs)}, outputs={"value": out_of(geometry)},
                options=each("activation", activations), **more)


def timed(case, geometry, sizes, results=1, **more):
    """`results`: how often a result, or its gradient, is read or written."""
    out, window, groups = out_of(geometry), volume(geometry.size), geometry.groups
    return Timed(case, sizes, elements=lambda shape: twice(
        volume(shape[:-1]) + results * volume(out(shape)) + window * volume(shape[-2:]) // groups),
        flops=lambda shape, options: twice(2 * volume(out(shape)) * window * (shape[-2] // groups)), **more)


def cpu_size(geometry, size):
    return (2, *(28,) * len(geometry.size), *size[-2:])


def _timed(name, geometry, sizes, activation="linear", inputs=(), bars=AHEAD):
    public = lambda geometry: lambda x, kernel, bias=None, activation=None: tfuse.conv(
        x, kernel, bias, activation, **geometry.options())
    return timed(case(name, geometry, inputs, [activation], run=public), geometry, sizes, rival=_plain(geometry, by_stock),
                 bars={("bfloat16", shape): bars for shape in sizes}, cpu_sizes=[cpu_size(geometry, sizes[0])])


def _transposed(name, geometry, activations=("linear", "relu"), shapes=PLANE[:3] + PLANE[5:7], **more):
    """Of conv_transpose, which is the gradient of the geometry's convolution: from its result to its input."""
    options = {"strides": geometry.strides, "padding": geometry.padding, "dilation": geometry.dilation}
    spread = lambda spatial: tuple(op._spread_size(*numbers, geometry.padding, None) for numbers in zip(
        spatial, geometry.size, geometry.strides, geometry.dilation))
    pre = lambda x, kernel, bias: plus(sums(lambda x, kernel: geometry.data(x, kernel, spread(x.shape[1:-1])), x, kernel), bias)

    def gradient(dy, x, kernel, bias, activation="linear"):
        g = slopes(dy, pre(x, kernel, bias), activation)
        return [sums(geometry.forward, g, kernel), sums(geometry.filter, g, x), _bias_gradient(g)]

    def plain(x, kernel, bias, activation="linear"):
        big = tf.zeros([x.shape[0], *spread(x.shape[1:-1]), kernel.shape[-2]], x.dtype)
        with tf.GradientTape() as tape:
            tape.watch(big)
            small = naive(geometry, big, kernel)
        return plain_epilogue(tape.gradient(small, big, x), bias, activation)

    return Case(name=name, run=lambda x, kernel, bias, activation: tfuse.conv_transpose(x, kernel, bias, activation, **options),
                plain=plain, reference=lambda x, kernel, bias, activation: activated(pre(x, kernel, bias), activation),
                gradient=gradient, fit=fit_of(len(geometry.size)), special=False, summed=positions, shapes=shapes,
                inputs={"x": lambda shape: shape[:-1],
                        "kernel": Input(lambda shape: (*geometry.size, shape[-1], shape[-2]), _weights),
                        "bias": lambda shape: shape[-1:]},
                outputs={"value": lambda shape: (shape[0], *spread(shape[1:-2]), shape[-1])},
                options=each("activation", activations), **more)


def rejects(name, f):
    """What conv and conv_own refuse alike."""
    refused = refusing(f, x=ones(2, 5, 5, 4), kernel=ones(3, 3, 4, 6))
    return refused, [
        refused(name + ": x must be .batch, spatial axes, channels. with one to three spatial axes, got shape .2, 3.",
                x=ones(2, 3)),
        refused(name + ": x and kernel must have the same number of dimensions, got shapes .2, 5, 4. and .3, 3, 4, 6.",
                x=ones(2, 5, 4)),
        refused(name + ": the channels of x must be groups times those of kernel, got 5 channels, 1 group and kernel "
                ".3, 3, 4, 6.", x=ones(2, 5, 5, 5)),
        refused("the outputs of kernel .3, 3, 2, 5. must be a multiple of its groups, of which x with 4 channels has 2, got 5",
                kernel=ones(3, 3, 2, 5), groups=2),
        refused(name + ": kernel must be float32 like x, got float16", kernel=ones(3, 3, 4, 6, dtype=tf.float16)),
        refused(name + ": strides must be an integer from 1 to 1048575, or one for each of 2 spatial axes, got 0", strides=0),
        refused(name + ": padding must be one of valid, same, causal, or .before, after. for each of 2 spatial axes, got",
                padding="full"),
        refused(name + ": the window reaches over 9 positions along the width, and x has 7 with its padding; padding 'same' would "
                "make room", padding=[(0, 0), (1, 1)], dilation=[1, 4]),
    ]


_refused, _rejects = rejects("conv", tfuse.conv)
_back = refusing(tfuse.conv_transpose, x=ones(2, 5, 5, 4), kernel=ones(3, 3, 6, 4))
CASES = [
    case("conv", Geometry((3, 3), padding="same"), activations=("linear", "relu", "gelu", "silu"), rejects=[
        *_rejects,
        _refused("bias must be a vector with one value per output, the last axis of kernel .3, 3, 4, 6., got shape .4.",
                 bias=ones(4)),
        _refused("residual must have the shape of the convolution, .2, 3, 3, 6., got .2, 5, 5, 6.", residual=ones(2, 5, 5, 6)),
        _refused("conv: dilation must be an integer from 1 .* got .1, 2, 3.", dilation=[1, 2, 3]),
        _refused("conv: padding must be one of valid, same, causal, or .before, after. for each of 2 spatial axes, got",
                 padding=[(1, -1), (0, 0)]),
        _refused("conv: groups must be an integer from 1 on, got 0", groups=0),
        _refused("conv: data_format must be channels_last or channels_first, got 'NCHW'", data_format="NCHW"),
        _refused("activation must be one of linear, relu, .*got 'swoosh'", activation="swoosh")]),
    case("conv, residual", Geometry((3, 2), strides=2, padding=[(1, 2), (0, 1)]), ["bias", "residual"], ("relu", "tanh")),
    case("conv, groups", Geometry((3, 3), padding="same", dilation=2, groups=2), [], ("linear",), shapes=[
        (2, 9, 7, 8, 6), (1, 1, 1, 2, 2), (0, 4, 5, 4, 6), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34), (2, 17, 19, 16, 72)]),
    case("conv, one axis", Geometry((4,), padding="causal", dilation=3), shapes=[
        (2, 30, 8, 5), (1, 1, 1, 1), (0, 4, 5, 4), (3, 101, 6, 34)]),
    case("conv, three axes", Geometry((2, 3, 2), strides=(1, 2, 3)), [], ("linear",), shapes=[
        (2, 5, 7, 6, 8, 5), (1, 2, 3, 2, 1, 1), (2, 1, 3, 3, 4, 4), (1, 4, 9, 8, 6, 17)]),
    _transposed("conv_transpose", Geometry((3, 2), strides=2, padding="same"), rejects=[
        _back("conv_transpose: padding must be valid or same, got 'causal'", padding="causal"),
        _back("conv_transpose: output_padding must be less than strides, got 2 and 2", strides=2, output_padding=2),
        _back("the last axis of y and of kernel must be of one size, got shapes .2, 5, 5, 4. and .3, 3, 6, 5.",
              kernel=ones(3, 3, 6, 5))]),
    _transposed("conv_transpose, one axis", Geometry((3,), dilation=2), ("linear",), shapes=[
        (2, 30, 8, 5), (1, 1, 1, 1), (3, 40, 6, 34)]),
]
TIMES = [
    _timed("conv, speed", Geometry((3, 3), padding="same"), [(64, 56, 56, 256, 256)], "relu", ["bias"], {"ms": 0.95, **AHEAD}),
    _timed("conv, ResNet 1x1", Geometry((1, 1)), [(256, 56, 56, 64, 256), (256, 14, 14, 1024, 256)]),
    _timed("conv, ResNet 3x3", Geometry((3, 3), padding="same"), [(256, 56, 56, 64, 64), (256, 7, 7, 512, 512)]),
    _timed("conv, ResNet stem", Geometry((7, 7), strides=2, padding=[(3, 3), (3, 3)]), [(256, 224, 224, 3, 64)]),
]
