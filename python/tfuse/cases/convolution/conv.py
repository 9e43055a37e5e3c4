import itertools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse._core import _windows
from tfuse.cases import Case, Input, of_terms
from tfuse.cases.elementwise.scale_bias_act import slopes, value
from tfuse.convolution import conv as op
from tfuse.elementwise.scale_bias_act import PLAIN

# A case's shape is (batch, spatial axes …, channels, outputs).
_PLANE = [(2, 9, 7, 8, 5), (1, 1, 1, 2, 2), (0, 4, 5, 4, 6), (2, 4, 5, 0, 4), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34), (1, 5, 40, 34, 8),
          (2, 17, 19, 16, 72)]


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
            flat = [t.reshape(int(np.prod(t.shape[:-2])), *t.shape[-2:]) for t in (self._split(wide[seen]), self._split(y))]
            kernel[tap] = np.einsum("ngc,ngk->cgk", *flat).reshape(kernel[tap].shape)
        return kernel


def _finish(y, y2, bias, residual, activation):
    """What comes behind the sums y, whose squares' sums are y2."""
    for more in (bias, residual):
        y, y2 = (y, y2) if more is None else (y + more, y2 + more**2)
    return value(y, activation), y, y2


def _sum(t):
    return t.reshape(-1, t.shape[-1]).sum(0) if t.size else np.zeros(t.shape[-1])


def _truth(geometry):
    def reference(x, kernel, bias=None, residual=None, activation="linear"):
        y, _, y2 = _finish(geometry.forward(x, kernel), geometry.forward(x * x, kernel * kernel), bias, residual, activation)
        return of_terms(y, y2)

    def gradient(dy, x, kernel, bias=None, residual=None, activation="linear"):
        _, pre, pre2 = _finish(geometry.forward(x, kernel), geometry.forward(x * x, kernel * kernel), bias, residual, activation)
        g, g2 = slopes(dy, pre, pre2, activation)
        spatial = x.shape[1:-1]
        gradients = [of_terms(geometry.data(g, kernel, spatial), geometry.data(g2, kernel * kernel, spatial)),
                     of_terms(geometry.filter(x, g), geometry.filter(x * x, g2))]
        if bias is not None:
            gradients.append(of_terms(_sum(g), _sum(g2)))
        return gradients if residual is None else [*gradients, of_terms(g, g2)]

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


def _naive(geometry):
    def plain(x, kernel, bias=None, residual=None, activation="linear"):
        y = naive(geometry, x, kernel)
        y = y if bias is None else y + bias
        return PLAIN[activation](y if residual is None else y + residual)

    return plain


def _fused(geometry):
    """Not what tfuse.conv does where there is no GPU."""
    def run(x, kernel, bias=None, residual=None, activation=None):
        x, kernel, bias, residual, _ = op._conv.tensors(x, kernel, bias, residual, None)
        window = op._window_of("conv", x, kernel, geometry.strides, geometry.padding, geometry.dilation)
        return op.fused(x, kernel, bias, residual, window, op.activation_name(activation))

    return run


def _public(geometry):
    def run(x, kernel, bias=None, residual=None, activation=None):
        return tfuse.conv(x, kernel, bias, activation, residual, **geometry.options())

    return run


def _weights(rng, own, shape):
    """So that results are as large as what they are made of."""
    return rng.normal(size=own) / np.sqrt(max(np.prod(own[:-1]), 1))


def places(shape):
    """Of all images, over which the gradient of a kernel sums: more than a window has."""
    return int(np.prod(shape[:-2]))


def _fit(axes):
    """Small: references are slow. Sizes still tell cells apart."""
    def fit(shape):
        if len(shape) == axes + 3:
            return shape
        rows, cols = int(np.prod(shape[:-1])), shape[-1]
        return (min(rows, 2), *(11, 9, 8)[:axes], 2 * min(cols, 5), 6)

    return fit


