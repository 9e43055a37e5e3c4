import functools

import numpy as np
import tensorflow as tf

import tfuse
from tfuse.cases import Case, Input, of_terms
from tfuse.cases.convolution import batch_norm, conv
from tfuse.cases.rows.norm import EPSILON

# Of the convolution, without what a batch norm has no use for: few values, whose variance is mostly rounding.
_SHAPES = [(2, 9, 7, 8, 5), (0, 4, 5, 4, 6), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34), (1, 5, 40, 34, 8)]


def _case(name, geometry, training=True, residual=False, activations=("linear", "relu"), **more):
    out = lambda shape: (shape[0], *geometry.out(shape[1:-2]), shape[-1])
    vector = functools.partial(Input, lambda shape: shape[-1:], dtype="real")
    inputs = {"x": lambda shape: shape[:-1],
              "kernel": Input(lambda shape: (*geometry.size, shape[-2] // geometry.groups, shape[-1]), conv._weights),
              "gamma": vector(), "beta": vector(), "mean": vector(gradient=not training),
              "variance": vector(lambda rng, own, shape: rng.uniform(0.5, 2, own), gradient=not training),
              **({"residual": out} if residual else {})}

    def reference(x, kernel, *rest, activation="linear"):
        return batch_norm._reference(geometry.forward(x, kernel), *rest, *[None] * (not residual), training, activation)

    def gradient(dy, x, kernel, *rest, activation="linear"):
        """Of z, which is rounded, the gradient is one with terms; those of x and kernel are sums of them."""
        dz, *others = batch_norm._gradient(dy, geometry.forward(x, kernel), *rest, *[None] * (not residual), training, activation)
        dz2 = np.square(getattr(dz, "terms", np.asarray(dz)))
        spatial = x.shape[1:-1]
        return [of_terms(geometry.data(np.asarray(dz), kernel, spatial), geometry.data(dz2, kernel * kernel, spatial)),
                of_terms(geometry.filter(x, np.asarray(dz)), geometry.filter(x * x, dz2)), *others]

    def plain(x, kernel, *rest, activation="linear", convolve=conv.naive, moments=batch_norm.moments):
        return batch_norm._plain(convolve(geometry, x, kernel), *rest, *[None] * (not residual), training, activation,
                                 moments=moments)

    def run(x, kernel, gamma, beta, mean, variance, skip=None, activation="linear"):
        results = tfuse.conv_norm(x, kernel, gamma, beta, mean, variance, training, activation, skip,
                                  momentum=batch_norm._MOMENTUM, epsilon=EPSILON, **geometry.options())
        return list(results) if training else results[0]

    rival = functools.partial(plain, convolve=lambda g, x, kernel: tf.nn.convolution(x, kernel, g.strides, g.padding.upper()),
                              moments=tf.nn.moments)
    outputs = {"value": out, **({"new mean": vector(), "new variance": vector()} if training else {})}
    window = int(np.prod(geometry.size))
    volume = lambda t: int(np.prod(t))
    # z is written and read twice; backward its gradient too, and dy is read twice.
    elements = lambda direction, shape, options: (1 if direction == "forward" else 2) * (
        volume(shape[:-1]) + 4 * volume(out(shape)) + window * volume(shape[-2:]) // geometry.groups)
    flops = lambda direction, shape, options: (2 if direction == "forward" else 4) * volume(out(shape)) * window * (
        shape[-2] // geometry.groups)
    return Case(name=name, run=run, plain=plain, reference=reference, gradient=gradient, rival=rival, fit=conv._fit(len(geometry.size)),
                summed=conv.places, special=False, inputs=inputs, outputs=outputs, elements=elements, flops=flops,
                options=[{"activation": a} for a in activations], **{"shapes": _SHAPES, "sizes": [], **more})


_SPEED = (64, 56, 56, 256, 256)

CASES = [
    _case("conv_norm", conv.Geometry((3, 3), padding="same"), rejects=[
        ("conv_norm: x and kernel must have the same number of dimensions, got shapes .2, 5, 4. and .3, 3, 4, 6.",
         lambda: tfuse.conv_norm(tf.ones([2, 5, 4]), tf.ones([3, 3, 4, 6]), None, None, tf.zeros([6]), tf.ones([6]), True)),
        ("mean must have the shape of x's channels, .6., got .4.",
         lambda: tfuse.conv_norm(tf.ones([2, 5, 5, 4]), tf.ones([3, 3, 4, 6]), None, None, tf.zeros([4]), tf.ones([6]), True))]),
    _case("conv_norm, residual", conv.Geometry((3, 2), strides=2, padding=[(1, 2), (0, 1)]), residual=True, activations=("relu",)),
    _case("conv_norm, frozen", conv.Geometry((3, 3), padding="same", groups=2), training=False, residual=True, activations=("relu",),
          shapes=[(2, 9, 7, 8, 6), (0, 4, 5, 4, 6), (2, 4, 5, 4, 0), (3, 12, 11, 6, 34)]),
    _case("conv_norm, speed", conv.Geometry((3, 3), padding="same"), activations=("relu",), shapes=[], sizes=[_SPEED],
          bars={("float16", _SPEED): {"ms": 1.0, "of_XLA": 1.0, "of_torch": 1.0}}),
]