def case(name, geometry, inputs=("bias",), activations=("linear", "relu"), shapes=None, run=None, **more):
    axes, groups = len(geometry.size), geometry.groups
    reference, gradient = _truth(geometry)
    out = lambda shape: (shape[0], *geometry.out(shape[1:-2]), shape[-1])
    all_inputs = {"x": lambda shape: shape[:-1],
                  "kernel": Input(lambda shape: (*geometry.size, shape[-2] // groups, shape[-1]), _weights),
                  "bias": lambda shape: shape[-1:], "residual": out}
    volume = lambda t: int(np.prod(t))
    window = int(np.prod(geometry.size))
    elements = lambda direction, shape, options: (1 if direction == "forward" else 2) * (
        volume(shape[:-1]) + volume(out(shape)) + window * volume(shape[-2:]) // groups)
    flops = lambda direction, shape, options: (2 if direction == "forward" else 4) * volume(out(shape)) * window * (
        shape[-2] // groups)
    return Case(name=name, run=(run or _fused)(geometry), plain=_naive(geometry), reference=reference, gradient=gradient,
                fit=_fit(axes), summed=places, special=False, inputs={i: all_inputs[i] for i in ("x", "kernel", *inputs)},
                outputs={"value": out}, elements=elements, flops=flops, options=[{"activation": a} for a in activations],
                **{"shapes": _PLANE if shapes is None else shapes, "sizes": [], **more})


def timed(name, geometry, sizes, activation="linear", inputs=(), bars=None):
    """A case that only the benchmark has."""
    def rival(x, kernel, bias=None, activation="linear"):
        """As Keras calls it."""
        same = geometry.padding == "same"
        x = x if isinstance(geometry.padding, str) else tf.pad(x, [(0, 0), *geometry.padding, (0, 0)])
        y = tf.nn.convolution(x, kernel, geometry.strides, "SAME" if same else "VALID")
        return PLAIN[activation](y if bias is None else y + bias)

    limits = {("bfloat16", shape): bars for shape in sizes} if bars else {}
    return case(name, geometry, inputs, (activation,), run=_public, shapes=[], sizes=sizes, rival=rival, bars=limits,
                cpu_sizes=[(2, *(28,) * len(geometry.size), *sizes[0][-2:])])


def transposed_case(name, geometry, activations=("linear", "relu"), shapes=None, **more):
    """Of conv_transpose, which is the gradient of the geometry's convolution: from its result to its input."""
    axes = len(geometry.size)
    options = {"strides": geometry.strides, "padding": geometry.padding, "dilation": geometry.dilation}
    spread = lambda spatial: tuple(op._spread_size(*numbers, geometry.padding, None) for numbers in zip(
        spatial, geometry.size, geometry.strides, geometry.dilation))
    squared = lambda x, kernel: geometry.data(x * x, kernel * kernel, spread(x.shape[1:-1]))
    pre_of = lambda x, kernel, bias: _finish(geometry.data(x, kernel, spread(x.shape[1:-1])), squared(x, kernel), bias, None,
                                             "linear")[1:]

    def reference(x, kernel, bias, activation="linear"):
        pre, pre2 = pre_of(x, kernel, bias)
        return of_terms(value(pre, activation), pre2)

    def gradient(dy, x, kernel, bias, activation="linear"):
        g, g2 = slopes(dy, *pre_of(x, kernel, bias), activation)
        return [of_terms(geometry.forward(g, kernel), geometry.forward(g2, kernel * kernel)),
                of_terms(geometry.filter(g, x), geometry.filter(g2, x * x)), of_terms(_sum(g), _sum(g2))]

    def plain(x, kernel, bias, activation="linear"):
        big = tf.zeros([x.shape[0], *spread(x.shape[1:-1]), kernel.shape[-2]], x.dtype)
        with tf.GradientTape() as tape:
            tape.watch(big)
            small = naive(geometry, big, kernel)
        return PLAIN[activation](tape.gradient(small, big, x) + bias)

    def run(x, kernel, bias, activation=None):
        return tfuse.conv_transpose(x, kernel, bias, activation, **options)

    out = lambda shape: (shape[0], *spread(shape[1:-2]), shape[-1])
    return Case(name=name, run=run, plain=plain, reference=reference, gradient=gradient, fit=_fit(axes), special=False,
                summed=places, inputs={"x": lambda shape: shape[:-1],
                        "kernel": Input(lambda shape: (*geometry.size, shape[-1], shape[-2]), _weights),
                        "bias": lambda shape: shape[-1:]},
                outputs={"value": out}, options=[{"activation": a} for a in activations],
                **{"shapes": shapes or _PLANE[:3] + _PLANE[5:7], "sizes": [], **more})


_X, _KERNEL = (lambda: tf.ones([2, 5, 5, 4])), (lambda: tf.ones([3, 3, 4, 6]))


def rejects(name, f):
    """What conv and conv_own refuse alike."""
    return [
        (name + ": x must be .batch, spatial axes, channels. with one to three spatial axes, got shape .2, 3.",
         lambda: f(tf.ones([2, 3]), _KERNEL())),
        (name + ": x and kernel must have the same number of dimensions, got shapes .2, 5, 4. and .3, 3, 4, 6.",
         lambda: f(tf.ones([2, 5, 4]), _KERNEL())),
        (name + ": the channels of x must be groups times those of kernel, got 5 channels, 1 group and kernel .3, 3, 4, 6.",
         lambda: f(tf.ones([2, 5, 5, 5]), _KERNEL())),
        ("the outputs of kernel .3, 3, 2, 5. must be a multiple of its groups, of which x with 4 channels has 2, got 5",
         lambda: f(_X(), tf.ones([3, 3, 2, 5]), groups=2)),
        (name + ": kernel must be float32 like x, got float16", lambda: f(_X(), tf.ones([3, 3, 4, 6], tf.float16))),
        (name + ": strides must be an integer from 1 to 1048575, or one for each of 2 spatial axes, got 0",
         lambda: f(_X(), _KERNEL(), strides=0)),
        (name + ": padding must be one of valid, same, causal, or .before, after. for each of 2 spatial axes, got",
         lambda: f(_X(), _KERNEL(), padding="full")),
    ]


_AHEAD = {"of_XLA": 1.0, "of_torch": 1.0}

CASES = [
    case("conv", Geometry((3, 3), padding="same"), activations=("linear", "relu", "gelu", "silu"), rejects=[
        *rejects("conv", tfuse.conv),
        ("bias must be a vector with one value per output, the last axis of kernel .3, 3, 4, 6., got shape .4.",
         lambda: tfuse.conv(_X(), _KERNEL(), tf.ones([4]))),
        ("residual must have the shape of the convolution, .2, 3, 3, 6., got .2, 5, 5, 6.",
         lambda: tfuse.conv(_X(), _KERNEL(), residual=tf.ones([2, 5, 5, 6]))),
        ("conv: dilation must be an integer from 1 .* got .1, 2, 3.", lambda: tfuse.conv(_X(), _KERNEL(), dilation=[1, 2, 3])),
        ("conv: padding must be one of valid, same, causal, or .before, after. for each of 2 spatial axes, got",
         lambda: tfuse.conv(_X(), _KERNEL(), padding=[(1, -1), (0, 0)])),
        ("conv: groups must be an integer from 1 on, got 0", lambda: tfuse.conv(_X(), _KERNEL(), groups=0)),
        ("conv: data_format must be channels_last or channels_first, got 'NCHW'",
         lambda: tfuse.conv(_X(), _KERNEL(), data_format="NCHW")),
        ("activation must be one of linear, relu, .*got 'swoosh'",
         lambda: tfuse.conv(_X(), _KERNEL(), activation="swoosh"))]),
    case("conv, residual", Geometry((3, 2), strides=2, padding=[(1, 2), (0, 1)]), ["bias", "residual"], ("relu", "tanh")),
    case("conv, groups", Geometry((3, 3), padding="same", dilation=2, groups=2), [], ("linear",), shapes=[
        (2, 9, 7, 8, 6), (1, 1, 1, 2, 2), (0, 4, 5, 4, 6), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34), (2, 17, 19, 16, 72)]),
    case("conv, one axis", Geometry((4,), padding="causal", dilation=3), shapes=[
        (2, 30, 8, 5), (1, 1, 1, 1), (0, 4, 5, 4), (3, 101, 6, 34)]),
    case("conv, three axes", Geometry((2, 3, 2), strides=(1, 2, 3)), [], ("linear",), shapes=[
        (2, 5, 7, 6, 8, 5), (1, 2, 3, 2, 1, 1), (2, 1, 3, 3, 4, 4), (1, 4, 9, 8, 6, 17)]),
    timed("conv, speed", Geometry((3, 3), padding="same"), [(64, 56, 56, 256, 256)], "relu", ["bias"],
          {"ms": 0.95, "of_XLA": 1.0, "of_torch": 1.0}),
    timed("conv, ResNet 1x1", Geometry((1, 1)), [(256, 56, 56, 64, 256), (256, 14, 14, 1024, 256)], bars=_AHEAD),
    timed("conv, ResNet 3x3", Geometry((3, 3), padding="same"), [(256, 56, 56, 64, 64), (256, 7, 7, 512, 512)], bars=_AHEAD),
    timed("conv, ResNet stem", Geometry((7, 7), strides=2, padding=[(3, 3), (3, 3)]), [(256, 224, 224, 3, 64)], bars=_AHEAD),
    transposed_case("conv_transpose", Geometry((3, 2), strides=2, padding="same"), rejects=[
        ("conv_transpose: padding must be valid or same, got 'causal'",
         lambda: tfuse.conv_transpose(_X(), tf.ones([3, 3, 6, 4]), padding="causal")),
        ("conv_transpose: output_padding must be less than strides, got 2 and 2",
         lambda: tfuse.conv_transpose(_X(), tf.ones([3, 3, 6, 4]), strides=2, output_padding=2)),
        ("the last axis of y and of kernel must be of one size, got shapes .2, 5, 5, 4. and .3, 3, 6, 5.",
         lambda: tfuse.conv_transpose(_X(), tf.ones([3, 3, 6, 5])))]),
    transposed_case("conv_transpose, one axis", Geometry((3,), dilation=2), ("linear",), shapes=[
        (2, 30, 8, 5), (1, 1, 1, 1), (3, 40, 6, 34)]),
]
